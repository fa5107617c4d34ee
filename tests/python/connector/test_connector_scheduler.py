"""The scheduler's half against the stand-in daemon: what it answers, loads, stores and pins."""

from __future__ import annotations

import re
import types
from pathlib import Path

import pytest
from fake_penstock import Client
from penstock import Code
from penstock_vllm.config import ConnectorConfig
from penstock_vllm.identity import IdentityError
from penstock_vllm.lookup import MAX_GROUPS, MAX_KEYS
from penstock_vllm.messages import SKIPPED, LoadTime, WorkerReport
from penstock_vllm.scheduler import SchedulerSide
from scheduler_bench import FULL, HYBRID, Bench, Clock, Request


def test_nothing_stored_is_answered_at_once(daemon):
    bench = Bench()
    request = Request("r", 1000)
    bench.side.on_new_request(request)
    assert bench.side.matched_tokens(request, 0) == (0, False)


def test_stored_prefix_is_offered_in_whole_chunks(daemon):
    bench = Bench()
    request = bench.new_request(daemon, stored=2)
    assert bench.side.matched_tokens(request, 0) == (512, True)
    assert bench.side.matched_tokens(request, 384) == (128, True)
    assert bench.side.matched_tokens(request, 512) == (0, False)


def spread(bench, ranks):
    """Namespaces of so many ranks."""
    fields = {
        (0, rank): [
            {"model": "m", "group": g.index, "tp_rank": rank, "tp_size": ranks}
            for g in bench.shape.groups
        ]
        for rank in range(ranks)
    }
    bench.side.set_namespaces(fields, [1 << 20] * len(bench.shape.groups))


@pytest.mark.parametrize("shape,ranks,most", [(FULL, 64, 256), (HYBRID, 3, 2730)])
def test_of_a_prompt_that_is_too_long_for_a_lookup_the_beginning_is_matched(
    daemon, shape, ranks, most
):
    bench = Bench(shape)
    spread(bench, ranks)
    for chunks in (most, most + 1, most + 100):
        request = Request(f"r{chunks}", chunks * 256 + 1)
        bench.keep(daemon, request, range(chunks))
        bench.side.on_new_request(request)
        assert bench.side.matched_tokens(request, 0) == (most * 256, True)
    assert bench.side.counters["lookups_cut"] == 2
    assert bench.side.counters["lookups_failed"] == 0


def test_more_groups_than_a_lookup_holds_are_refused_with_what_to_do(daemon):
    bench = Bench(HYBRID)
    spread(bench, 32)
    with pytest.raises(IdentityError, match=r"66 groups .* at most 32 ranks"):
        spread(bench, 33)


def test_limits_of_a_lookup_are_those_of_the_protocol():
    header = Path(__file__).resolve().parents[3] / "common/protocol/messages.h"
    limits = dict(re.findall(r"uint32_t (kMax\w+) = (\d+);", header.read_text()))
    assert (str(MAX_GROUPS), str(MAX_KEYS)) == (limits["kMaxGroups"], limits["kMaxItems"])


def test_one_token_is_left_to_compute(daemon):
    bench = Bench()
    request = Request("r", 512)
    bench.keep(daemon, request, range(2))
    bench.side.on_new_request(request)
    assert bench.side.matched_tokens(request, 0) == (511, True)
    assert bench.side.matched_tokens(request, 384) == (127, True)


def test_asking_again_changes_nothing_and_asks_the_daemon_once(daemon):
    bench = Bench()
    request = bench.new_request(daemon, stored=3)
    for _ in range(10):
        assert bench.side.matched_tokens(request, 0) == (768, True)
    assert daemon.log.count("match") == 1
    assert len(daemon.reservations) == 1


def test_pending_answer_is_asked_for_again_next_step(daemon):
    daemon.delay = lambda name: 3 if name == "match" else 0
    bench = Bench()
    request = bench.new_request(daemon, stored=2)
    answers = [bench.side.matched_tokens(request, 0) for _ in range(4)]
    assert answers[0] == (None, False)
    assert answers[-1] == (512, True)


