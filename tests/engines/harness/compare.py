"""What an engine says, cold and from a prefix of a given length: the reference for everything else.

bf16 prefill in other pieces may round otherwise, so a prompt whose first n tokens come from a cache
is compared with the same engine's own prefix-cache hit of n tokens, bit for bit: the tokens, and the
logprobs of the likeliest tokens at each position.

An engine with sliding-window groups hits where all groups still have their blocks. By default vLLM
0.32 keeps those of a sliding group only before the last whole block of a prompt
(prefix_cache_retention_interval 0), so an engine alone cannot hit at the end of the last whole chunk,
which may be a block earlier. The engine of the references keeps them everywhere: that changes what
its cache remembers and nothing that it computes.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from .process import EngineProcess

MAX_TOKENS = 8


def request(prompt: list[int], **options: Any) -> dict[str, Any]:
    return {"prompt": prompt, "max_tokens": MAX_TOKENS, "logprobs": 5, **options}


def said(result: dict[str, Any]) -> tuple[Any, ...]:
    """What must be the same."""
    assert result["finished"] and result["finish_reason"] == "length", result
    return (result["tokens"], result["logprobs"])


@dataclasses.dataclass
class Reference:
    """Of one prompt: the engine alone, computing all of it, and after its own hit of `hit_tokens`."""

    prompt: list[int]
    hit_tokens: int
    cold: dict[str, Any]
    hit: dict[str, Any]


def whole_chunks(prompt: list[int], chunk_tokens: int) -> int:
    """Tokens of a prompt that a cache of whole chunks can give, all but the last one token."""
    return min(len(prompt) // chunk_tokens * chunk_tokens, len(prompt) - 1)


def reference_engine(model: Path, log: Path, **options: Any) -> EngineProcess:
    """An engine without a connector whose own prefix cache hits at the end of any block."""
    options = {"prefix_cache_retention_interval": None, "wait": False, **options}
    return EngineProcess(model, log=log, **options)


def take_reference(engine: EngineProcess, prompt: list[int], chunk_tokens: int) -> Reference:
    """REQUIRES: a reference_engine() that has not seen the prompt."""
    cold = engine.generate([request(prompt)])[0]
    assert cold["cached_tokens"] == 0
    hit_tokens = whole_chunks(prompt, chunk_tokens) // chunk_tokens * chunk_tokens
    left = engine.call("trim_prefix_cache", prompt=prompt, tokens=hit_tokens)["left"]
    assert left == hit_tokens, f"the engine's own cache keeps {left} tokens, not {hit_tokens}"
    hit = engine.generate([request(prompt)])[0]
    assert hit["cached_tokens"] == hit_tokens
    return Reference(prompt, hit_tokens, cold, hit)


def differences(results: list[dict[str, Any]], expected: list[dict[str, Any]]) -> list[str]:
    """One line for each result that is not what was expected, to the last bit."""
    lines = []
    for result, want in zip(results, expected, strict=True):
        if said(result) == said(want):
            continue
        where = next(
            (
                i
                for i, (a, b) in enumerate(zip(result["tokens"], want["tokens"], strict=True))
                if a != b or result["logprobs"][i] != want["logprobs"][i]
            ),
            None,
        )
        lines.append(
            f"prompt of {result['prompt_tokens']} tokens, cached {result['cached_tokens']} and "
            f"{want['cached_tokens']}: differs at position {where}: {result['tokens']} "
            f"{result['logprobs'][where]} and {want['tokens']} {want['logprobs'][where]}"
        )
    return lines
