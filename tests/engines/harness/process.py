"""EngineProcess: an engine in a process of its own, asked over a pipe.

    with EngineProcess(model, log=tmp / "engine.log", connector={"url": url}) as engine:
        results = engine.generate([{"prompt": ids, "max_tokens": 8}])

The process is the real thing: it can be killed, and a second one is a restarted engine.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
_ROOT = _HERE.parents[2]

# A fair engine: without these the one without a connector keeps a core for itself and is half as
# fast (two cores), and start-up asks the network for the model. Compiling what is imported takes
# longer than all the rest of a start, so it is kept, whatever the caller's environment says.
ENGINE_ENVIRONMENT = {
    "PYTHONDONTWRITEBYTECODE": "",
    "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


def data_type() -> str:
    """bfloat16 where the processor computes with it; else float32, which is many times faster."""
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    return "bfloat16" if {"avx512_bf16", "amx_bf16"} & set(flags) else "float32"


DATA_TYPE = data_type()

ENGINE_ARGUMENTS: dict[str, Any] = {
    "dtype": DATA_TYPE,
    "max_model_len": 4096,
    "max_num_batched_tokens": 4096,
    "max_num_seqs": 8,
    "enforce_eager": True,
    "skip_tokenizer_init": True,
    "disable_log_stats": False,
    "seed": 0,
}


class EngineFailed(RuntimeError):
    """The engine process answered with an error or is gone; the log's end is in the text."""


def connector_config(extra: dict[str, Any], policy: str | None = None) -> dict[str, Any]:
    config: dict[str, Any] = {
        "kv_connector": "PenstockConnector",
        "kv_connector_module_path": "penstock_vllm",
        "kv_role": "kv_both",
        "kv_connector_extra_config": extra,
    }
    if policy is not None:
        config["kv_load_failure_policy"] = policy
    return config


def python_path(*extra: str) -> str:
    """PYTHONPATH under which engine processes find the connector and the harness."""
    parts = [*extra, str(_HERE.parent), str(_ROOT / "connector/penstock_vllm")]
    parts += [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    parts.append(str(_ROOT / "build/python"))
    return os.pathsep.join(parts)


class EngineProcess:
    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        log: Path,
        connector: dict[str, Any] | None = None,
        environment: dict[str, str] | None = None,
        python: str = sys.executable,
        start_seconds: float = 300.0,
        kv_gib: float = 0.5,
        kv_transfer_config: dict[str, Any] | None = None,
        wait: bool = True,
        **engine_arguments: Any,
    ) -> None:
        self._log = log
        arguments = {**ENGINE_ARGUMENTS, "model": str(model), **engine_arguments}
        arguments.setdefault("kv_cache_memory_bytes", int(kv_gib * 2**30))
        if kv_transfer_config is not None:
            arguments["kv_transfer_config"] = kv_transfer_config
        elif connector is not None:
            arguments["kv_transfer_config"] = connector_config(connector)
        command_read, self._commands = os.pipe()
        self._replies, reply_write = os.pipe()
        self._buffer = b""
        with open(log, "ab") as sink:
            self._process = subprocess.Popen(
                [
                    python,
                    "-m",
                    "harness.engine_main",
                    str(command_read),
                    str(reply_write),
                ],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                pass_fds=(command_read, reply_write),
                env={
                    **os.environ,
                    **ENGINE_ENVIRONMENT,
                    "PYTHONPATH": python_path(),
                    **(environment or {}),
                },
            )
        os.close(command_read)
        os.close(reply_write)
        self._start_by: float | None = time.monotonic() + start_seconds
        self.send("start", engine=arguments)
        if wait:
            self.wait_started()

    def wait_started(self) -> None:
        """After wait=False; the first call() does it too. So two engines start side by side."""
        if self._start_by is None:
            return
        try:
            self.receive(self._start_by - time.monotonic())
        except BaseException:
            self.kill()
            raise
        self._start_by = None

    def __enter__(self) -> EngineProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def call(self, operation: str, *, timeout: float = 600.0, **arguments: Any) -> dict[str, Any]:
        self.wait_started()
        self.send(operation, **arguments)
        return self.receive(timeout)

    def send(self, operation: str, **arguments: Any) -> None:
        """Sends a command without waiting: receive() waits. For tests that act meanwhile."""
        line = json.dumps({"op": operation, **arguments}) + "\n"
        data = line.encode()
        while data:
            try:
                data = data[os.write(self._commands, data) :]
            except BrokenPipeError:
                raise self._failure("it is gone") from None

    def receive(self, timeout: float = 600.0) -> dict[str, Any]:
        reply = json.loads(self._read_line(time.monotonic() + timeout))
        if not reply.pop("ok"):
            raise self._failure(reply["error"] + "\n" + reply["traceback"])
        return reply

    def generate(
        self, requests: list[dict[str, Any]], *, together: bool = False, timeout: float = 600.0
    ) -> list[dict[str, Any]]:
        return self.call("generate", timeout=timeout, requests=requests, together=together)[
            "results"
        ]

    def state(self) -> dict[str, Any]:
        return self.call("state")

    def kill(self) -> None:
        """kill -9, as a crash of the engine would be."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._close_pipes()

    def close(self) -> None:
        if self._commands < 0:
            return
        if self._process.poll() is None and self._start_by is None:
            try:
                self.call("stop", timeout=30.0)
                self._process.wait(timeout=30.0)
            except (EngineFailed, subprocess.TimeoutExpired):
                pass
        self.kill()

    def _close_pipes(self) -> None:
        if self._commands >= 0:
            os.close(self._commands)
            os.close(self._replies)
            self._commands = self._replies = -1

    def _read_line(self, deadline: float) -> bytes:
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._replies], [], [], left)[0]:
                raise self._failure("no answer in time")
            piece = os.read(self._replies, 1 << 16)
            if not piece:
                raise self._failure("it is gone")
            self._buffer += piece
        line, self._buffer = self._buffer.split(b"\n", 1)
        return line

    def _failure(self, what: str) -> EngineFailed:
        tail = ""
        if self._log.exists():
            tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-40:])
        return EngineFailed(f"engine process: {what}\n--- end of {self._log}\n{tail}")
