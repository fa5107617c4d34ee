"""vLLM's OpenAI server with the connector, and two ranks: engines of several processes."""

from __future__ import annotations

import time

import models
import pytest
from harness import prompts
from harness.compare import request, whole_chunks
from harness.server import ServerProcess

pytestmark = pytest.mark.engine

CHUNK = 256
CONNECTOR = {"decline_slow_loads": False, "lookup_timeout_ms": 10_000, "load_timeout_ms": 60_000}


def wait_for_metric(server: ServerProcess, name: str, value: float) -> dict[str, float]:
    deadline = time.monotonic() + 60
    while (metrics := server.metrics()).get(name, 0.0) < value and time.monotonic() < deadline:
        time.sleep(0.1)
    return metrics


def test_server_answers_from_what_another_engine_stored(llama, place, starter):
    daemon = starter.daemon()
    connector = {"url": daemon.url, **CONNECTOR}
    asked = prompts.random_prompts([1000, 2600], models.LLAMA_VOCABULARY, seed=11)
    new = prompts.random_prompts([800], models.LLAMA_VOCABULARY, seed=12)[0]
    engine = starter.engine(llama, connector=connector)
    cold = engine.generate([request(prompt) for prompt in asked])
    assert engine.call("drain")["idle"]
    engine.kill()
    with ServerProcess(llama, log=place / "server.log", connector=connector) as server:
        warm = [server.complete(prompt) for prompt in asked]
        tokens = sum(whole_chunks(prompt, CHUNK) for prompt in asked)
        metrics = wait_for_metric(server, "vllm:penstock_pulled_tokens_total", tokens)
        assert metrics["vllm:penstock_pulled_tokens_total"] == tokens
        assert metrics["vllm:penstock_pulled_chunks_total"] == tokens // CHUNK
        assert metrics["vllm:penstock_loads_failed_total"] == 0
        assert metrics["vllm:external_prefix_cache_hits_total"] == tokens
        assert metrics["vllm:prompt_tokens_cached_by_source_total/host"] == tokens
        assert metrics["vllm:penstock_stored_chunks_total"] == 0
        server.complete(new)
        chunks = len(new) // CHUNK
        metrics = wait_for_metric(server, "vllm:penstock_stored_chunks_total", chunks)
        assert metrics["vllm:penstock_stored_chunks_total"] == chunks
        assert metrics["vllm:penstock_pulled_tokens_total"] == tokens
        server.reset_cache()
        anew = server.complete(asked[0])
        chunks += len(asked[0]) // CHUNK
        metrics = wait_for_metric(server, "vllm:penstock_stored_chunks_total", chunks)
        assert metrics["vllm:penstock_stored_chunks_total"] == chunks
        assert metrics["vllm:penstock_pulled_tokens_total"] == tokens
        assert anew["choices"][0]["token_ids"] == cold[0]["tokens"]
        daemon.kill()
        again = server.complete(asked[0][:500] + asked[1][:500])
        assert len(again["choices"][0]["token_ids"]) == 8
    for before, after in zip(cold, warm, strict=True):
        assert before["tokens"] == after["choices"][0]["token_ids"]


@pytest.mark.long
def test_two_ranks_store_and_pull_their_own_halves(llama, starter):
    """Each rank has half the heads and chunks of its own; a rank's half alone is no hit."""
    daemon = starter.daemon()
    engine = starter.engine(
        llama,
        connector={"url": daemon.url, **CONNECTOR},
        tensor_parallel_size=2,
        environment={"VLLM_CPU_SIM_MULTI_NUMA": "1"},
    )
    asked = prompts.random_prompts([1000, 300], models.LLAMA_VOCABULARY, seed=13)
    cold = engine.generate([request(prompt) for prompt in asked])
    assert engine.call("drain")["idle"]
    chunks = sum(len(prompt) // CHUNK for prompt in asked)
    assert engine.state()["connector"]["counters"]["chunks_stored"] == 2 * chunks
    assert engine.call("reset_prefix_cache")["done"]
    warm = engine.generate([request(prompt) for prompt in asked])
    assert [r["cached_tokens"] for r in warm] == [whole_chunks(p, CHUNK) for p in asked]
    assert [r["tokens"] for r in warm] == [r["tokens"] for r in cold]
    assert engine.state()["connector"]["counters"]["chunks_pulled"] == 2 * chunks
