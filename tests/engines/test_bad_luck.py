"""A real vLLM while penstockd is killed, frozen, or not there at all.

No request fails, no output differs from what the engine says alone, and nothing waits for long.
One engine goes through all of it, as an engine in production would. test_restart.py kills the
daemon under one request at a time; here it is about many requests and other kinds of bad luck.
"""

from __future__ import annotations

import dataclasses
import random
import threading
import time
from typing import Any

import models
import pytest
from harness import prompts
from harness.compare import Reference, differences, request, said, take_reference
from harness.daemon import DaemonProcess
from harness.process import EngineProcess

pytestmark = pytest.mark.engine

CHUNK = 256
SIZES = [2900, 700, 1500, 310]
LOAD_TIMEOUT_S = 3.0
CONNECTOR = {
    "decline_slow_loads": False,
    "breaker_min_ms": 100,
    "breaker_max_ms": 500,
    "load_timeout_ms": int(LOAD_TIMEOUT_S * 1000),
}


@pytest.fixture(scope="module")
def references(llama_alone) -> list[Reference]:
    asked = prompts.random_prompts(SIZES, models.LLAMA_VOCABULARY, seed=5)
    return [take_reference(llama_alone, prompt, CHUNK) for prompt in asked]


@pytest.fixture(scope="module")
def others(llama_alone, references) -> list[Reference]:
    """Prompts that share nothing with the others: from its own cache the engine has nothing."""
    rng = random.Random(8)
    sizes = [rng.randrange(300, 2000) for _ in range(8)]
    asked = prompts.random_prompts(sizes, models.LLAMA_VOCABULARY, seed=6)
    return [take_reference(llama_alone, prompt, CHUNK) for prompt in asked]


@pytest.fixture(scope="module")
def side_by_side(llama_alone, references, others) -> list[dict[str, Any]]:
    """What the engine alone says when it is asked everything at once.

    Processors without bf16 round the rows of a batch otherwise than those of one request.
    """
    assert llama_alone.call("reset_prefix_cache")["done"]
    batch = [request(reference.prompt) for reference in references + others]
    return llama_alone.generate(batch, together=True)


@dataclasses.dataclass
class Started:
    """An engine that was started without a daemon, and what it said until one came."""

    engine: EngineProcess
    daemon: DaemonProcess
    results: list[dict[str, Any]]
    counters: dict[str, int]


@pytest.fixture(scope="module")
def starting(llama, module_starter):
    """The daemon, down, and the engine, which starts while the references are taken."""
    daemon = module_starter.daemon()
    daemon.kill()
    connector = {"url": daemon.url, **CONNECTOR}
    return daemon, module_starter.engine(llama, connector=connector, wait=False)


@pytest.fixture(scope="module")
def started(starting, references):
    daemon, engine = starting
    results = engine.generate([request(reference.prompt) for reference in references])
    counters = engine.state()["connector"]["counters"]
    daemon.start()
    return Started(engine, daemon, results, counters)


@pytest.fixture
def engine(started):
    """The engine, connected to a daemon that has nothing, and with nothing of its own."""
    started.daemon.kill()
    clear(started.engine)
    started.daemon.start()
    started.engine.call("wait_connected")
    return started.engine


@pytest.fixture
def daemon(started):
    return started.daemon


def clear(engine: EngineProcess) -> None:
    assert engine.call("drain")["idle"]
    assert engine.call("reset_prefix_cache")["done"]


def counters_of(engine: EngineProcess) -> dict[str, int]:
    return engine.state()["connector"]["counters"]


def grown(engine: EngineProcess, before: dict[str, int], name: str) -> int:
    return counters_of(engine).get(name, 0) - before.get(name, 0)


def test_engine_without_a_daemon_is_itself(started, references):
    assert differences(started.results, [reference.cold for reference in references]) == []
    assert started.counters.get("lookups", 0) == 0
    assert started.counters.get("store_chunks", 0) == 0


def test_daemon_that_comes_later_is_used(engine, references):
    reference = references[0]
    engine.generate([request(reference.prompt)])
    clear(engine)
    result = engine.generate([request(reference.prompt)])[0]
    assert result["cached_tokens"] == reference.hit_tokens
    assert differences([result], [reference.hit]) == []


def test_daemon_killed_under_many_requests(engine, daemon, references, others, side_by_side):
    """Requests in all stages at once: lookups, loads, stores, prefill, decode."""
    rng = random.Random(7)
    asked = references + others
    batch = [request(reference.prompt) for reference in asked]
    for _ in range(4):
        engine.generate(batch, together=True)
        clear(engine)
        timer = threading.Timer(rng.random() * references[0].cold["seconds"] * 2, daemon.kill)
        timer.start()
        results = engine.generate(batch, together=True)
        timer.join()
        # Each computed all of it, or all that the daemon did not have.
        for result, reference, beside in zip(results, asked, side_by_side, strict=True):
            answers = (reference.cold["tokens"], reference.hit["tokens"], beside["tokens"])
            assert said(result)[0] in answers, (result, answers)
        clear(engine)
        daemon.start()
        engine.call("wait_connected")
    # Whatever happened, the engine still says what it should.
    result = engine.generate([request(references[0].prompt)])[0]
    assert said(result) in (said(references[0].cold), said(references[0].hit))


def test_frozen_daemon_costs_a_bounded_moment_once(engine, daemon, references):
    engine.generate([request(reference.prompt) for reference in references])
    assert engine.call("drain")["idle"]
    before = counters_of(engine)
    daemon.freeze()
    asked = 0
    for _ in range(3):
        engine.call("reset_prefix_cache")
        results = engine.generate([request(reference.prompt) for reference in references])
        assert differences(results, [reference.cold for reference in references]) == []
        asked += len(results)
    # Two lookups run into their timeout, then the breaker is open and nobody is held up.
    assert grown(engine, before, "lookups_late") <= 3
    assert grown(engine, before, "lookups_skipped") >= asked - 3
    daemon.thaw()


def test_load_that_freezes_midway_is_recomputed_in_time(engine, daemon, references):
    """The daemon answers the lookup and then stands still: the load's deadline ends it."""
    reference = references[0]
    engine.generate([request(reference.prompt)])
    clear(engine)
    before = counters_of(engine)
    engine.call("freeze_before_load", pid=daemon.pid)
    begin = time.monotonic()
    result = engine.generate([request(reference.prompt)])[0]
    waited = time.monotonic() - begin
    daemon.thaw()
    assert differences([result], [reference.cold]) == []
    assert grown(engine, before, "loads_failed") == 1
    assert waited < LOAD_TIMEOUT_S + 10 * reference.cold["seconds"] + 5.0
    assert engine.call("drain")["idle"]
    state = engine.state()
    assert (state["blocks_used"], state["requests"]) == (0, 0)
