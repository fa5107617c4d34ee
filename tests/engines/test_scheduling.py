"""A real vLLM with the connector under chunked prefill, preemption and aborts.

One engine with little KV memory and short steps goes through all of it, is killed, and a new one
pulls what it stored.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import models
import pytest
from harness import prompts
from harness.compare import (
    Reference,
    differences,
    reference_engine,
    request,
    take_reference,
    whole_chunks,
)
from harness.daemon import DaemonProcess
from harness.process import DATA_TYPE, EngineProcess

pytestmark = pytest.mark.engine

CHUNK = 256
CONNECTOR = {"decline_slow_loads": False, "lookup_timeout_ms": 10_000, "load_timeout_ms": 60_000}
# Steps of 400 tokens end inside blocks and chunks. 39 blocks of 128 tokens hold the prompts of MANY,
# which take 38, but not all that follows them.
KV_GIB = 0.02 if DATA_TYPE == "bfloat16" else 0.04
OPTIONS: dict[str, Any] = {"max_num_batched_tokens": 400, "kv_gib": KV_GIB}
LONG = [2900, 1000, 401, 300]
MANY = [1000, 1200, 1100, 1300]
ANSWER = 200


@dataclasses.dataclass
class Stored:
    """What the engine alone says, and the engine with the connector after it was asked once."""

    long: list[Reference]
    many: list[Reference]
    daemon: DaemonProcess
    engine: EngineProcess
    cold: list[dict[str, Any]]
    counters: dict[str, int]

    @property
    def connector(self) -> dict[str, Any]:
        return {"url": self.daemon.url, **CONNECTOR}


@pytest.fixture(scope="module")
def stored(llama, place, module_starter):
    asked = prompts.random_prompts([*LONG, *MANY], models.LLAMA_VOCABULARY, seed=8)
    daemon = module_starter.daemon()
    connector = {"url": daemon.url, **CONNECTOR}
    engine = module_starter.engine(llama, connector=connector, wait=False, **OPTIONS)
    with reference_engine(llama, place / "short-steps.log", **OPTIONS) as alone:
        references = [take_reference(alone, prompt, CHUNK) for prompt in asked]
    long, many = references[: len(LONG)], references[len(LONG) :]
    cold = engine.generate([request(reference.prompt) for reference in long])
    assert engine.call("drain")["idle"]
    return Stored(long, many, daemon, engine, cold, engine.state()["connector"]["counters"])


def test_chunked_prefill_stores_the_same(stored):
    assert differences(stored.cold, [reference.cold for reference in stored.long]) == []
    chunks = sum(len(reference.prompt) // CHUNK for reference in stored.long)
    assert stored.counters["chunks_stored"] == chunks


@pytest.fixture(scope="module")
def stressed(stored):
    """More requests than the KV memory holds, some aborted on the way, several times over."""
    engine = stored.engine
    batch = [request(reference.prompt, max_tokens=ANSWER) for reference in stored.many]
    whole = [engine.generate(batch, together=True) for _ in range(2)]
    preemptions = engine.state()["preemptions"]
    seconds = max(result["seconds"] for result in whole[-1])
    spared = []
    for share in (0.001, 0.01, 0.05, 0.2, 0.5):
        engine.call("reset_prefix_cache")
        impatient = [{**asking, "abort_after_s": seconds * share} for asking in batch[:3]]
        spared.append(engine.generate([*impatient, batch[3]], together=True)[3])
    assert engine.call("drain")["idle"]
    return {"results": [*whole[0], *whole[1], *spared], "preemptions": preemptions}


def test_preempted_and_aborted_requests_leave_nothing_behind(stored, stressed):
    for result in stressed["results"]:
        assert len(result["tokens"]) == ANSWER and result["finish_reason"] == "length"
    assert stressed["preemptions"] > 0
    state = stored.engine.state()
    assert (state["blocks_used"], state["requests"]) == (0, 0)
    assert state["connector"]["pinned_blocks"] == 0


def test_what_all_of_this_stored_is_right(stored, stressed, llama, starter):
    """A new engine pulls it, in short steps too. Comes last: it kills the other one."""
    stored.engine.kill()
    fresh = starter.engine(llama, connector=stored.connector, **OPTIONS)
    warm = fresh.generate([request(reference.prompt) for reference in stored.long])
    assert [r["cached_tokens"] for r in warm] == [
        whole_chunks(reference.prompt, CHUNK) for reference in stored.long
    ]
    assert differences(warm, [reference.hit for reference in stored.long]) == []
    warm = fresh.generate([request(reference.prompt) for reference in stored.many])
    assert [r["cached_tokens"] for r in warm] == [ref.hit_tokens for ref in stored.many]
    tokens = [result["tokens"] for result in warm]
    assert tokens == [reference.hit["tokens"] for reference in stored.many]
