"""The worker's half against the stand-in page store."""

from __future__ import annotations

import ctypes

import fake_penstock
import pytest
from penstock import NamespaceDescriptor, PageView, prefix_key
from penstock_vllm.messages import LoadItem, LoadJob, StepPlan, StoreItem, StoreJob, StoreOutcome
from penstock_vllm.worker import WorkerSide
from scheduler_bench import FULL, Clock

PAGE = 8
FIELDS = {"model": "m", "group": 0}
RANKS = {"tp_rank": 0, "tp_size": 1, "pp_rank": 0, "pp_size": 1, "dcp_rank": 0, "dcp_size": 1}
STORES = [StoreJob(i, [StoreItem(0, b"s%d" % i, None, 256, [1, 2])]) for i in range(3)]
JOB = LoadJob("r", 0, 1.0, [LoadItem(0, b"1", [1, 2])])


@pytest.fixture
def worker(daemon):
    """With memory for four blocks of one layer; the daemon has the chunk of JOB."""
    clock = Clock()
    side = WorkerSide(FULL, fake_penstock.Client(), ranks=RANKS, store_timeout=1.0, clock=clock)
    side.clock = clock
    memory = ctypes.create_string_buffer(4 * PAGE)
    side._pages = fake_penstock.PageStore(side._client, null_block=0)
    storage = side._pages.register_storage(ctypes.addressof(memory), len(memory), memory)
    side._group_views.append([PageView(storage, 0, PAGE, PAGE, 0)])
    ns = NamespaceDescriptor(**FIELDS).fingerprint_bytes()
    daemon.chunks[prefix_key(ns, None, b"1")] = [b"a" * PAGE, b"b" * PAGE]
    side.begin_step(StepPlan(namespaces={(0, 0): [FIELDS]}))
    side.memory = memory
    return side


def test_load_writes_the_pages_and_is_reported_once(worker):
    worker.begin_step(StepPlan(loads=[JOB]))
    assert worker.take_finished() == ({"r"}, set())
    assert worker.take_finished() == (set(), set())
    assert worker.memory.raw == bytes(PAGE) + b"a" * PAGE + b"b" * PAGE + bytes(PAGE)


@pytest.mark.parametrize("delay", [0, 3])
def test_cancelled_load_fails_whether_or_not_all_of_it_came(worker, daemon, delay):
    daemon.delay = lambda name: delay
    worker.begin_step(StepPlan(loads=[JOB]))
    assert worker._loads["r"].op.done() == (delay == 0)
    worker.begin_step(StepPlan(cancelled_loads=["r"]))
    assert worker.take_finished() == ({"r"}, {"r"})
    assert worker.take_report().failed_loads == {"r": "cancelled"}


def test_load_that_is_cancelled_with_the_plan_that_brings_it_does_not_begin(worker, daemon):
    worker.begin_step(StepPlan(loads=[JOB], cancelled_loads=["r"]))
    assert worker.take_finished() == ({"r"}, {"r"})
    assert "load" not in daemon.log


def test_store_whose_step_is_not_ended_begins_with_the_next_step(worker, daemon):
    """As in all stages of a pipeline but the last, with speculation."""
    one, two, three = STORES
    worker.begin_step(StepPlan(stores=[one], scheduled_tokens=500))
    assert "store" not in daemon.log
    worker.begin_step(StepPlan(stores=[two], scheduled_tokens=500))
    assert worker.take_report().stores == {0: StoreOutcome(ranks=1, stored=1, bytes=2 * PAGE)}
    worker.begin_step(StepPlan(namespaces={(0, 0): [{**FIELDS, "model": "n"}]}))
    plan = StepPlan(stores=[three])
    worker.begin_step(plan)
    worker.end_step(plan)
    assert set(worker.take_report().stores) == {1, 2}
    worker.end_step(plan)
    assert worker.take_report() is None
    # Before the change of namespaces, and after it.
    spaces = [NamespaceDescriptor(**{**FIELDS, "model": m}).fingerprint_bytes() for m in "mn"]
    assert prefix_key(spaces[0], None, b"s1") in daemon.chunks
    assert prefix_key(spaces[1], None, b"s2") in daemon.chunks


def test_steps_that_are_not_ended_say_nothing_about_prefill(worker):
    worker.begin_step(StepPlan(scheduled_tokens=500))
    plan = StepPlan()
    worker.begin_step(plan)
    worker.end_step(plan)
    assert worker.take_report() is None


def test_cancelled_store_that_never_came_is_reported_and_one_that_is_over_is_not_again(worker):
    """A rank that reported twice would stand for another one that still reads the blocks."""
    plan = StepPlan(stores=[STORES[1]])
    worker.begin_step(plan)
    worker.end_step(plan)
    assert set(worker.take_report().stores) == {1}
    worker.begin_step(StepPlan(cancelled_stores=[1, 2]))
    assert worker.take_report().stores == {2: StoreOutcome(ranks=1)}


def run_step(worker, seconds, **plan):
    plan = StepPlan(**plan)
    worker.begin_step(plan)
    worker.clock.now += seconds
    worker.end_step(plan)
    worker.take_finished()
    report = worker.take_report()
    return report.loads if report is not None else []


@pytest.mark.parametrize(
    "tokens,exact", [(0, True), (1, False), (500, False)], ids=["idle", "decode", "prefill"]
)
def test_load_that_a_forward_pass_hides_has_no_exact_time(worker, tokens, exact):
    (load,) = run_step(worker, 2.0, loads=[JOB], scheduled_tokens=tokens)
    assert load == (2 * PAGE, 2.0, exact)


@pytest.mark.parametrize("last,exact", [(0.1, True), (0.9, False)])
def test_load_of_several_steps_is_as_exact_as_its_last_step_is_short(worker, daemon, last, exact):
    daemon.delay = lambda name: 2
    assert run_step(worker, 0.25, loads=[JOB], scheduled_tokens=1) == []
    assert run_step(worker, 0.25, scheduled_tokens=1) == []
    (load,) = run_step(worker, last, scheduled_tokens=1)
    assert load.seconds == pytest.approx(0.5 + last) and load.exact == exact
