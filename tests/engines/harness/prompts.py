"""Prompts for the engine tests: token ids, different from their first block on."""

from __future__ import annotations

import random
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[3]


def lengths(count: int, shortest: int, longest: int, seed: int) -> list[int]:
    """`count` lengths, the shortest and the longest among them, spread evenly by their logarithm."""
    rng = random.Random(seed)
    middle = [round(shortest * (longest / shortest) ** rng.random()) for _ in range(count - 2)]
    return [shortest, longest, *middle]


def random_prompts(sizes: list[int], vocabulary: int, seed: int) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(16, vocabulary) for _ in range(size)] for size in sizes]


def text_prompts(model: Path, sizes: list[int], seed: int) -> list[list[int]]:
    """Real text, each prompt from another place: the model's own tokenizer, <bos> first."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    files = [
        *sorted((_ROOT / "deploy/quickstart/text").glob("*.txt")),
        _ROOT / "LICENSE",
        *sorted((_ROOT / "docs").rglob("*.md")),
    ]
    text = "\n".join(file.read_text(encoding="utf-8") for file in files)
    ids = tokenizer.encode(text, add_special_tokens=False)
    rng = random.Random(seed)
    starts = rng.sample(range(len(ids) - max(sizes)), len(sizes))
    return [
        [tokenizer.bos_token_id, *ids[start : start + size - 1]]
        for start, size in zip(starts, sizes, strict=True)
    ]
