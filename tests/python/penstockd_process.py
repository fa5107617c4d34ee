"""A real penstockd for tests."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import time


class Daemon:
    """One penstockd on a Unix socket and a TCP port, which it keeps when it is started again."""

    def __init__(self, program: pathlib.Path, directory: pathlib.Path, arena: str, *flags: str):
        self.program = program
        self.directory = directory
        self.flags = [f"--arena.size={arena}", *flags]
        self.unix = f"unix://{directory}/penstockd.sock"
        self.tcp = "tcp://127.0.0.1:0"
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        ready = self.directory / "ready.json"
        ready.unlink(missing_ok=True)
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")}
        with open(self.directory / "log", "ab") as log:
            self.process = subprocess.Popen(
                [
                    self.program, f"--listen={self.unix},{self.tcp}", f"--ready_file={ready}",
                    "--admin.address=127.0.0.1:0", "--metrics.address=127.0.0.1:0", *self.flags,
                ],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment,
            )  # fmt: skip
        wait_until(lambda: ready.exists() or self.process.poll() is not None, 60)
        if self.process.poll() is not None:
            raise RuntimeError(f"penstockd ended: {self.log()[-2000:]}")
        addresses = json.loads(ready.read_text())["addresses"]
        self.tcp = next(address for address in addresses if address.startswith("tcp://"))

    def log(self) -> str:
        return (self.directory / "log").read_text(errors="replace")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)
        wait_until(self._stands_still, 10)

    def _stands_still(self) -> bool:
        tasks = pathlib.Path(f"/proc/{self.process.pid}/task").glob("*/stat")
        return all(stat.read_text().rpartition(")")[2].split()[0] == "T" for stat in tasks)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        if self.process.poll() is None:
            self.thaw()
            self.process.terminate()
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.kill()
                raise


def wait_until(condition, seconds: float) -> None:
    """Returns once ``condition()`` is true; fails after ``seconds``."""
    until = time.monotonic() + seconds
    pause = 0.001
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
