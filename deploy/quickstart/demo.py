#!/usr/bin/env python3
"""Asks a real vLLM a question about a long text, kills it, starts a new one, and asks again.

Between the two, only penstockd remembers anything. Ends with a table of what that saved. Run by
deploy/quickstart.sh, which starts penstockd; by hand: demo.py --daemon unix:///path/to/socket.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import secrets
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TEXT = ROOT / "deploy/quickstart/text/the-mill-at-orrin-water.txt"
QUESTION = "Which of the three turbines was put to work first, and in which year?"
MAX_PROMPT_TOKENS = 3900
ANSWER_TOKENS = 32

sys.path[:0] = [str(ROOT / "tests/engines"), str(ROOT / "build/python")]
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(ROOT / "build/python"), *filter(None, [os.environ.get("PYTHONPATH")])]
)
# Where something else wants the processors too, threads that spin while they wait for each other make
# an engine many times slower.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


class Step:
    """Says what is being done, that it goes on, and how long it took."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._done = threading.Event()
        self._began = time.monotonic()
        self._ticker = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self) -> Step:
        self._say(f"{self._text} ...")
        self._ticker.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._done.set()
        self._ticker.join()
        self._say(
            f"{self._text}: {'done' if kind is None else 'FAILED'} in {self._seconds():.1f} s"
        )

    def _tick(self) -> None:
        while not self._done.wait(10.0):
            self._say(f"... {self._text}: {self._seconds():.0f} s")

    def _seconds(self) -> float:
        return time.monotonic() - self._began

    @staticmethod
    def _say(text: str) -> None:
        print(f"      {text}", flush=True)


def make_model(name: str, log: Path) -> str:
    """Directory of the model. Made by a process of its own: libraries talk while they do it, and
    its log has whose terms of use apply."""
    command = [sys.executable, str(ROOT / "tests/engines/models.py"), name, "--json"]
    with open(log, "w", encoding="utf-8") as sink:
        made = subprocess.run(command, stdout=subprocess.PIPE, stderr=sink, text=True, check=False)
    if made.returncode != 0:
        raise SystemExit(f"the model could not be made; see {log}")
    return json.loads(made.stdout.splitlines()[-1])["directory"]


def make_prompt(tokenizer: Any, model: str) -> list[int]:
    """The text, then the question. A byte-wise tokenizer gets as much of the text as fits."""
    tail = tokenizer.encode(f"\n\nQuestion: {QUESTION}\nAnswer:", add_special_tokens=False)
    body = tokenizer.encode(TEXT.read_text(encoding="utf-8"), add_special_tokens=False)
    room = (3000 if model == "llama" else MAX_PROMPT_TOKENS) - len(tail) - 1
    return [tokenizer.bos_token_id, *body[:room], *tail]


def ask(engine: Any, prompt: list[int]) -> dict[str, Any]:
    request = {"prompt": prompt, "max_tokens": ANSWER_TOKENS, "logprobs": 0}
    return engine.generate([request])[0]


def ask_own_cache(engine: Any, prompt: list[int]) -> dict[str, Any]:
    """The same again in the engine that knows it, with just the whole chunks in its own cache.

    What the restarted engine is to equal to the last bit: it starts from as many tokens, and the
    prefill of a whole prompt may round otherwise than prefill of its rest.
    """
    chunk = engine.state()["connector"]["chunk_tokens"]
    tokens = (len(prompt) - 1) // chunk * chunk
    engine.call("trim_prefix_cache", prompt=prompt, tokens=tokens)
    return ask(engine, prompt)


def counters(engine: Any) -> dict[str, int]:
    return (engine.state()["connector"] or {}).get("counters", {})


