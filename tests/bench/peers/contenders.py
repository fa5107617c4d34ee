"""The stores that are compared: how each is started, and what its client has to be told."""

import json
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

MEMORY = 4 << 30  # Of each store.


class Unavailable(Exception):
    """It cannot be measured here, and why."""


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Contender:
    """A store's servers, running between __enter__ and __exit__."""

    def __init__(self, build: Path, python: Path, scratch: Path):
        self.build, self.python, self.scratch = build, python, scratch
        self.subject: dict = {}  # For subject.py.
        self.variables: dict[str, str] = {}  # Of the environment of its process.
        self.processes: list[subprocess.Popen] = []

    def __enter__(self) -> "Contender":
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def start(self) -> None:
        raise NotImplementedError

    def run(self, name: str, command: list[str]) -> None:
        log = (self.scratch / f"{name}.log").open("w")
        self.processes.append(subprocess.Popen(command, stdout=log, stderr=log))

    def wait(self, what: str, holds: Callable[[], bool], seconds: float = 30) -> None:
        end = time.monotonic() + seconds
        while not holds():
            if self.processes[-1].poll() is not None or time.monotonic() > end:
                logs = "\n".join(p.read_text()[-300:] for p in self.scratch.glob("*.log"))
                raise Unavailable(f"{what} did not come up: {logs}")
            time.sleep(0.05)

    def wait_port(self, port: int) -> None:
        def open_() -> bool:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
            except OSError:
                return False
            return True

        self.wait(f"port {port}", open_)


class Penstock(Contender):
    wire = "local"

    def start(self) -> None:
        ready = self.scratch / "ready.json"
        self.run("penstockd", [
            str(self.build / "server/daemon/penstockd"), f"--arena.size={MEMORY}",
            f"--listen=tcp://127.0.0.1:0,unix://{self.scratch}/socket", "--wires=local,tcp",
            "--admin.address=127.0.0.1:0", "--metrics.address=none", f"--ready-file={ready}",
            "--log.level=warn",
        ])  # fmt: skip
        self.wait("penstockd", ready.exists)
        tcp, unix = json.loads(ready.read_text())["addresses"]
        self.subject = {
            "kind": "penstock",
            "address": unix if self.wire == "local" else tcp,
            "wire": self.wire,
        }


class PenstockTcp(Penstock):
    wire = "tcp"


class Mooncake(Contender):
    """Values in the memory of a process of its own, over TCP."""

    own_memory = False

    def start(self) -> None:
        bin_ = self.python.parent
        if not (bin_ / "mooncake_master").exists():
            raise Unavailable("no mooncake_master: is the wheel installed?")
        master, metadata, metrics = free_port(), free_port(), free_port()
        self.run("master", [
            str(bin_ / "mooncake_master"), f"-rpc_port={master}", "-rpc_address=127.0.0.1",
            "-enable_http_metadata_server=true", "-http_metadata_server_host=127.0.0.1",
            f"-http_metadata_server_port={metadata}", f"-metrics_port={metrics}",
            "-metrics_host=127.0.0.1",
        ])  # fmt: skip
        self.wait_port(master)
        self.wait_port(metadata)
        url = f"http://127.0.0.1:{metadata}/metadata"
        if not self.own_memory:
            port = free_port()
            self.run("owner", [
                str(bin_ / "mooncake_client"), "-host=127.0.0.1", f"-port={port}",
                f"-global_segment_size={MEMORY >> 30} GB", f"-master_server_address=127.0.0.1:{master}",
                f"-metadata_server={url}", "-protocol=tcp",
            ])  # fmt: skip
            self.wait_port(port)
        self.subject = {
            "kind": "mooncake",
            "host": "127.0.0.1",
            "metadata": url,
            "master": f"127.0.0.1:{master}",
            "segment": MEMORY if self.own_memory else 0,
        }
        self.variables = {"MC_STORE_MEMCPY": str(int(self.own_memory)), "MC_FORCE_TCP": "1"}


class MooncakeMemcpy(Mooncake):
    """Values in the client's own memory, copied without a socket."""

    own_memory = True


class Redis(Contender):
    def start(self) -> None:
        if not shutil.which("redis-server"):
            raise Unavailable("no redis-server (Debian: redis-server)")
        port = free_port()
        self.run("redis", ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "",
                           "--appendonly", "no", "--maxmemory", str(MEMORY),
                           "--maxmemory-policy", "allkeys-lru"])  # fmt: skip
        self.wait_port(port)
        self.subject = {"kind": "redis", "port": port}


CONTENDERS: dict[str, type[Contender]] = {
    "penstock local": Penstock,
    "penstock tcp": PenstockTcp,
    "mooncake tcp": Mooncake,
    "mooncake memcpy": MooncakeMemcpy,
    "redis": Redis,
}
