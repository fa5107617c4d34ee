"""A real vLLM with the connector under chunked prefill, preemption, aborts and shared prefixes."""

from __future__ import annotations

import models
import pytest
from harness import prompts
from harness.compare import differences, request, take_reference, whole_chunks
from harness.process import EngineProcess

pytestmark = pytest.mark.engine

CHUNK = 256
CONNECTOR = {"decline_slow_loads": False, "lookup_timeout_ms": 10_000, "load_timeout_ms": 60_000}


@pytest.fixture(scope="module")
def llama(model_cache):
    return models.llama(1, model_cache)


def test_chunked_prefill_stores_and_pulls_the_same(llama, place, make_daemon, start_engine):
    """Steps of 400 tokens end inside blocks and chunks."""
    options = {"max_num_batched_tokens": 400}
    asked = prompts.random_prompts([2900, 1000, 401, 300], models.LLAMA_VOCABULARY, seed=8)
    with EngineProcess(llama, log=place / "reference.log", **options) as engine:
        references = [take_reference(engine, prompt, CHUNK) for prompt in asked]
    daemon = make_daemon()
    connector = {"url": daemon.url, **CONNECTOR}
    first = start_engine(llama, connector=connector, **options)
    cold = first.generate([request(prompt) for prompt in asked])
    assert differences(cold, [reference.cold for reference in references]) == []
    assert first.call("drain")["idle"]
    counters = first.state()["connector"]["counters"]
    assert counters["chunks_stored"] == sum(len(prompt) // CHUNK for prompt in asked)
    first.kill()
    second = start_engine(llama, connector=connector, **options)
    warm = second.generate([request(prompt) for prompt in asked])
    assert [r["cached_tokens"] for r in warm] == [whole_chunks(p, CHUNK) for p in asked]
    assert differences(warm, [reference.hit for reference in references]) == []


def test_preempted_and_aborted_requests_leave_nothing_wrong_behind(
    llama, place, make_daemon, start_engine
):
    """More requests than the KV memory holds, some aborted on the way, several times over."""
    tight = {"kv_gib": 0.02, "max_num_batched_tokens": 1024}  # 40 blocks of 128 tokens.
    asked = prompts.random_prompts([700, 900, 800, 1000], models.LLAMA_VOCABULARY, seed=9)
    with EngineProcess(llama, log=place / "tight.log", **tight) as engine:
        references = [take_reference(engine, prompt, CHUNK) for prompt in asked]
    daemon = make_daemon()
    engine = start_engine(llama, connector={"url": daemon.url, **CONNECTOR}, **tight)
    batch = [request(prompt, max_tokens=500) for prompt in asked]
    for _ in range(2):
        results = engine.generate(batch, together=True)
        assert all(len(r["tokens"]) == 500 and r["finish_reason"] == "length" for r in results)
    assert engine.state()["preemptions"] > 0
    seconds = max(result["seconds"] for result in results)
    for share in (0.001, 0.01, 0.05, 0.2, 0.5):
        engine.call("reset_prefix_cache")
        impatient = [{**asking, "abort_after_s": seconds * share} for asking in batch[:3]]
        results = engine.generate([*impatient, batch[3]], together=True)
        assert results[3]["finished"] and results[3]["finish_reason"] == "length"
    assert engine.call("drain")["idle"]
    state = engine.state()
    assert (state["blocks_used"], state["requests"]) == (0, 0)
    assert state["connector"]["pinned_blocks"] == 0
    # What all of this stored is right: a fresh engine pulls it.
    engine.kill()
    fresh = start_engine(llama, connector={"url": daemon.url, **CONNECTOR}, **tight)
    results = fresh.generate([request(prompt) for prompt in asked])
    assert [r["cached_tokens"] for r in results] == [ref.hit_tokens for ref in references]
    tokens = [r["tokens"] for r in results]
    assert tokens == [reference.hit["tokens"] for reference in references]


def test_salts_keep_prompts_apart_across_engines(llama, make_daemon, start_engine):
    daemon = make_daemon()
    connector = {"url": daemon.url, **CONNECTOR}
    (prompt,) = prompts.random_prompts([1000], models.LLAMA_VOCABULARY, seed=10)
    first = start_engine(llama, connector=connector)
    first.generate([request(prompt, cache_salt="one")])
    assert first.call("drain")["idle"]
    first.kill()
    second = start_engine(llama, connector=connector)
    salts = ["two", None, "one"]
    results = second.generate([request(prompt, cache_salt=salt) for salt in salts])
    assert [result["cached_tokens"] for result in results] == [0, 0, 768]
