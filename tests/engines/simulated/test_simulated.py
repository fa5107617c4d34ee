"""vLLM's scheduler with the connector, under every event the interface allows.

What must hold in all of them: no step reads KV that is not that of its tokens, every request that
was not aborted ends with what the model says, no block is leaked, block 0 is never touched.
"""

from __future__ import annotations

import copy
import random
import time
import types

import penstock
import pytest
from penstock import Code

pytestmark = pytest.mark.engine

KINDS = {
    "hybrid": {},
    "full attention": {"window": None},
    "window not a multiple of the chunk": {"window": 40},
    "window shorter than a chunk": {"window": 20},
    "two ranks": {"world_size": 2},
    "chunked prefill": {"max_batched_tokens": 48},
    "few blocks": {"num_blocks": 90, "max_batched_tokens": 128},
}


def prompt(rng, length):
    return [rng.randrange(1000) for _ in range(length)]


def check_end(engine, expected):
    engine.run()
    for name, tokens in expected.items():
        result = engine.finished[name]
        assert result.reason == "length", (name, result)
        assert result.tokens == tokens, name
    assert engine.blocks_in_use == 0
    assert not engine.scheduler.requests
    engine.check_null_block()
    side = engine.connector._scheduler
    assert side.pins.count == 0
    assert not side._requests and not side._storing and not side._job_identities
    for worker in engine.workers:
        assert not worker._worker._loads and not worker._worker._stores


def pulled(engine):
    return engine.connector._scheduler.counters["tokens_pulled"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [32, 63, 65, 300, 704])
