#!/usr/bin/env python3
"""Measures Penstock beside what it is compared with, in one run on one machine, and prints ratios.

  tests/bench/run.py [--build build] [--rounds 5] [--seconds 2] [--json result.json]

Rounds are interleaved: every contender is measured once a round, and the median over the rounds is
what counts, so that a machine that slows down for a while slows them all. What is not installed
(iperf3, ucx_perftest, redis) is left out and said so.
"""

import argparse
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

SIZES = {
    "4 KiB": 4 << 10,
    "64 KiB": 64 << 10,
    "1 MiB": 1 << 20,
    "4 MiB": 4 << 20,
    "16 MiB": 16 << 20,
}
FOOTPRINT = 512 << 20  # Bytes that a transfer goes through before it begins again: cold caches.


def log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def output(command: list[str], timeout: float = 120) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    if done.returncode != 0:
        raise RuntimeError(
            f"{' '.join(command)}: exit code {done.returncode}: {done.stderr.strip()}"
        )
    return done.stdout


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Background:
    """A program that runs while others are measured."""

    def __init__(self, command: list[str], log_path: Path):
        self.log = log_path.open("w")
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()


def wait_for(path: Path, process: subprocess.Popen, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not path.exists():
        if process.poll() is not None or time.monotonic() > end:
            raise RuntimeError(f"{path.name} did not appear")
        select_a_moment()


def select_a_moment() -> None:
    import select

    select.select([], [], [], 0.02)


def wait_for_port(port: int, seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            if time.monotonic() > end:
                raise
            select_a_moment()


class Suite:
    def __init__(self, arguments: argparse.Namespace, scratch: Path):
        self.build = Path(arguments.build)
        self.seconds = arguments.seconds
        self.scratch = scratch
        self.background: list[Background] = []
        self.skipped: list[str] = []
        self.sizes = {k: v for k, v in SIZES.items() if not arguments.sizes or k in arguments.sizes}

    def __enter__(self) -> "Suite":
        ready = self.scratch / "ready.json"
        daemon = [
            str(self.build / "server/daemon/penstockd"),
            f"--listen=tcp://127.0.0.1:0,unix://{self.scratch}/socket", "--wires=local,ucx,tcp",
            "--admin.address=127.0.0.1:0", "--metrics.address=none", "--arena.size=2GiB",
            f"--ready-file={ready}", "--log.level=warn",
        ]  # fmt: skip
        self.background.append(Background(daemon, self.scratch / "penstockd.log"))
        wait_for(ready, self.background[-1].process)
        self.address, self.local = json.loads(ready.read_text())["addresses"]
        return self

    def __exit__(self, *_: object) -> None:
        for program in self.background:
            program.stop()

    # --- contenders: each gives a function that measures once ---

    def ours(self, wire: str, operation: str, size: int, *more: str) -> Callable[[], float]:
        address = self.local if wire == "local" else self.address
        command = [
            str(self.build / "tests/bench/transfer_bench"), address, wire, operation, str(size),
            str(self.seconds), str(FOOTPRINT), *more,
        ]  # fmt: skip
        key = "keys_per_s" if operation == "match" else "gb_per_s"
        return lambda: json.loads(output(command))[key]

    def bare_socket(self, size: int, kind: str = "tcp") -> Callable[[], float]:
        command = [
            str(self.build / "tests/bench/bare_socket"), str(size), str(self.seconds), str(FOOTPRINT),
            kind,
        ]  # fmt: skip
        return lambda: json.loads(output(command))["gb_per_s"]

    def iperf3(self, size: int) -> Callable[[], float]:
        port = free_port()
        self.background.append(
            Background(["iperf3", "-s", "-p", str(port)], self.scratch / f"iperf3-{size}.log")
        )
        wait_for_port(port)
        command = ["iperf3", "-c", "127.0.0.1", "-p", str(port), "-l", str(min(size, 1 << 20)),
                   "-t", str(max(1, round(self.seconds))), "-J"]  # fmt: skip
        return lambda: json.loads(output(command))["end"]["sum_received"]["bits_per_second"] / 8e9

    def ucx(self, size: int, tls: str) -> Callable[[], float]:
        def measure() -> float:
            port = free_port()
            environment = dict(os.environ, UCX_TLS=tls, UCX_WARN_UNUSED_ENV_VARS="n")
            iterations = max(20, min(20000, int(self.seconds * 2e9 / size)))
            common = ["ucx_perftest", "-p", str(port)]
            server = subprocess.Popen(
                common, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
            )
            try:
                for _ in range(100):
                    client = subprocess.run(
                        [*common, "127.0.0.1", "-t", "ucp_put_bw", "-s", str(size), "-n", str(iterations), "-f"],
                        capture_output=True, text=True, timeout=120, env=environment,
                    )  # fmt: skip
                    if client.returncode == 0:
                        break
                    select_a_moment()
                fields = client.stdout.split()
                # count, percentile latency, 2 latencies, average and overall MB/s, 2 rates.
                return float(fields[-3]) / 1e3 * 1.048576
            finally:
                server.kill()
                server.wait()

        return measure

    def redis(self, command: str) -> Callable[[], float]:
        port = free_port()
        server = [
            "redis-server",
            "--port",
            str(port),
            "--save",
            "",
            "--appendonly",
            "no",
            "--bind",
            "127.0.0.1",
        ]
        self.background.append(Background(server, self.scratch / f"redis-{command}.log"))
        wait_for_port(port)
        base = [
            "redis-benchmark",
            "-p",
            str(port),
            "-d",
            "4096",
            "-r",
            "16384",
            "-P",
            "64",
            "-c",
            "4",
            "--csv",
        ]
        output([*base, "-n", "100000", "-t", "set"])

        def measure() -> float:
            text = output([*base, "-n", str(int(100000 * max(1, self.seconds))), "-t", command])
            row = text.strip().splitlines()[-1].split(",")
            return float(row[1].strip('"')) * 4096 / 1e9

        return measure

    def have(self, program: str) -> bool:
        if shutil.which(program):
            return True
        if program not in self.skipped:
            self.skipped.append(program)
        return False

    def wires(self) -> list[str]:
        usable = ["local", "tcp"]
        try:
            self.ours("ucx", "fetch", 1 << 20)()
            usable.append("ucx")
        except RuntimeError as error:
            log(f"ucx wire: left out ({error})")
            self.skipped.append("ucx wire")
        return usable

    def plan(self) -> dict[str, dict[str, Callable[[], float]]]:
        """Experiment -> contender -> measurement."""
        plan: dict[str, dict[str, Callable[[], float]]] = {}
        wires = self.wires()
        for name, size in self.sizes.items():
            contenders = {"memcpy": self.bare_socket(size, "memory"),
                          "bare socket": self.bare_socket(size)}  # fmt: skip
            if self.have("iperf3"):
                contenders["iperf3"] = self.iperf3(size)
            if self.have("ucx_perftest"):
                contenders["ucx_perftest tcp"] = self.ucx(size, "tcp,self")
                contenders["ucx_perftest shm"] = self.ucx(size, "sm,self")
            for wire in wires:
                for operation in ("fetch", "store"):
                    contenders[f"{operation} {wire}"] = self.ours(wire, operation, size)
            for wire in ("local", "tcp"):
                contenders[f"fetch {wire}, no checksum"] = self.ours(
                    wire, "fetch", size, "no-verify"
                )
            plan[name] = contenders
        if "4 KiB" in self.sizes and self.have("redis-server") and self.have("redis-benchmark"):
            plan["4 KiB"]["redis get"] = self.redis("get")
            plan["4 KiB"]["redis set"] = self.redis("set")
        plan["match of 1,000 keys"] = {"keys/s": self.ours("tcp", "match", 4096)}
        return plan


def ratios(experiment: str, medians: dict[str, float]) -> dict[str, float]:
    """What section "numbers to reach" of the design asks for."""
    found: dict[str, float] = {}
    sockets = [v for k, v in medians.items() if k in ("bare socket", "iperf3", "ucx_perftest tcp")]
    ucx = medians.get("ucx_perftest tcp")  # What UCX takes where the death of a peer is noticed.
    for name, value in medians.items():
        if name in ("fetch local", "store local"):
            found[f"{name} / memcpy"] = value / medians["memcpy"]
        if name in ("fetch tcp", "store tcp") and sockets:
            found[f"{name} / best of sockets"] = value / max(sockets)
        if name in ("fetch ucx", "store ucx") and ucx:
            found[f"{name} / ucx_perftest tcp"] = value / ucx
    for wire in ("local", "tcp"):
        if unchecked := medians.get(f"fetch {wire}, no checksum"):
            found[f"checksum on / off, {wire}"] = medians[f"fetch {wire}"] / unchecked
    for ours, theirs in (("fetch tcp", "redis get"), ("store tcp", "redis set")):
        if theirs in medians:
            found[f"{ours} / {theirs}"] = medians[ours] / medians[theirs]
    return found


def show(results: dict) -> None:
    for experiment, result in results["experiments"].items():
        print(f"\n{experiment}")
        for name, value in result["median"].items():
            unit = "M keys/s" if name == "keys/s" else "GB/s"
            shown = value / 1e6 if name == "keys/s" else value
            print(
                f"  {name:28} {shown:8.3f} {unit}   ({min(result['all'][name]):.3g} .. {max(result['all'][name]):.3g})"
            )
        for name, value in result["ratio"].items():
            print(f"  {name:40} {value:6.2f}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--build", default="build")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--sizes", nargs="*", help="only these, such as '1 MiB'")
    parser.add_argument("--json", help="also write the results there")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as scratch,
        Suite(arguments, Path(scratch)) as suite,
    ):
        plan = suite.plan()
        measured: dict[str, dict[str, list[float]]] = {e: {c: [] for c in plan[e]} for e in plan}
        for number in range(arguments.rounds):
            for experiment, contenders in plan.items():
                for contender, measure in contenders.items():
                    log(f"round {number + 1} of {arguments.rounds}: {experiment}, {contender}")
                    measured[experiment][contender].append(measure())
        results: dict = {"machine": {"cores": os.cpu_count(), "load": os.getloadavg()[0]},
                         "skipped": suite.skipped, "experiments": {}}  # fmt: skip
        for experiment, contenders in measured.items():
            medians = {c: statistics.median(v) for c, v in contenders.items()}
            results["experiments"][experiment] = {
                "median": medians, "ratio": ratios(experiment, medians), "all": contenders,
            }  # fmt: skip
    show(results)
    print("\n" + json.dumps(results))
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
