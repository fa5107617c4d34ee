"""The blocks of stores: pinned while they are read, bounded, and given up when the engine needs them."""

from __future__ import annotations

from scheduler_bench import Bench, Request


def test_blocks_of_a_store_are_pinned_until_every_rank_has_read_them(daemon):
    bench = Bench()
    bench.side.pins.set_ranks(2)
    request = Request("r", 600)
    bench.give_blocks(request)
    bench.side.on_new_request(request)
    plan = bench.step((request, 600))
    assert [bench.pool.blocks[i].ref_cnt for i in range(1, 6)] == [1, 1, 1, 1, 0]
    bench.side.request_finished(request)
    assert bench.side.work_left
    bench.stored(plan)
    assert bench.side.work_left
    bench.stored(plan)
    assert not bench.side.work_left
    assert bench.pool.freed == [4, 3, 2, 1]
    assert all(block.ref_cnt == 0 for block in bench.pool.blocks)


def test_pinned_blocks_are_bounded_and_the_rest_is_stored_later(daemon):
    bench = Bench(pinned_blocks_percent=0.45)  # Of 1,000 blocks: 4.
    request = Request("r", 1024)
    bench.give_blocks(request)
    bench.side.on_new_request(request)
    plan = bench.step((request, 1024))
    assert bench.side.pins.count == 4
    assert not bench.step((request, 0)).stores
    bench.stored(plan)
    (job,) = bench.step((request, 0)).stores
    assert [item.blocks for item in job.items] == [[5, 6], [7, 8]]


def test_engine_short_of_blocks_waits_a_moment_then_gets_them(daemon):
    bench = Bench()
    assert not bench.side.blocks_coming_back()
    request = Request("r", 600)
    bench.give_blocks(request)
    bench.side.on_new_request(request)
    plan = bench.step((request, 600))
    assert bench.side.blocks_coming_back()
    bench.clock.now += 1.0
    assert not bench.side.blocks_coming_back()
    assert not bench.side.blocks_coming_back()
    assert bench.step().cancelled_stores == [plan.stores[0].job_id]
    bench.stored(plan, failed=2)
    assert not bench.side.work_left


def test_pinned_blocks_of_a_running_request_are_not_waited_for(daemon):
    """It is the request that has to let go of them, by being preempted."""
    bench = Bench()
    request = Request("r", 600)
    bench.give_blocks(request)
    bench.pool.touch(bench.pool.blocks[1:6])
    bench.side.on_new_request(request)
    plan = bench.step((request, 600))
    assert not bench.side.blocks_coming_back()
    bench.clock.now += 1.0
    assert not bench.side.blocks_coming_back()
    assert not bench.step().cancelled_stores
    bench.pool.free_blocks(bench.pool.blocks[4:6])  # Block 4 is pinned, 5 is not.
    assert not bench.side.blocks_coming_back()
    assert bench.step().cancelled_stores == [plan.stores[0].job_id]


def test_old_store_of_a_running_request_does_not_end_the_young_one_that_holds_blocks_back(daemon):
    bench = Bench()
    running, finished = Request("r", 600), Request("f", 600, salt="f")
    bench.give_blocks(running)
    bench.pool.touch(bench.pool.blocks[1:6])
    bench.side.on_new_request(running)
    bench.step((running, 600))
    bench.clock.now += 10.0
    bench.give_blocks(finished, first=20)
    bench.side.on_new_request(finished)
    bench.step((finished, 600))
    assert bench.side.blocks_coming_back()
    bench.clock.now += 10.0
    assert not bench.side.blocks_coming_back()
    assert len(bench.step().cancelled_stores) == 1