def test_answer_that_never_comes_is_a_miss_within_the_timeout(daemon):
    daemon.delay = lambda name: None if name == "match" else 0
    bench = Bench(lookup_timeout_ms=50)
    request = Request("r", 1000)
    bench.side.on_new_request(request)
    assert bench.side.matched_tokens(request, 0) == (None, False)
    bench.clock.now += 0.051
    assert bench.side.matched_tokens(request, 0) == (0, False)
    assert bench.side.counters["lookups_late"] == 1


def test_daemon_that_does_not_answer_is_left_alone_until_it_does(daemon):
    daemon.delay = lambda name: None
    bench = Bench(lookup_timeout_ms=50, breaker_min_ms=1000)
    for name in ("a", "b"):
        request = Request(name, 1000)
        bench.side.on_new_request(request)
        bench.side.matched_tokens(request, 0)
        bench.clock.now += 0.06
        assert bench.side.matched_tokens(request, 0) == (0, False)
    asked = len(daemon.log)
    for name in ("c", "d", "e"):
        request = Request(name, 1000)
        bench.side.on_new_request(request)
        assert bench.side.matched_tokens(request, 0) == (0, False)
        assert not bench.step((request, 1000)).stores
    assert len(daemon.log) == asked
    daemon.delay = lambda name: 0
    bench.clock.now += 1.1
    request = Request("f", 1000)
    bench.keep(daemon, request, range(3))
    bench.side.on_new_request(request)
    assert bench.side.matched_tokens(request, 0) == (768, True)


def test_daemon_away_costs_nothing_and_asks_nothing(daemon):
    daemon.kill()
    bench = Bench()
    request = Request("r", 1000)
    bench.give_blocks(request)
    bench.side.on_new_request(request)
    assert bench.side.matched_tokens(request, 0) == (0, False)
    assert not bench.step((request, 1000)).stores
    assert daemon.log == []


def test_prompt_that_is_not_asked_about_is_counted_once(daemon):
    daemon.kill()
    bench = Bench()
    requests = [Request("long", 1000), Request("other", 1000), Request("shorter than a chunk", 100)]
    for request in requests:
        bench.side.on_new_request(request)
        for _ in range(3):
            assert bench.side.matched_tokens(request, 0) == (0, False)
    assert bench.side.counters["lookups_skipped"] == 2


def test_waiting_for_a_ping_uses_up_what_a_step_may_wait(daemon, monkeypatch):
    daemon.delay = lambda name: None
    bench = Bench(lookup_wait_ms=2.0, breaker_min_ms=500)
    waited = []

    def wait(op, timeout):
        waited.append(timeout)
        bench.clock.now += timeout
        return False

    monkeypatch.setattr("fake_penstock.Op.wait", wait)
    for _ in range(2):
        bench.side.lookups.breaker.failure(bench.clock.now)
    assert not bench.side.lookups.breaker.closed
    bench.clock.now += 0.6
    for _ in range(2):
        bench.step()
        waited.clear()
        for name in "abc":
            bench.side.on_new_request(Request(name, 1000))
        assert sum(waited) == pytest.approx(0.002)


def test_request_that_must_not_read_the_cache_is_not_looked_up(daemon):
    bench = Bench()
    request = Request("r", 1000)
    bench.keep(daemon, request, range(3))
    request.skip_reading_prefix_cache = True
    bench.side.on_new_request(request)
    assert bench.side.matched_tokens(request, 0) == (0, False)
    assert daemon.log == []


def test_load_covers_the_chunks_and_leaves_the_engines_own_blocks_alone(daemon):
    bench = Bench()
    request = bench.new_request(daemon, stored=3)
    assert bench.side.matched_tokens(request, 384) == (384, True)
    bench.side.allocated(request, bench.give_blocks(request), 384)
    (job,) = bench.step().loads
    assert [item.blocks for item in job.items] == [[SKIPPED, 4], [5, 6]]
    assert job.reservation in daemon.reservations


def test_sliding_group_loads_its_window_only_and_never_the_null_block(daemon):
    bench = Bench(HYBRID)
    request = Request("r", 1400)
    bench.keep(daemon, request, range(5))
    bench.side.on_new_request(request)
    assert bench.side.matched_tokens(request, 0) == (1280, True)
    ids = bench.give_blocks(request, null=[range(6), ()])
    bench.side.allocated(request, ids, 1280)
    (job,) = bench.step().loads
    sliding = [item.blocks for item in job.items if item.group == 0]
    full = [item.blocks for item in job.items if item.group == 1]
    assert sliding == [[7, 8], [9, 10]]
    assert len(full) == 5
    assert all(0 not in item.blocks for item in job.items)


