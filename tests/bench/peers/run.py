#!/usr/bin/env python3
"""Small values beside other stores, on one machine, in one run: operations a second and latencies.

  tests/bench/peers/run.py [--build build] [--rounds 3] [--seconds 0.5] [--json FILE] [--only NAME...]

Penstock over `local` and `tcp`, Mooncake Store's Python wheel over TCP from another process and with
its memcpy shortcut in its own, and Redis with pipelining. Each is used through its Python client, the
way that keeps as many requests in flight as asked: Penstock with asynchronous operations, Redis with a
pipeline, Mooncake with threads. Every contender is measured once a round; medians over the rounds count.

The first run makes a Python environment in ~/.cache/penstock/peers (about 200 MB from PyPI). Of Debian
it needs: redis-server libibverbs1 librdmacm1 libnuma1 liburing2 libcurl4. What is missing is left out
and said so.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from contenders import CONTENDERS, Unavailable

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
ENVIRONMENT = Path.home() / ".cache/penstock/peers"
PACKAGES = ["mooncake-transfer-engine-non-cuda==0.3.13.post1", "redis==8.1.0"]

# name -> operation, values in one request, bytes of each
EXPERIMENTS = {
    "put 4 KiB": ("put", 1, 4096),
    "get 4 KiB": ("get", 1, 4096),
    "put 32 x 4 KiB": ("put", 32, 4096),
    "get 32 x 4 KiB": ("get", 32, 4096),
    "put 32 x 64 KiB": ("put", 32, 65536),
    "get 32 x 64 KiB": ("get", 32, 65536),
    "exists 1": ("exists", 1, 4096),
    "exists 128": ("exists", 128, 4096),
    "exists 1,000": ("exists", 1000, 4096),
}
IN_FLIGHT = (1, 8, 64)


def log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def environment() -> Path:
    """The interpreter of the peers' own environment, made where it is missing."""
    python = ENVIRONMENT / "bin/python"
    stamp = ENVIRONMENT / "installed"
    if not stamp.exists() or stamp.read_text() != "\n".join(PACKAGES):
        log(f"installing {', '.join(PACKAGES)} into {ENVIRONMENT}")
        subprocess.run([sys.executable, "-m", "venv", str(ENVIRONMENT)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", *PACKAGES], check=True)
        stamp.write_text("\n".join(PACKAGES))
    return python


def measure(name: str, python: Path, build: Path, seconds: float) -> dict:
    """One round of one contender: experiment -> in flight -> figures."""
    with (
        tempfile.TemporaryDirectory(prefix="penstock-peers-") as scratch,
        CONTENDERS[name](build, python, Path(scratch)) as contender,
    ):
        plan = {
            "contender": contender.subject,
            "experiments": EXPERIMENTS,
            "in_flight": IN_FLIGHT,
            "seconds": seconds,
        }
        variables = {**os.environ, "PYTHONPATH": str(build / "python"), **contender.variables}
        done = subprocess.run(
            [str(python), str(HERE / "subject.py"), json.dumps(plan)],
            capture_output=True, text=True, env=variables, timeout=600,
        )  # fmt: skip
        if done.returncode != 0:
            raise Unavailable(f"exit code {done.returncode}: {done.stderr.strip()[-500:]}")
        return json.loads(done.stdout.splitlines()[-1])


def median_of(rounds: list[dict]) -> dict:
    return {
        experiment: {
            flight: {
                figure: statistics.median(r[experiment][flight][figure] for r in rounds)
                for figure in rounds[0][experiment][flight]
            }
            for flight in rounds[0][experiment]
        }
        for experiment in rounds[0]
    }


def show(medians: dict[str, dict]) -> None:
    names = list(medians)
    print(f"\n{'requests a second':22}{'in flight':>10}" + "".join(f"{n:>18}" for n in names))
    for experiment in EXPERIMENTS:
        for flight in map(str, IN_FLIGHT):
            cells = [medians[n][experiment][flight]["per_second"] for n in names]
            print(f"{experiment:22}{flight:>10}" + "".join(f"{c:18,.0f}" for c in cells))
    print(f"\n{'p50 / p99 / p99.9 us':22}{'in flight':>10}" + "".join(f"{n:>24}" for n in names))
    for experiment in EXPERIMENTS:
        for flight in map(str, IN_FLIGHT):
            cells = [medians[n][experiment][flight] for n in names]
            shown = [f"{c['p50_us']:.0f} / {c['p99_us']:.0f} / {c['p999_us']:.0f}" for c in cells]
            print(f"{experiment:22}{flight:>10}" + "".join(f"{s:>24}" for s in shown))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--build", type=Path, default=ROOT / "build")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--json", type=Path, help="also write the results there")
    parser.add_argument("--only", nargs="*", choices=list(CONTENDERS), default=list(CONTENDERS))
    arguments = parser.parse_args()
    python = environment()
    measured: dict[str, list[dict]] = {name: [] for name in arguments.only}
    skipped: dict[str, str] = {}
    for number in range(arguments.rounds):
        for name in [n for n in arguments.only if n not in skipped]:
            log(f"round {number + 1} of {arguments.rounds}: {name}")
            try:
                measured[name].append(measure(name, python, arguments.build, arguments.seconds))
            except Unavailable as why:
                log(f"  left out: {why}")
                skipped[name] = str(why)
    medians = {name: median_of(rounds) for name, rounds in measured.items() if name not in skipped}
    if not medians:
        return 1
    show(medians)
    result = {
        "machine": {"cores": os.cpu_count()},
        "skipped": skipped,
        "median": medians,
        "all": measured,
    }
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
