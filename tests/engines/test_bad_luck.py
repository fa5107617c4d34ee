"""A real vLLM while penstockd is killed, frozen, not there at all, or another model's.

No request fails, no output differs from what the engine says alone, and nothing waits for long.
"""

from __future__ import annotations

import random
import threading
import time

import models
import pytest
from harness import prompts
from harness.compare import Reference, differences, request, said, take_reference
from harness.process import EngineProcess

pytestmark = pytest.mark.engine

CHUNK = 256
SIZES = [2900, 700, 1500, 310]
CONNECTOR = {"decline_slow_loads": False, "breaker_min_ms": 100, "breaker_max_ms": 500}


@pytest.fixture(scope="module")
def llama(model_cache):
    return models.llama(1, model_cache)


@pytest.fixture(scope="module")
def references(llama, place) -> list[Reference]:
    asked = prompts.random_prompts(SIZES, models.LLAMA_VOCABULARY, seed=5)
    with EngineProcess(llama, log=place / "reference.log") as engine:
        return [take_reference(engine, prompt, CHUNK) for prompt in asked]


def one_of(result, *wanted) -> bool:
    return any(said(result) == said(want) for want in wanted)


def test_daemon_killed_at_random_moments(
    pytestconfig, llama, references, make_daemon, start_engine
):
    """Each time: the chunks are there, the request is under way, kill -9 somewhere in it."""
    rng = random.Random(6)
    daemon = make_daemon()
    engine = start_engine(llama, connector={"url": daemon.url, **CONNECTOR})
    pulled = computed = 0
    for kill in range(pytestconfig.getoption("--kills")):
        reference = references[kill % len(references)]
        engine.generate([request(reference.prompt)])
        assert engine.call("drain")["idle"]
        assert engine.call("reset_prefix_cache")["done"]
        seconds = reference.cold["seconds"] * rng.random()
        timer = threading.Timer(seconds, daemon.kill)
        timer.start()
        result = engine.generate([request(reference.prompt)])[0]
        timer.join()
        # Computed whole or pulled whole: nothing else is possible.
        assert one_of(result, reference.cold, reference.hit), differences([result], [reference.hit])
        pulled += result["cached_tokens"] > 0
        computed += result["cached_tokens"] == 0
        assert engine.call("drain")["idle"]
        assert engine.call("reset_prefix_cache")["done"]
        daemon.start()
        engine.call("wait_connected")
    print(f"\n{pulled} times pulled, {computed} times computed")
    state = engine.state()
    assert (state["blocks_used"], state["requests"]) == (0, 0)


def test_daemon_killed_under_many_requests(llama, references, make_daemon, start_engine):
    """Requests in all stages at once: lookups, loads, stores, prefill, decode."""
    rng = random.Random(7)
    daemon = make_daemon()
    engine = start_engine(
        llama, connector={"url": daemon.url, **CONNECTOR}, max_num_batched_tokens=1024
    )
    batch = [request(reference.prompt) for reference in references] + [
        request(reference.prompt[: rng.randrange(300, 2000)]) for reference in references * 2
    ]
    for _ in range(4):
        engine.generate(batch, together=True)
        engine.call("drain")
        engine.call("reset_prefix_cache")
        timer = threading.Timer(rng.random() * references[0].cold["seconds"] * 2, daemon.kill)
        timer.start()
        results = engine.generate(batch, together=True)
        timer.join()
        assert all(r["finished"] and r["finish_reason"] == "length" for r in results)
        assert engine.call("drain")["idle"]
        assert engine.call("reset_prefix_cache")["done"]
        daemon.start()
        engine.call("wait_connected")
    # Whatever happened, the engine still says what it should.
    result = engine.generate([request(references[0].prompt)])[0]
    assert one_of(result, references[0].cold, references[0].hit)