def start_engine(
    directory: str, logs: Path, connector: dict[str, Any], warm_up: list[int], number: int
) -> Any:
    from harness.process import EngineProcess  # Of tests/engines: the same engines there and here.

    with Step(f"vLLM engine {number} starts"):
        # Sliding-window groups keep what a hit of whole chunks needs: see ask_own_cache().
        engine = EngineProcess(
            directory,
            log=logs / f"engine-{number}.log",
            connector=connector,
            prefix_cache_retention_interval=None,
        )
        ask(engine, warm_up)  # The first request of any engine pays for one-off work.
    return engine


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    logs = Path(arguments.logs)
    logs.mkdir(parents=True, exist_ok=True)
    with Step(f"model {arguments.model}"):
        directory = make_model(arguments.model, logs / "model.log")
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(directory)
    prompt = make_prompt(tokenizer, arguments.model)
    warm_up = prompt[-64:]
    # A salt of its own makes this run's chunks nobody else's, so that the first answer is computed
    # in full although an earlier run stored the same text.
    # Patient: a machine that is busy with something else shall see a pull, too.
    connector = {
        "url": arguments.daemon,
        "tenant_salt": secrets.token_hex(8),
        "name": "quickstart",
        "lookup_timeout_ms": 10_000,
        "decline_slow_loads": False,
    }

    start = functools.partial(start_engine, directory, logs, connector, warm_up)
    engine = start(1)
    try:
        with Step(f"asking engine 1 about {len(prompt)} tokens of text"):
            cold = ask(engine, prompt)
        with Step("its chunks reach penstockd"):
            engine.call("drain")
            stored = counters(engine)
        with Step("asking engine 1 again, from its own cache"):
            own = ask_own_cache(engine, prompt)
    finally:
        engine.kill()
    print(f"      engine 1 (process {engine.pid}) killed with SIGKILL", flush=True)
    engine = start(2)
    try:
        with Step("asking engine 2 the same"):
            warm = ask(engine, prompt)
        pulled = counters(engine)
    finally:
        engine.close()
    return {
        "model": arguments.model,
        "prompt_tokens": len(prompt),
        "prefilled_cold": len(prompt) - cold["cached_tokens"],
        "prefilled_restarted": len(prompt) - warm["cached_tokens"],
        "tokens_pulled": pulled.get("tokens_pulled", 0),
        "bytes_stored": stored.get("bytes_stored", 0),
        "bytes_pulled": pulled.get("bytes_loaded", 0),
        "ttft_cold_s": cold["ttft"],
        "ttft_restarted_s": warm["ttft"],
        "prefilled_own_cache": len(prompt) - own["cached_tokens"],
        "ttft_own_cache_s": own["ttft"],
        "outputs_equal": cold["tokens"] == warm["tokens"],
        "bits_equal_own_cache": all(own[key] == warm[key] for key in ("tokens", "logprobs")),
        "answer_cold": answer(tokenizer, arguments.model, cold),
        "answer_restarted": answer(tokenizer, arguments.model, warm),
    }


def answer(tokenizer: Any, model: str, result: dict[str, Any]) -> str:
    if model == "gemma":
        return repr(tokenizer.decode(result["tokens"]))
    # Random weights: most of what it says is not even a character.
    return "tokens " + " ".join(map(str, result["tokens"][:12])) + " ..."


def table(result: dict[str, Any]) -> str:
    mib = 1 << 20
    cold, own, restarted = (
        result[f"ttft_{name}_s"] * 1000 for name in ("cold", "own_cache", "restarted")
    )
    rows = [
        ("", "cold", "own cache", "restarted, with Penstock"),
        ("prompt tokens", *[result["prompt_tokens"]] * 3),
        (
            "tokens prefilled",
            result["prefilled_cold"],
            result["prefilled_own_cache"],
            result["prefilled_restarted"],
        ),
        ("tokens pulled from penstockd", 0, 0, result["tokens_pulled"]),
        (
            "MiB stored / pulled",
            f"{result['bytes_stored'] / mib:.1f}",
            "",
            f"{result['bytes_pulled'] / mib:.1f}",
        ),
        (
            "time to first token",
            f"{cold:.0f} ms",
            f"{own:.0f} ms",
            f"{restarted:.0f} ms ({cold / restarted:.1f} times faster)",
        ),
        ("outputs equal", "", "", "yes" if result["outputs_equal"] else "NO"),
        (
            "  and to own cache, to the bit",
            "",
            "",
            "yes" if result["bits_equal_own_cache"] else "NO",
        ),
    ]
    lines = [f"  {name:<30} {a!s:>10} {b!s:>10}   {c!s}" for name, a, b, c in rows]
    return "\n".join(
        [
            "",
            f"  Question: {QUESTION}",
            f"  Answer, engine 1: {result['answer_cold']}",
            f"  Answer, engine 2: {result['answer_restarted']}",
            "",
            *lines,
            *verdict(result),
            "",
        ]
    )


def verdict(result: dict[str, Any]) -> list[str]:
    if result["tokens_pulled"] == 0:
        return ["", "  Nothing was pulled: the engines' logs and penstockd's say why."]
    if not result["bits_equal_own_cache"]:
        return [
            "",
            "  The restarted engine says something else than engine 1 did from its own cache.",
        ]
    if result["outputs_equal"]:
        return []
    return [
        "",
        "  The restarted engine says, to the last bit, what engine 1 said from its own prefix cache.",
        "  Cold it said something else: prefill in one piece rounds otherwise than in two.",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--daemon", required=True, help="penstockd's address")
    parser.add_argument("--model", choices=["gemma", "llama"], default="gemma")
    parser.add_argument("--logs", default="build/logs", help="folder for the engines' logs")
    parser.add_argument("--json", action="store_true", help="print the result as JSON too")
    arguments = parser.parse_args()
    result = run(arguments)
    print(table(result), flush=True)
    if arguments.json:
        print(json.dumps(result))
    # A restarted engine that pulled nothing has shown nothing, whatever the clock says.
    good = result["tokens_pulled"] > 0 and result["bits_equal_own_cache"]
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