def test_restarted_engine_pulls_every_whole_chunk(daemon, engines, kind, length):
    tokens = prompt(random.Random(length), length)
    cold = engines(**KINDS[kind])
    cold.add("r", tokens)
    check_end(cold, {"r": cold.expect(tokens)})
    assert pulled(cold) == 0
    warm = engines(**KINDS[kind])
    warm.add("r", tokens)
    check_end(warm, {"r": warm.expect(tokens)})
    assert pulled(warm) == min(length // 32 * 32, length - 1)
    assert daemon.reservations == set()


def test_stores_are_complete_or_not_at_all_under_chunked_prefill(daemon, engines):
    """However the prompt is cut into steps, the same chunks are stored."""
    tokens = prompt(random.Random(1), 600)
    counts = []
    for batched in (48, 112, 1024):
        daemon.chunks.clear()
        engine = engines(max_batched_tokens=batched)
        engine.add("r", tokens)
        check_end(engine, {"r": engine.expect(tokens)})
        counts.append(len(daemon.chunks))
    assert counts[0] == counts[1] == counts[2] == 3 * 18


def test_longer_prompt_starts_from_the_shorter_ones_chunks(daemon, engines):
    tokens = prompt(random.Random(2), 500)
    first = engines()
    first.add("r", tokens[:200])
    check_end(first, {"r": first.expect(tokens[:200])})
    second = engines()
    second.add("r", tokens)
    check_end(second, {"r": second.expect(tokens)})
    assert pulled(second) == 192


def test_load_goes_on_from_the_engines_own_prefix(daemon, engines):
    """The local prefix ends inside a chunk: its blocks are shared, and must stay as they are."""
    tokens = prompt(random.Random(3), 400)
    other = tokens[:208] + prompt(random.Random(4), 100)
    first = engines()
    first.add("r", tokens)
    check_end(first, {"r": first.expect(tokens)})
    second = engines()
    daemon.fault = lambda name, key: Code.MISS if name == "load" else None
    second.add("a", other)
    check_end(second, {"a": second.expect(other)})
    daemon.fault = lambda name, key: None
    before = pulled(second)
    second.add("b", tokens)
    check_end(second, {"b": second.expect(tokens)})
    assert pulled(second) - before == 384 - 208


def test_two_groups_of_requests_share_one_load(daemon, engines):
    tokens = prompt(random.Random(5), 300)
    first = engines()
    first.add("r", tokens)
    check_end(first, {"r": first.expect(tokens)})
    second = engines()
    names = [f"r{i}" for i in range(5)]
    for name in names:
        second.add(name, tokens)
    check_end(second, dict.fromkeys(names, second.expect(tokens)))


@pytest.mark.parametrize("code", [Code.MISS, Code.CHECKSUM_MISMATCH, Code.DEADLINE_EXCEEDED])
@pytest.mark.parametrize("which", ["first", "middle", "last"])
@pytest.mark.parametrize("kind", ["hybrid", "full attention", "two ranks"])
def test_chunk_that_is_lost_after_the_lookup_is_recomputed(daemon, engines, kind, which, code):
    tokens = prompt(random.Random(6), 330)
    first = engines(**KINDS[kind])
    first.add("r", tokens)
    check_end(first, {"r": first.expect(tokens)})
    loads = []
    chunks = 10 if kind == "full attention" else 14
    position = {"first": 1, "middle": chunks // 2, "last": chunks}[which]

    def fault(name, key):
        if name != "load":
            return None
        loads.append(key)
        return code if len(loads) == position else None

    daemon.fault = fault
    second = engines(**KINDS[kind])
    second.add("r", tokens)
    check_end(second, {"r": second.expect(tokens)})
    counters = second.connector._scheduler.counters
    assert len(loads) >= chunks
    assert counters["loads_failed"] == 1 and counters["loads"] == 1


def test_failed_load_never_fails_the_request_whatever_the_policy_says(daemon, engines):
    tokens = prompt(random.Random(7), 330)
    first = engines()
    first.add("r", tokens)
    check_end(first, {"r": first.expect(tokens)})
    daemon.fault = lambda name, key: Code.CHECKSUM_MISMATCH if name == "load" else None
    for policy in ("fail", "recompute", None):
        engine = engines(policy=policy)
        engine.add("r", tokens)
        check_end(engine, {"r": engine.expect(tokens)})


def test_daemon_that_is_not_there_changes_nothing(daemon, engines):
    tokens = prompt(random.Random(8), 500)
    alone = engines(extra=None)
    alone.add("r", tokens)
    alone.run()
    daemon.kill()
    engine = engines()
    engine.add("r", tokens)
    check_end(engine, {"r": alone.finished["r"].tokens})
    assert engine.steps == alone.steps
    assert daemon.log == []


def test_attached_but_empty_takes_no_more_steps_with_computation(daemon, engines):
    tokens = prompt(random.Random(9), 500)
    alone = engines(extra=None)
    alone.add("r", tokens)
    alone.run()
    engine = engines({"chunk_tokens": 32, "store": False})
    engine.add("r", tokens)
    check_end(engine, {"r": alone.finished["r"].tokens})
    assert engine.steps == alone.steps


@pytest.mark.parametrize("said", [("mm_features", ["image"]), ("resumable", True)], ids=str)
@pytest.mark.parametrize("trusted", [False, True])
def test_prompt_with_an_image_is_left_alone_unless_media_names_are_trusted(
    daemon, engines, trusted, said
):
    """Its block hashes may hold what a client calls the image, whatever it shows."""
    tokens = prompt(random.Random(22), 330)
    for pulls in (0, 320 if trusted else 0):
        engine = engines(
            {"chunk_tokens": 32, "decline_slow_loads": False, "trust_media_ids": trusted}
        )
        hear_of = engine.connector.on_new_request

        def with_image(request, hear_of=hear_of):
            # One that is there, or one that a stream of input may bring later.
            setattr(request, *said)
            hear_of(request)
            setattr(request, said[0], type(said[1])())  # The model has no encoder for it.

        engine.connector.on_new_request = with_image
        engine.add("r", tokens)
        check_end(engine, {"r": engine.expect(tokens)})
        assert pulled(engine) == pulls
    assert bool(daemon.chunks) == trusted and ("match" in daemon.log) == trusted


@pytest.mark.parametrize("trusted", [False, True])
def test_adapter_is_shared_only_where_its_files_are_trusted(engines, tmp_path, trusted):
    from vllm.lora.request import LoRARequest

    (tmp_path / "adapter_config.json").write_text("{}")
    (tmp_path / "adapter_model.safetensors").write_bytes(b"1")
    connector = engines({"chunk_tokens": 32, "trust_adapter_files": trusted}).connector

    def suffix(**options):
        request = types.SimpleNamespace(mm_features=[], cache_salt=None)
        request.lora_request = LoRARequest("a", 1, str(tmp_path), **options)
        return connector._suffix_of(request)

    deadline = time.monotonic() + 10
    while suffix() is None and trusted and time.monotonic() < deadline:  # Its files are being read.
        connector._digests.wait(0.05)
    assert (suffix() is not None) == trusted
    assert suffix(load_inplace=True) is None


def test_how_media_are_processed_is_part_of_the_name_where_their_names_are_trusted(engines):
    from penstock_vllm import engine_0_32
    from penstock_vllm.config import ConnectorConfig
    from vllm.config import MultiModalConfig

    vllm_config = copy.copy(engines().vllm_config)
    vllm_config.model_config = copy.copy(vllm_config.model_config)

    def media(trusted, **options):
        vllm_config.model_config.multimodal_config = MultiModalConfig(**options)
        config = ConnectorConfig(trust_media_ids=trusted)
        return engine_0_32.engine_facts(vllm_config, config, "w", "0").media

    few, many = ({"mm_processor_kwargs": {"max_pixels": n}} for n in (9, 99))
    frames = {"media_io_kwargs": {"video": {"num_frames": 9}}}
    pruned = {"video_pruning_rate": 0.5}
    assert media(False, **few) == ""
    assert len({media(True, **options) for options in ({}, few, many, frames, pruned)}) == 5


@pytest.mark.parametrize("option", [{"prefix_caching": False}, {"non_causal": True}], ids=str)
def test_where_a_prefix_cannot_be_reused_the_engine_runs_as_if_alone(daemon, engines, option):
    tokens = prompt(random.Random(21), 330)
    engine = engines(**option, world_size=2)
    assert engine.connector.debug_state() == {"enabled": False}
    assert [worker._worker for worker in engine.workers] == [None, None]
    for name in ("a", "b"):
        engine.add(name, tokens)
        engine.run()
        assert engine.finished[name].tokens == engine.expect(tokens)
    assert (engine.blocks_in_use, daemon.log) == (0, [])


@pytest.fixture
def warnings(monkeypatch):
    """What the connector warned of."""
    texts = []
    monkeypatch.setattr(
        "penstock_vllm.connector.logger.warning", lambda text, *args: texts.append(text % args)
    )
    return texts


@pytest.mark.parametrize("outer", ["fail", "recompute"])
def test_one_of_several_connectors_works_and_says_what_its_outer_configuration_lacks(
    daemon, engines, warnings, outer
):
    tokens = prompt(random.Random(25), 330)
    for pulls in (0, 320):
        engine = engines(one_of_several=True, policy=outer)
        engine.add("r", tokens)
        engine.run()
        assert engine.finished["r"].tokens == engine.expect(tokens)
        (connector,) = engine.connector.sub_connectors
        assert connector._scheduler.counters["tokens_pulled"] == pulls
    assert len(warnings) == (2 if outer == "fail" else 0)
    assert all('kv_load_failure_policy is "fail"' in text for text in warnings)


def foreign(handshakes):
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorHandshakeMetadata

    handshakes[0, 1] = KVConnectorHandshakeMetadata()


@pytest.mark.parametrize(
    "change,why",
    [
        (foreign, "KVConnectorHandshakeMetadata"),
        (lambda handshakes: handshakes.pop((0, 1)), "1 of 2 workers"),
        (lambda handshakes: handshakes.clear(), "0 of 2 workers"),
    ],
    ids=["handshake of another connector", "one rank says nothing", "no rank says anything"],
)
def test_without_the_handshake_of_every_rank_nothing_is_shared(
    daemon, engines, warnings, change, why
):
    tokens = prompt(random.Random(24), 330)
    engine = engines(world_size=2, change_handshakes=change)
    assert engine.connector.debug_state() == {"enabled": False}
    assert len(warnings) == 1 and why in warnings[0]
    engine.add("r", tokens)
    engine.run()
    assert engine.finished["r"].tokens == engine.expect(tokens)
    assert (engine.blocks_in_use, daemon.log) == (0, [])


def test_daemon_killed_at_every_possible_step(daemon, engines):
    tokens = prompt(random.Random(10), 330)
    first = engines()
    first.add("r", tokens)
    check_end(first, {"r": first.expect(tokens)})
    stored = dict(daemon.chunks)
    daemon.delay = lambda name: 2
    for step in range(14):
        daemon.chunks.update(stored)
        daemon.up = True
        daemon.incarnation += 1
        engine = engines()
        engine.add("r", tokens)
        for _ in range(step):
            engine.step()
        daemon.kill()
        check_end(engine, {"r": engine.expect(tokens)})


@pytest.mark.parametrize("kind", KINDS)
def test_abort_at_every_possible_step(daemon, engines, kind):
    tokens = prompt(random.Random(11), 330)
    first = engines(**KINDS[kind])
    first.add("r", tokens)
    check_end(first, {"r": first.expect(tokens)})
    daemon.delay = lambda name: {"match": 1, "load": 3, "store": 4}.get(name, 0)
    engine = engines(**KINDS[kind])
    for step in range(12):
        name = f"r{step}"
        engine.scheduler.kv_cache_manager.reset_prefix_cache()
        engine.add(name, tokens)
        for _ in range(step):
            engine.step()
        engine.abort(name)
        check_end(engine, {})
        assert daemon.reservations == set()


def test_preempted_requests_come_back_right(daemon, engines):
    """Too few blocks for all: requests are preempted while their blocks are being stored."""
    rng = random.Random(16)
    daemon.delay = lambda name: {"load": 2, "store": 6}.get(name, 0)
    engine = engines(num_blocks=60, max_batched_tokens=256)
    prompts = {f"r{i}": prompt(rng, 100) for i in range(6)}
    requests = [engine.add(name, tokens, 250) for name, tokens in prompts.items()]
    check_end(engine, {name: engine.expect(tokens, 250) for name, tokens in prompts.items()})
    assert sum(request.num_preemptions for request in requests) > 0
    assert pulled(engine) > 0


def test_two_models_never_see_each_others_chunks(daemon, engines):
    tokens = prompt(random.Random(12), 330)
    one = engines({"chunk_tokens": 32, "model_fingerprint": "one"})
    one.add("r", tokens)
    check_end(one, {"r": one.expect(tokens)})
    other = engines({"chunk_tokens": 32, "model_fingerprint": "other"})
    other.add("r", tokens)
    check_end(other, {"r": other.expect(tokens)})
    assert pulled(other) == 0
    same = engines({"chunk_tokens": 32, "model_fingerprint": "one", "decline_slow_loads": False})
    same.add("r", tokens)
    check_end(same, {"r": same.expect(tokens)})
    assert pulled(same) == 320


@pytest.mark.parametrize(
    "other",
    [{"tenant": "b"}, {"tenant_salt": "b"}, {"chunk_tokens": 64}],
    ids=["tenant", "salt", "chunk"],
)
def test_other_namespace_is_another_world(daemon, engines, other):
    tokens = prompt(random.Random(13), 330)
    extra = {"chunk_tokens": 32, "decline_slow_loads": False}
    one = engines(extra)
    one.add("r", tokens)
    check_end(one, {"r": one.expect(tokens)})
    two = engines({**extra, **other})
    two.add("r", tokens)
    check_end(two, {"r": two.expect(tokens)})
    assert pulled(two) == 0


def test_reset_of_the_cache_makes_old_chunks_unreachable(daemon, engines):
    tokens = prompt(random.Random(14), 330)
    engine = engines()
    engine.add("a", tokens)
    check_end(engine, {"a": engine.expect(tokens)})
    assert engine.scheduler.reset_prefix_cache(reset_connector=True)
    engine.add("b", tokens)
    check_end(engine, {"b": engine.expect(tokens)})
    assert pulled(engine) == 0
    assert engine.scheduler.reset_prefix_cache()
    engine.add("c", tokens)
    check_end(engine, {"c": engine.expect(tokens)})
    assert pulled(engine) == 320


def test_old_namespaces_are_let_go_after_each_reset_of_the_cache(daemon, engines, monkeypatch):
    """Else every change of the weights would take places in the daemon's table for good."""
    import fake_penstock

    tokens = prompt(random.Random(18), 330)
    alive = 0

    class Handle(bytes):
        def __del__(self):
            nonlocal alive
            alive -= 1

    original = fake_penstock.Client.namespace

    def namespace(self, descriptor):
        nonlocal alive
        alive += 1
        return Handle(original(self, descriptor))

    monkeypatch.setattr(fake_penstock.Client, "namespace", namespace)
    engine = engines(world_size=2)
    counts = set()
    for i in range(5):
        engine.add(f"r{i}", tokens)
        check_end(engine, {f"r{i}": engine.expect(tokens)})
        counts.add(alive)
        assert engine.scheduler.reset_prefix_cache(reset_connector=True)
    # Of the scheduler's half for both ranks, and of each worker.
    assert counts == {2 * 2 * len(engine.groups)}


def test_refusal_after_a_reset_gives_back_what_is_being_stored(daemon, engines, monkeypatch):
    tokens = prompt(random.Random(19), 330)
    engine = engines()
    daemon.delay = lambda name: 5 if name == "store" else 0
    engine.add("a", tokens, max_tokens=1)
    while engine.connector._scheduler.pins.count == 0:
        engine.step()
    assert engine.scheduler.reset_prefix_cache(reset_connector=True) is not None

    def refuse(self, descriptor):
        raise penstock.PenstockError(Code.RESOURCE_EXHAUSTED, "no room")

    monkeypatch.setattr("penstock.Client.namespace", refuse)
    engine.connector.reset_cache()
    engine.add("b", prompt(random.Random(20), 330))
    engine.step()
    assert engine.connector.debug_state() == {"enabled": False}
    assert engine.connector.has_pending_push_work()
    engine.run()
    assert engine.blocks_in_use == 0
    # Nothing is on its way any more: the client is given back, and the engine goes on alone.
    assert engine.connector._scheduler is None and engine.connector._client is None
    stores = daemon.log.count("store")
    engine.add("c", tokens)
    engine.run()
    assert engine.finished["c"].tokens == engine.expect(tokens)
    assert (engine.blocks_in_use, daemon.log.count("store")) == (0, stores)


def test_noise_in_the_store_is_noticed_by_the_check(daemon, engines):
    """The control: without it, the checks of this file might check nothing."""
    tokens = prompt(random.Random(15), 330)
    first = engines()
    first.add("r", tokens)
    check_end(first, {"r": first.expect(tokens)})
    for key, pages in daemon.chunks.items():
        daemon.chunks[key] = [bytes(reversed(page)) for page in pages]
    second = engines()
    second.add("r", tokens)
    with pytest.raises(AssertionError, match="wrong KV"):
        second.run()


@pytest.mark.parametrize("kind", KINDS)
def test_random_workloads_with_faults(daemon, engines, kind, request):
    for seed in range(request.config.getoption("--rounds")):
        _random_workload(daemon, engines, KINDS[kind], random.Random(f"{kind}{seed}"))


def _random_workload(daemon, engines, options, rng):
    daemon.restart()
    trunk = prompt(rng, 700)
    slow = rng.choice([0.0, 0.3])
    faulty = rng.choice([0.0, 0.1])
    daemon.delay = lambda name: (
        None if rng.random() < slow * 0.02 else rng.randrange(5) if rng.random() < slow else 0
    )
    codes = [Code.MISS, Code.CHECKSUM_MISMATCH, Code.BUSY, Code.ALL_PINNED]
    daemon.fault = lambda name, key: rng.choice(codes) if rng.random() < faulty else None
    for _ in range(2):
        extra = {
            "chunk_tokens": rng.choice([16, 32, 48]),
            "decline_slow_loads": False,
            "lookup_timeout_ms": 20,
        }
        engine = engines(extra, **options)
        expected = {}
        for i in range(rng.randrange(4, 12)):
            tokens = trunk[: rng.randrange(1, 500)] + prompt(rng, rng.randrange(0, 60))
            count = rng.randrange(1, 40)
            engine.add(f"r{i}", tokens, count)
            expected[f"r{i}"] = engine.expect(tokens, count)
            for _ in range(rng.randrange(6)):
                engine.step()
            if rng.random() < 0.1:
                daemon.kill()
            if rng.random() < 0.3:
                daemon.restart()
            if rng.random() < 0.15:
                victim = f"r{rng.randrange(i + 1)}"
                if victim in engine.scheduler.requests:
                    engine.abort(victim)
                    expected.pop(victim, None)
        # An operation that never ends stands for one that runs into its deadline.
        daemon.delay = lambda name: 0
        _end_what_hangs(engine)
        check_end(engine, expected)


def _end_what_hangs(engine):
    for _ in range(20):
        engine.step()
    for worker in engine.workers:
        for pending in [*worker._worker._loads.values(), *worker._worker._stores.values()]:
            pending.op.cancel()
