"""A real penstockd for a test: started, killed, frozen and started again at the same address."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path


def wait_until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    until = time.monotonic() + seconds
    pause = 0.001
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError(f"waited {seconds} s in vain for {what}")
        time.sleep(pause)
        pause = min(2 * pause, 0.05)


class DaemonProcess:
    """penstockd on a Unix socket in `directory`; metrics and administration on free ports."""

    def __init__(self, program: Path, directory: Path, *flags: str, arena: str = "512MiB") -> None:
        self._program = program
        self._directory = directory
        self._flags = [f"--arena.size={arena}", *flags]
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"unix://{directory}/penstockd.sock"
        self.start()

    def __enter__(self) -> DaemonProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        ready = self._directory / "ready.json"
        ready.unlink(missing_ok=True)
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")}
        with open(self._directory / "log", "ab") as log:
            process = subprocess.Popen(
                [
                    self._program,
                    f"--listen={self.url}",
                    f"--ready_file={ready}",
                    "--admin.address=127.0.0.1:0",
                    "--metrics.address=127.0.0.1:0",
                    *self._flags,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
            )
        self._process = process
        wait_until(lambda: ready.exists() or process.poll() is not None, 120, "penstockd")
        if process.poll() is not None:
            raise RuntimeError(f"penstockd ended at once:\n{self.log()[-3000:]}")
        self.ready = json.loads(ready.read_text())

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def log(self) -> str:
        return (self._directory / "log").read_text(errors="replace")

    def kill(self) -> None:
        """kill -9."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def freeze(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        self.thaw()
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