def test_without_a_daemon_the_engine_is_itself_and_one_that_comes_later_is_used(
    llama, references, make_daemon, start_engine
):
    daemon = make_daemon()
    daemon.kill()
    engine = start_engine(llama, connector={"url": daemon.url, **CONNECTOR})
    results = engine.generate([request(reference.prompt) for reference in references])
    assert differences(results, [reference.cold for reference in references]) == []
    counters = engine.state()["connector"]["counters"]
    assert counters.get("lookups", 0) == 0 and counters.get("store_chunks", 0) == 0
    daemon.start()
    engine.call("wait_connected")
    engine.call("reset_prefix_cache")
    engine.generate([request(references[0].prompt)])
    assert engine.call("drain")["idle"]
    engine.call("reset_prefix_cache")
    result = engine.generate([request(references[0].prompt)])[0]
    assert result["cached_tokens"] == references[0].hit_tokens
    assert differences([result], [references[0].hit]) == []


def test_frozen_daemon_costs_a_bounded_moment_once(llama, references, make_daemon, start_engine):
    daemon = make_daemon()
    connector = {"url": daemon.url, "lookup_timeout_ms": 100, "decline_slow_loads": False}
    engine = start_engine(llama, connector=connector)
    engine.generate([request(reference.prompt) for reference in references])
    assert engine.call("drain")["idle"]
    daemon.freeze()
    extra = []
    for _ in range(3):
        engine.call("reset_prefix_cache")
        results = engine.generate([request(reference.prompt) for reference in references])
        assert differences(results, [reference.cold for reference in references]) == []
        extra += [r["ttft"] for r in results]
    counters = engine.state()["connector"]["counters"]
    # Two lookups run into their timeout, then the breaker is open and nobody is held up.
    assert counters["lookups_late"] <= 3
    assert counters["lookups_skipped"] >= len(extra) - 3
    daemon.thaw()


def test_load_that_freezes_midway_is_recomputed_in_time(
    llama, references, make_daemon, start_engine
):
    """The daemon answers the lookup and then stands still: the load's deadline ends it."""
    daemon = make_daemon()
    connector = {"url": daemon.url, "load_timeout_ms": 500, "lookup_timeout_ms": 5000}
    connector["decline_slow_loads"] = False
    engine = start_engine(llama, connector=connector)
    reference = references[0]
    engine.generate([request(reference.prompt)])
    assert engine.call("drain")["idle"]
    engine.call("reset_prefix_cache")
    engine.call("freeze_before_load", pid=daemon.pid)
    begin = time.monotonic()
    result = engine.generate([request(reference.prompt)])[0]
    waited = time.monotonic() - begin
    daemon.thaw()
    assert differences([result], [reference.cold]) == []
    counters = engine.state()["connector"]["counters"]
    assert counters["loads_failed"] == 1
    assert waited < 0.5 + 10 * reference.cold["seconds"] + 5.0
    state = engine.state()
    assert (state["requests"], engine.call("drain")["idle"]) == (0, True)


def test_two_models_never_see_each_others_chunks(
    llama, references, model_cache, make_daemon, start_engine, place
):
    other = models.llama(2, model_cache)
    daemon = make_daemon()
    connector = {"url": daemon.url, **CONNECTOR, "lookup_timeout_ms": 10_000}
    asked = [request(reference.prompt) for reference in references]
    with EngineProcess(other, log=place / "other.log") as alone:
        right = alone.generate(asked)
    first = start_engine(llama, connector=connector)
    first.generate(asked)
    assert first.call("drain")["idle"]
    second = start_engine(other, connector=connector)
    results = second.generate(asked)
    assert all(result["cached_tokens"] == 0 for result in results)
    assert differences(results, right) == []
    assert second.call("drain")["idle"]
    counters = second.state()["connector"]["counters"]
    assert counters["chunks_stored"] == counters["store_chunks"] > 0
    assert counters.get("chunks_existed", 0) == 0
    # Both are there now, side by side.
    first.call("reset_prefix_cache")
    results = first.generate(asked)
    assert [r["cached_tokens"] for r in results] == [ref.hit_tokens for ref in references]
    assert differences(results, [reference.hit for reference in references]) == []