def test_hybrid_prefix_needs_the_window_of_the_sliding_group(daemon):
    bench = Bench(HYBRID)
    request = Request("r", 1400)
    bench.keep(daemon, request, range(5), groups=[1])
    bench.keep(daemon, request, range(1, 3), groups=[0])
    bench.side.on_new_request(request)
    assert bench.side.matched_tokens(request, 0) == (768, True)


def test_second_call_after_a_load_plans_nothing(daemon):
    bench = Bench()
    request = bench.new_request(daemon, stored=3)
    bench.side.matched_tokens(request, 0)
    ids = bench.give_blocks(request)
    bench.side.allocated(request, ids, 768)
    assert len(bench.step().loads) == 1
    bench.side.update(None, ["r"], [])
    bench.side.allocated(request, ids, 0)
    assert not bench.step().loads
    assert bench.side.counters["tokens_pulled"] == 768
    assert daemon.reservations == set()


def test_failed_load_is_never_tried_again_for_the_request(daemon):
    bench = Bench()
    request = bench.new_request(daemon, stored=3)
    bench.side.matched_tokens(request, 0)
    bench.side.allocated(request, bench.give_blocks(request), 768)
    bench.step()
    bench.side.update(WorkerReport(failed_loads={"r": "miss"}), ["r"], ["r"])
    for _ in range(3):
        assert bench.side.matched_tokens(request, 0) == (0, False)
    assert bench.side.counters["tokens_pulled"] == 0
    # What it computes instead is stored, the chunks that were promised included.
    (job,) = bench.step((request, 1000)).stores
    assert len(job.items) == 3


def test_abort_in_mid_load_cancels_it_and_gives_the_reservation_back(daemon):
    bench = Bench()
    request = bench.new_request(daemon, stored=3)
    bench.side.matched_tokens(request, 0)
    bench.side.allocated(request, bench.give_blocks(request), 768)
    bench.step()
    bench.side.request_finished(request)
    assert bench.step().cancelled_loads == ["r"]
    assert daemon.reservations == set()
    bench.side.update(None, ["r"], ["r"])  # The worker's report comes later all the same.


def test_abort_before_the_answer_leaves_no_reservation(daemon):
    daemon.delay = lambda name: 5
    bench = Bench()
    request = bench.new_request(daemon, stored=3)
    bench.side.request_finished(request)
    assert daemon.reservations == set()


def test_hit_that_is_not_wanted_gives_its_reservation_back(daemon):
    bench = Bench(min_load_tokens=600)
    request = Request("r", 600)
    bench.keep(daemon, request, range(2))
    bench.side.on_new_request(request)
    assert bench.side.matched_tokens(request, 0) == (0, False)
    assert daemon.reservations == set()


def test_store_follows_computed_tokens_and_only_whole_chunks(daemon):
    bench = Bench()
    request = Request("r", 1000)
    bench.give_blocks(request)
    bench.side.on_new_request(request)
    bench.side.matched_tokens(request, 0)
    jobs = [bench.step((request, 200)).stores for _ in range(5)]
    assert [[item.blocks for job in step for item in job.items] for step in jobs] == [
        [],
        [[1, 2]],
        [[3, 4]],
        [[5, 6]],
        [],
    ]


def test_chunk_knows_its_parent_except_in_sliding_groups(daemon):
    bench = Bench(HYBRID)
    request = Request("r", 520)
    bench.give_blocks(request)
    bench.side.on_new_request(request)
    (job,) = bench.step((request, 520)).stores
    parents = {(item.group, item.identity): item.parent for item in job.items}
    assert parents == {(0, b"1"): None, (1, b"1"): None, (0, b"3"): None, (1, b"3"): b"1"}


def test_blocks_outside_the_window_are_not_stored(daemon):
    bench = Bench(HYBRID)
    request = Request("r", 1000)
    bench.give_blocks(request, null=[range(3), ()])
    bench.side.on_new_request(request)
    (job,) = bench.step((request, 1000)).stores
    assert [item.blocks for item in job.items if item.group == 0] == [[5, 6]]
    assert len([item for item in job.items if item.group == 1]) == 3


