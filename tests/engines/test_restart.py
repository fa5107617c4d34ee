"""A real vLLM stores prompts in penstockd, is killed, starts again and pulls them back.

For each model: an engine alone (the reference), an engine with the connector that computes and
stores, and after kill -9 a new one that pulls. Bits are compared, not texts.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import models
import pytest
from harness import prompts
from harness.compare import (
    MAX_TOKENS,
    Reference,
    differences,
    request,
    take_reference,
    whole_chunks,
)
from harness.daemon import DaemonProcess
from harness.process import EngineProcess, connector_config

pytestmark = pytest.mark.engine

CHUNK = 256
PATIENT = {"decline_slow_loads": False, "lookup_timeout_ms": 10_000, "load_timeout_ms": 60_000}


@dataclasses.dataclass
class World:
    """One model, its prompts, what the engine alone says, and a penstockd that has seen them."""

    model: Path
    daemon: DaemonProcess
    references: list[Reference]
    cold: list[dict[str, Any]]
    stored: dict[str, Any]
    options: dict[str, Any]

    @property
    def connector(self) -> dict[str, Any]:
        return {"url": self.daemon.url, **PATIENT}

    @property
    def requests(self) -> list[dict[str, Any]]:
        return [request(reference.prompt) for reference in self.references]


def make_world(
    name: str, place: Path, penstockd: Path, cache: str | None, count: int, **options: Any
) -> World:
    model = models.directory_of(name, cache=cache)
    sizes = prompts.lengths(count, 300, 3000, seed=1)
    if name == "llama":
        asked = prompts.random_prompts(sizes, models.LLAMA_VOCABULARY, seed=2)
    else:
        asked = prompts.text_prompts(model, sizes, seed=2)
    with EngineProcess(model, log=place / "reference.log", **options) as engine:
        references = [take_reference(engine, prompt, CHUNK) for prompt in asked]
    directory = place / "daemon"
    directory.mkdir()
    world = World(
        model, DaemonProcess(penstockd, directory, arena="2GiB"), references, [], {}, options
    )
    engine = EngineProcess(model, log=place / "first.log", connector=world.connector, **options)
    try:
        world.cold = engine.generate(world.requests)
        assert engine.call("drain")["idle"]
        world.stored = engine.state()
    finally:
        engine.kill()
    return world


@pytest.fixture(scope="module", params=["llama", pytest.param("gemma", marks=pytest.mark.long)])
def world(request, pytestconfig, place, penstockd, model_cache):
    directory = place / request.param
    directory.mkdir()
    made = make_world(
        request.param, directory, penstockd, model_cache, pytestconfig.getoption("--prompts")
    )
    yield made
    made.daemon.stop()


def chunks_needed(world: World) -> int:
    """Over all prompts: whole chunks of the full groups, and those in the window of the others."""
    total = 0
    for window in world.stored["connector"]["windows"]:
        for reference in world.references:
            chunks = len(reference.prompt) // CHUNK
            total += min(chunks, window) if window else chunks
    return total


def test_computing_and_storing_changes_no_bit(world):
    alone = [reference.cold for reference in world.references]
    assert differences(world.cold, alone) == []
    assert all(result["cached_tokens"] == 0 for result in world.cold)


def test_every_whole_chunk_was_stored(world):
    counters = world.stored["connector"]["counters"]
    # The generated tokens complete a chunk here and there; the last one's KV is never computed.
    chunks = sum((len(ref.prompt) + MAX_TOKENS - 1) // CHUNK for ref in world.references)
    groups = len(world.stored["groups"])
    assert counters["chunks_stored"] == chunks * groups
    assert counters["chunks_not_stored"] == 0
    assert world.stored["blocks_used"] == 0


def test_restarted_engine_pulls_every_whole_chunk_and_says_the_same(world, start_engine):
    engine = start_engine(world.model, connector=world.connector, **world.options)
    results = engine.generate(world.requests)
    state = engine.state()
    for result, reference in zip(results, world.references, strict=True):
        assert result["cached_tokens"] == whole_chunks(reference.prompt, CHUNK)
    counters = state["connector"]["counters"]
    assert counters["tokens_pulled"] == sum(
        whole_chunks(reference.prompt, CHUNK) for reference in world.references
    )
    assert counters["chunks_pulled"] == chunks_needed(world)
    assert counters.get("loads_failed", 0) == 0
    exact = [r for r in world.references if len(r.prompt) % CHUNK]
    assert (
        differences(
            [r for r, ref in zip(results, world.references, strict=True) if ref in exact],
            [reference.hit for reference in exact],
        )
        == []
    )
    # Nothing is stored a second time, and nothing is left behind.
    assert engine.call("drain")["idle"]
    state = engine.state()
    assert state["connector"]["counters"].get("chunks_stored", 0) == 0
    assert (state["blocks_used"], state["requests"]) == (0, 0)


def test_noise_instead_of_what_was_stored_is_noticed(world, start_engine):
    config = connector_config(world.connector)
    config["kv_connector"] = "NoiseConnector"
    config["kv_connector_module_path"] = "harness.noise_connector"
    engine = start_engine(world.model, kv_transfer_config=config, **world.options)
    results = engine.generate(world.requests)
    for result, reference in zip(results, world.references, strict=True):
        assert result["cached_tokens"] == whole_chunks(reference.prompt, CHUNK)
        assert differences([result], [reference.hit]) != []


def test_hybrid_model_is_tested_as_one(world):
    specs = [group["spec"] for group in world.stored["groups"]]
    if world.model.name.startswith("gemma"):
        assert specs.count("SlidingWindowSpec") == 5 and specs.count("FullAttentionSpec") == 1
        assert sorted(world.stored["connector"]["windows"]) == [0, 2, 2, 2, 2, 2]
    else:
        assert specs == ["FullAttentionSpec"]
