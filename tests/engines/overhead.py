"""What the connector costs and saves: times to first token, side by side in one run.

    python tests/engines/overhead.py [--model llama|gemma] [--repeat 5] [--json]

Rows: the engine alone, with the connector and nothing to find or keep (store off), storing, pulling
in the same process (its own cache reset), pulling after a restart, and with the daemon away. The
engines take turns prompt by prompt, so that whatever else the machine does hits all of them.
Meant for an idle machine.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
_ROOT = _HERE.parents[1]
sys.path.insert(0, str(_HERE))

import models  # noqa: E402
from harness import prompts  # noqa: E402
from harness.compare import request  # noqa: E402
from harness.daemon import DaemonProcess  # noqa: E402
from harness.process import EngineProcess  # noqa: E402

SIZES = (300, 1000, 3000)
PATIENT = {"decline_slow_loads": False, "lookup_timeout_ms": 1000}


class Row:
    def __init__(self, name: str) -> None:
        self.name = name
        self.times: dict[int, list[float]] = {size: [] for size in SIZES}

    def add(self, result: dict[str, Any]) -> None:
        self.times[result["prompt_tokens"]].append(result["ttft"] * 1000)

    def medians(self) -> list[float]:
        return [statistics.median(self.times[size]) for size in SIZES]


def ask(engine: EngineProcess, prompt: list[int]) -> dict[str, Any]:
    return engine.generate([request(prompt)])[0]


def measure(arguments: argparse.Namespace, place: Path) -> list[Row]:
    model = models.directory_of(arguments.model, cache=arguments.model_cache)
    if arguments.model == "llama":
        make = lambda seed: prompts.random_prompts(list(SIZES), models.LLAMA_VOCABULARY, seed)  # noqa: E731
    else:
        make = lambda seed: prompts.text_prompts(model, list(SIZES), seed)  # noqa: E731
    daemon = DaemonProcess(arguments.build_dir / "server/daemon/penstockd", place, arena="2GiB")
    url = {"url": daemon.url, **PATIENT}
    away = {"url": f"unix://{place}/nobody.sock"}
    configurations = {
        "alone": None,
        "attached, nothing to do": {**url, "store": False, "tenant_salt": "empty"},
        "daemon away": away,
        "storing": url,
    }
    engines = {
        name: EngineProcess(model, log=place / f"{i}.log", connector=connector)
        for i, (name, connector) in enumerate(configurations.items())
    }
    rows = {name: Row(name) for name in [*configurations, "pulling", "pulling after a restart"]}
    rows["own prefix hit"] = Row("own prefix hit")
    try:
        for engine in engines.values():
            for prompt in make(0):
                ask(engine, prompt)
        for turn in range(arguments.repeat):
            for prompt in make(turn + 1):
                for name, engine in engines.items():
                    rows[name].add(ask(engine, prompt))
                    engine.call("drain")
                rows["own prefix hit"].add(ask(engines["alone"], prompt))
                engines["storing"].call("reset_prefix_cache")
                rows["pulling"].add(ask(engines["storing"], prompt))
    finally:
        for engine in engines.values():
            engine.close()
    with EngineProcess(model, log=place / "restart.log", connector=url) as engine:
        for prompt in make(0):
            ask(engine, prompt)
        for turn in range(arguments.repeat):
            for prompt in make(turn + 1):
                rows["pulling after a restart"].add(ask(engine, prompt))
    daemon.stop()
    return list(rows.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=["llama", "gemma"], default="llama")
    parser.add_argument("--model-cache", default=None)
    parser.add_argument("--build-dir", type=Path, default=_ROOT / "build")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="po-"))
    try:
        rows = measure(arguments, place)
    finally:
        shutil.rmtree(place)
    alone = rows[0].medians()
    print(f"{'TTFT, ms (against alone)':<28}" + "".join(f"{size:>20}" for size in SIZES))
    for row in rows:
        cells = [
            f"{ms:9.1f} ({ms / base:5.2f})" for ms, base in zip(row.medians(), alone, strict=True)
        ]
        print(f"{row.name:<28}" + "".join(f"{cell:>20}" for cell in cells))
    if arguments.json:
        print(json.dumps({row.name: row.times for row in rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