def test_what_the_daemon_has_is_not_stored_again(daemon):
    bench = Bench()
    request = Request("r", 1000)
    bench.keep(daemon, request, range(2))
    bench.give_blocks(request)
    bench.side.on_new_request(request)
    bench.side.matched_tokens(request, 512)
    (job,) = bench.step((request, 1000)).stores
    assert [item.blocks for item in job.items] == [[5, 6]]


def test_prefix_that_the_daemon_lost_is_stored_from_the_engines_own_cache(daemon):
    bench = Bench()
    request = Request("r", 1000)
    bench.give_blocks(request)
    request.num_computed_tokens = 896
    bench.side.on_new_request(request)
    assert bench.side.matched_tokens(request, 896) == (0, False)
    (job,) = bench.step((request, 104)).stores
    assert [item.blocks for item in job.items] == [[1, 2], [3, 4], [5, 6]]


def test_same_chunk_is_not_on_its_way_twice(daemon):
    bench = Bench()
    one, two = Request("one", 600), Request("two", 600)
    bench.give_blocks(one)
    bench.blocks["two"] = bench.blocks["one"]
    for request in (one, two):
        bench.side.on_new_request(request)
    first = bench.step((one, 600), (two, 600))
    assert len(first.stores) == 1
    bench.stored(first)
    three = Request("three", 600)
    bench.blocks["three"] = bench.blocks["one"]
    bench.side.on_new_request(three)
    assert len(bench.step((three, 600)).stores) == 1  # The stand-in never stored it.


def test_chunk_on_its_way_under_an_old_name_is_stored_under_the_new_one(daemon):
    bench = Bench()

    def ask(name):
        request = Request(name, 600)
        bench.give_blocks(request)
        bench.side.on_new_request(request)
        return bench.step((request, 600))

    old = ask("a")
    namespaces = bench.side.lookups._namespaces
    bench.side.forget()
    bench.side.lookups.set_namespaces(namespaces)
    new = ask("b")
    assert len(new.stores) == 1
    bench.stored(old)  # Must not make the new one look as if it were over.
    assert not ask("c").stores
    bench.stored(new)
    assert not bench.side._storing and not bench.side._job_identities
    assert bench.side.pins.count == 0


def test_generated_tokens_complete_chunks_too_unless_told_otherwise(daemon):
    for store_decode, chunks in ((True, 2), (False, 1)):
        bench = Bench(store_decode=store_decode)
        request = Request("r", 500)
        bench.blocks["r"] = ([1, 2, 3, 4, 5],)
        bench.side.on_new_request(request)
        items = [i for job in bench.step((request, 500)).stores for i in job.items]
        for _ in range(30):
            request.num_tokens += 1
            items += [i for job in bench.step((request, 1)).stores for i in job.items]
        assert len(items) == chunks


def test_tokens_that_speculation_may_rewrite_are_not_stored(daemon):
    bench = Bench()
    bench.side._volatile_tokens = 4
    request = Request("r", 512)
    bench.give_blocks(request)
    bench.side.on_new_request(request)
    (job,) = bench.step((request, 512)).stores
    assert [item.blocks for item in job.items] == [[1, 2]]


def test_speculative_tokens_do_not_complete_a_chunk(daemon):
    bench = Bench()
    request = Request("r", 510)
    bench.blocks["r"] = ([1, 2, 3, 4, 5],)
    request.num_computed_tokens = 509
    bench.side.on_new_request(request)
    plan = bench.step((request, 5))  # One token and four guesses.
    assert [item.blocks for job in plan.stores for item in job.items] == [[1, 2]]


def test_load_that_runs_into_its_deadline_pauses_loading_but_not_storing(daemon):
    bench = Bench(breaker_min_ms=1000)
    bench.side.update(WorkerReport(failed_loads={"x": "deadline_exceeded"}), (), ())
    request = Request("r", 1000)
    bench.keep(daemon, request, range(2))
    bench.give_blocks(request)
    bench.side.on_new_request(request)
    assert bench.side.matched_tokens(request, 0) == (0, False)
    assert daemon.reservations == set()
    assert bench.step((request, 1000)).stores
    bench.clock.now += 1.0
    again = Request("again", 1000)
    bench.side.on_new_request(again)
    assert bench.side.matched_tokens(again, 0) == (512, True)


