#!/usr/bin/env python3
"""Asks a real vLLM a question about a long text, kills it, starts a new one, and asks again.

Between the two, only penstockd remembers anything. Ends with a table of what that saved. Run by
deploy/quickstart.sh, which starts penstockd; by hand: demo.py --daemon unix:///path/to/socket.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
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


def make_prompt(tokenizer: Any, model: str) -> list[int]:
    """The text, then the question. A byte-wise tokenizer gets as much of the text as fits."""
    tail = tokenizer.encode(f"\n\nQuestion: {QUESTION}\nAnswer:", add_special_tokens=False)
    body = tokenizer.encode(TEXT.read_text(encoding="utf-8"), add_special_tokens=False)
    room = (3000 if model == "llama" else MAX_PROMPT_TOKENS) - len(tail) - 1
    return [tokenizer.bos_token_id, *body[:room], *tail]


def ask(engine: Any, prompt: list[int]) -> dict[str, Any]:
    request = {"prompt": prompt, "max_tokens": ANSWER_TOKENS, "logprobs": 0}
    return engine.generate([request])[0]


def counters(engine: Any) -> dict[str, int]:
    return (engine.state()["connector"] or {}).get("counters", {})


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    import models  # Of tests/engines: the engine process and the models are the same there and here.
    from harness.process import EngineProcess

    if arguments.model == "gemma":
        print(f"      {models.GEMMA_TERMS}", flush=True)
    with Step(f"model {arguments.model}"):
        directory = models.directory_of(arguments.model)
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(directory)
    prompt = make_prompt(tokenizer, arguments.model)
    warm_up = prompt[-64:]
    # A salt of its own makes this run's chunks nobody else's, so that the first answer is computed
    # in full although an earlier run stored the same text.
    connector = {"url": arguments.daemon, "tenant_salt": secrets.token_hex(8), "name": "quickstart"}
    logs = Path(arguments.logs)
    logs.mkdir(parents=True, exist_ok=True)

    def start(number: int) -> Any:
        with Step(f"vLLM engine {number} starts"):
            engine = EngineProcess(
                directory, log=logs / f"engine-{number}.log", connector=connector
            )
            ask(engine, warm_up)  # The first request of any engine pays for one-off work.
        return engine

    engine = start(1)
    try:
        with Step(f"asking engine 1 about {len(prompt)} tokens of text"):
            cold = ask(engine, prompt)
        with Step("its chunks reach penstockd"):
            engine.call("drain")
            stored = counters(engine)
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
        "outputs_equal": cold["tokens"] == warm["tokens"],
        "answer_cold": tokenizer.decode(cold["tokens"]),
        "answer_restarted": tokenizer.decode(warm["tokens"]),
    }


def table(result: dict[str, Any]) -> str:
    mib = 1 << 20
    rows = [
        ("", "cold", "after restart, with Penstock"),
        ("prompt tokens", result["prompt_tokens"], result["prompt_tokens"]),
        ("tokens prefilled", result["prefilled_cold"], result["prefilled_restarted"]),
        ("tokens pulled from penstockd", 0, result["tokens_pulled"]),
        (
            "MiB stored / pulled",
            f"{result['bytes_stored'] / mib:.1f}",
            f"{result['bytes_pulled'] / mib:.1f}",
        ),
        (
            "time to first token",
            f"{result['ttft_cold_s'] * 1000:.0f} ms",
            f"{result['ttft_restarted_s'] * 1000:.0f} ms"
            f" ({result['ttft_cold_s'] / result['ttft_restarted_s']:.1f} times faster)",
        ),
        ("outputs equal", "", "yes" if result["outputs_equal"] else "NO"),
    ]
    lines = [f"  {name:<30} {cold!s:>12}   {warm!s}" for name, cold, warm in rows]
    note = "" if result["model"] == "gemma" else " (random weights: it talks nonsense, repeatably)"
    return "\n".join(
        [
            "",
            f"  Question: {QUESTION}",
            f"  Answer, engine 1: {result['answer_cold']!r}",
            f"  Answer, engine 2: {result['answer_restarted']!r}{note}",
            "",
            *lines,
            "",
        ]
    )


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
    good = result["tokens_pulled"] > 0 and result["outputs_equal"]
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
