"""The OpenAI server of vLLM in a process of its own, and the few requests that tests make."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from .process import DATA_TYPE, ENGINE_ENVIRONMENT, connector_config, python_path


class ServerProcess:
    def __init__(
        self,
        model: Path,
        *,
        log: Path,
        connector: dict[str, Any] | None,
        arguments: list[str] | None = None,
        seconds: float = 600.0,
    ) -> None:
        self._log = log
        # vLLM's own port 0 means 8000; a socket of ours finds one that is free.
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.base = f"http://127.0.0.1:{port}"
        self.model = str(model)
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
        command += ["--model", self.model, "--host", "127.0.0.1", "--port", str(port)]
        command += ["--dtype", DATA_TYPE, "--max-model-len", "4096", "--enforce-eager"]
        command += ["--max-num-batched-tokens", "4096", "--max-num-seqs", "8", "--seed", "0"]
        command += ["--kv-cache-memory-bytes", str(1 << 29), *(arguments or [])]
        if connector is not None:
            command += ["--kv-transfer-config", json.dumps(connector_config(connector))]
        environment = {**os.environ, **ENGINE_ENVIRONMENT, "PYTHONPATH": python_path()}
        environment["VLLM_SERVER_DEV_MODE"] = "1"  # For reset_cache().
        del environment["VLLM_ENABLE_V1_MULTIPROCESSING"]  # As people run it.
        with open(log, "ab") as sink:
            # A session of its own: the server starts more processes, and all of them must go.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                env=environment,
                start_new_session=True,
            )
        try:
            self._wait_healthy(time.monotonic() + seconds)
        except BaseException:
            self.kill()
            raise

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        # Asked first: killed at once, it leaves shared memory behind.
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(30)
        self.kill()

    def complete(self, prompt: list[int], max_tokens: int = 8, **more: Any) -> dict[str, Any]:
        body = {"model": self.model, "prompt": prompt, "max_tokens": max_tokens}
        body |= {"temperature": 0, "ignore_eos": True, "return_token_ids": True, **more}
        data = json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.base}/v1/completions", data, headers)
        with urllib.request.urlopen(request, timeout=600) as reply:
            return json.load(reply)

    def reset_cache(self, seconds: float = 60.0) -> None:
        """As the connector's README says. Tries again while chunks are on their way to the store."""
        url = f"{self.base}/reset_prefix_cache?reset_external=true"
        request = urllib.request.Request(url, method="POST")
        deadline = time.monotonic() + seconds
        while True:
            with urllib.request.urlopen(request, timeout=60) as reply:
                if json.load(reply)["success"]:
                    return
            if time.monotonic() > deadline:
                raise TimeoutError("the server did not reset its cache")
            time.sleep(0.1)

    def metrics(self) -> dict[str, float]:
        """Sums over labels, by name; a label `source` stays part of the name."""
        with urllib.request.urlopen(f"{self.base}/metrics", timeout=60) as reply:
            text = reply.read().decode()
        sums: dict[str, float] = {}
        for line in text.splitlines():
            match = re.match(r"^([a-zA-Z_:]+)(?:\{([^}]*)\})? (\S+)$", line)
            if match is None:
                continue
            name, labels, value = match.groups()
            source = re.search(r'source="([^"]*)"', labels or "")
            if source:
                name += f"/{source[1]}"
            sums[name] = sums.get(name, 0.0) + float(value)
        return sums

    def kill(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _wait_healthy(self, deadline: float) -> None:
        while True:
            try:
                with urllib.request.urlopen(f"{self.base}/health", timeout=5) as reply:
                    if reply.status == 200:
                        return
            except (urllib.error.URLError, OSError):
                pass
            if self._process.poll() is not None or time.monotonic() > deadline:
                tail = self._log.read_text(errors="replace").splitlines()[-40:]
                raise RuntimeError("the server did not start:\n" + "\n".join(tail))
            time.sleep(0.2)