def test_slow_loads_are_declined(daemon):
    bench = Bench(decline_slow_loads=True)
    bench.side.update(WorkerReport(loads=[LoadTime(1 << 20, 1.0)], prefills=[(1000, 0.1)]), (), ())
    request = bench.new_request(daemon, stored=3)
    assert bench.side.matched_tokens(request, 0) == (0, False)
    assert bench.side.counters["loads_declined"] == 1


def test_stale_reservation_is_renewed_before_it_is_used(daemon):
    bench = Bench(reserve_ttl_s=10)
    request = bench.new_request(daemon, stored=3)
    assert bench.side.matched_tokens(request, 0) == (768, True)
    before = set(daemon.reservations)
    bench.clock.now += 8
    assert bench.side.matched_tokens(request, 0) == (768, True)
    assert len(daemon.reservations) == 1 and daemon.reservations != before


def test_request_is_asked_about_again_after_preemption(daemon):
    bench = Bench()
    request = Request("r", 600)
    bench.keep(daemon, request, range(2))
    bench.side.on_new_request(request)
    assert bench.side.matched_tokens(request, 0) == (512, True)
    request.num_tokens = 900
    request.num_preemptions += 1
    bench.keep(daemon, request, range(3))
    assert bench.side.matched_tokens(request, 0) == (768, True)


def test_nothing_is_done_before_chunks_can_be_named(daemon):
    side = SchedulerSide(
        ConnectorConfig(), FULL, Client(), suffix_of=lambda request: b"", clock=Clock()
    )
    request = Request("r", 1000)
    side.on_new_request(request)
    assert side.matched_tokens(request, 0) == (0, False)
    assert not side.build_plan([("r", 1000)], lambda name: ([1] * 8,)).stores
    assert daemon.log == []


def test_forgetting_makes_what_is_stored_unreachable(daemon):
    bench = Bench()
    request = bench.new_request(daemon, stored=3)
    bench.side.forget()
    assert bench.side.matched_tokens(request, 0) == (0, False)
    assert daemon.reservations == set()


def test_forgetting_fails_the_loads_that_are_on_their_way(daemon):
    bench = Bench()
    request = bench.new_request(daemon, stored=3)
    bench.side.matched_tokens(request, 0)
    bench.side.allocated(request, bench.give_blocks(request), 768)
    bench.step()
    namespaces = bench.side.lookups._namespaces
    bench.side.forget()
    bench.side.forget()
    assert not bench.side.idle
    assert bench.step().cancelled_loads == ["r"]
    bench.side.update(WorkerReport(failed_loads={"r": "cancelled"}), ["r"], ["r"])
    bench.side.lookups.set_namespaces(namespaces)
    assert bench.side.matched_tokens(request, 0) == (0, False)
    assert bench.side.counters["tokens_pulled"] == 0
    assert not bench.step((request, 1000)).stores
    assert bench.side.idle and daemon.reservations == set()


def test_finished_requests_leave_nothing_behind(daemon):
    bench = Bench()
    for i in range(50):
        request = Request(f"r{i}", 700, salt=str(i))
        bench.give_blocks(request)
        bench.side.on_new_request(request)
        bench.side.matched_tokens(request, 0)
        plan = bench.step((request, 700))
        bench.side.request_finished(request)
        bench.stored(plan)
    side = bench.side
    assert (side._requests, side._job_identities, dict(side._storing)) == ({}, {}, {})
    assert bench.side.pins.count == 0


@pytest.mark.parametrize("code", [Code.BUSY, Code.DISCONNECTED])
def test_refused_lookup_is_a_miss(daemon, code):
    bench = Bench()
    refusal = types.SimpleNamespace(chunks=0, bytes=0, reservation=0, code=code)
    original = bench.side._client.match

    def match(*args, **kwargs):
        op = original(*args, **kwargs)
        op._result = (refusal,)
        return op

    bench.side._client.match = match
    request = bench.new_request(daemon, stored=3)
    assert bench.side.matched_tokens(request, 0) == (0, False)
