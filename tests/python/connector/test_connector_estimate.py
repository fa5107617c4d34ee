import pytest
from penstock_vllm.estimate import Breaker, LinearCost, LoadPlanner, Pause
from penstock_vllm.messages import LoadTime


def planner(**options):
    return LoadPlanner(adapt=True, load_timeout=2.0, **options)


def test_cost_of_several_sizes_has_a_fixed_part():
    cost = LinearCost()
    for units in (100, 1000, 3000, 500, 2000):
        cost.add(units, 0.01 + units * 1e-4, now=1.0)
    fixed, per_unit = cost.coefficients()
    assert fixed == pytest.approx(0.01)
    assert per_unit == pytest.approx(1e-4)


def test_cost_of_one_size_is_proportional():
    cost = LinearCost()
    for _ in range(5):
        cost.add(1000, 0.5, now=1.0)
    assert cost.predict(2000) == pytest.approx(1.0)
    assert cost.predict(0) == 0.0


def test_cost_follows_a_change():
    cost = LinearCost()
    for units in (100, 200, 300) * 10:
        cost.add(units, units * 1e-3, now=1.0)
    for units in (100, 200, 300) * 20:
        cost.add(units, units * 1e-2, now=2.0)
    assert cost.predict(200) == pytest.approx(2.0, rel=0.05)


def test_cost_never_predicts_less_than_nothing():
    cost = LinearCost()
    cost.add(100, 0.5, now=1.0)
    cost.add(1000, 0.1, now=1.0)
    fixed, per_unit = cost.coefficients()
    assert fixed >= 0 and per_unit >= 0


def test_nothing_known_means_try():
    assert planner().worth(256, 1 << 20, now=0.0)


def test_slow_load_is_declined_and_fast_one_taken():
    plan = planner()
    plan.prefill.add(1000, 0.1, now=1.0)  # 10,000 tokens/s.
    plan.load.add(1 << 20, 0.01, now=1.0)  # 100 MiB/s.
    assert plan.worth(1000, 1 << 20, now=2.0)
    assert not plan.worth(50, 1 << 20, now=2.0)


def test_declined_loads_are_tried_again_once_in_a_while():
    plan = planner(retry_after=30.0)
    plan.prefill.add(1000, 0.1, now=0.0)
    plan.load.add(1 << 20, 1.0, now=0.0)
    assert not plan.worth(100, 1 << 20, now=29.0)
    assert plan.worth(100, 1 << 20, now=31.0)
    assert not plan.worth(100, 1 << 20, now=32.0)


def test_declining_can_be_turned_off():
    plan = LoadPlanner(adapt=False, load_timeout=2.0)
    plan.prefill.add(1000, 0.1, now=0.0)
    plan.load.add(1 << 20, 10.0, now=0.0)
    assert plan.worth(1, 1 << 20, now=0.1)


def test_load_may_take_several_times_what_is_expected_but_not_longer_than_recomputing():
    plan = planner()
    plan.load.add(1 << 20, 0.1, now=0.0)
    assert plan.deadline(1000, 1 << 20) == pytest.approx(0.6)
    plan.prefill.add(1000, 0.5, now=0.0)
    assert plan.deadline(1000, 1 << 20) == pytest.approx(0.5)
    assert plan.deadline(10, 1 << 20) == pytest.approx(0.1)
    assert plan.deadline(100_000, 1 << 27) == 2.0


def test_first_load_has_a_deadline_by_its_size():
    assert planner().deadline(1000, 1 << 20) == pytest.approx(0.1)
    assert planner().deadline(1000, 50_000_000) == pytest.approx(1.5)
    assert planner().deadline(1000, 1 << 40) == 2.0


def test_where_nothing_is_declined_the_timeout_alone_counts():
    plan = LoadPlanner(adapt=False, load_timeout=2.0)
    plan.load.add(1 << 20, 0.001, now=0.0)
    plan.prefill.add(1000, 0.001, now=0.0)
    assert plan.deadline(1, 1) == 2.0


def test_loading_pauses_after_a_deadline_and_longer_each_time():
    pause = Pause(shortest=1.0, longest=3.0)
    assert not pause.active(0.0)
    pause.failure(0.0)
    pause.failure(0.5)
    assert pause.active(0.9) and not pause.active(1.0)
    pause.failure(1.0)
    assert pause.active(2.9) and not pause.active(3.0)
    pause.failure(3.0)
    assert pause.active(5.9) and not pause.active(6.0)
    pause.success()
    pause.failure(7.0)
    assert not pause.active(8.0)


def test_time_that_is_not_exact_can_only_make_loads_look_faster():
    """A load of 5 ms beside a prefill of 2 s is seen to be over when the prefill is."""
    plan = planner()
    plan.prefill.add(1000, 0.1, now=0.0)
    plan.add_load(LoadTime(1000, 2.0, exact=False), now=0.0)
    assert not plan.load.known and plan.worth(1000, 1000, now=0.0)
    plan.add_load(LoadTime(1000, 0.005), now=0.0)
    for _ in range(20):
        plan.add_load(LoadTime(1000, 2.0, exact=False), now=0.0)
    assert plan.load.predict(1000) == pytest.approx(0.005)
    # One that really was slow is forgotten in a busy engine, too.
    plan.add_load(LoadTime(1000, 9.0), now=0.0)
    assert not plan.worth(1000, 1000, now=0.0)
    for _ in range(50):
        plan.add_load(LoadTime(1000, 0.02, exact=False), now=0.0)
    assert plan.worth(1000, 1000, now=0.0)


def test_loads_that_were_slow_once_are_not_declined_for_ever_in_a_busy_engine():
    plan = planner()
    plan.prefill.add(1000, 0.1, now=0.0)
    plan.add_load(LoadTime(1000, 0.6), now=0.0)
    now, trials = 0.0, 0
    while not plan.worth(1000, 1000, now) or not plan.worth(1000, 1000, now):
        now += 1.0
        if plan.worth(1000, 1000, now):
            trials += 1
            plan.add_load(LoadTime(1000, 2.0, exact=False), now)
        assert trials < 10
    assert trials > 2


def test_breaker_opens_after_repeated_failures_only():
    breaker = Breaker(shortest=1.0, longest=8.0, threshold=2)
    breaker.failure(0.0)
    assert breaker.closed
    breaker.success()
    breaker.failure(0.0)
    breaker.failure(0.0)
    assert not breaker.closed
    assert not breaker.may_ask(0.5)


def test_open_breaker_lets_one_trial_through_after_its_pause():
    breaker = Breaker(shortest=1.0, longest=8.0, threshold=1)
    breaker.failure(0.0)
    assert breaker.may_ask(1.5)
    assert not breaker.may_ask(1.6)
    breaker.success()
    assert breaker.closed and breaker.may_ask(1.7)


def test_pauses_double_up_to_the_longest():
    breaker = Breaker(shortest=1.0, longest=3.0, threshold=1)
    breaker.failure(0.0)
    now = 0.0
    pauses = []
    for _ in range(4):
        start = now
        while not breaker.may_ask(now):
            now += 0.125
        pauses.append(now - start)
        breaker.failure(now)
    assert pauses == [1.0, 2.0, 3.0, 3.0]


def test_late_failures_of_an_open_breaker_do_not_prolong_it():
    breaker = Breaker(shortest=1.0, longest=8.0, threshold=1)
    breaker.failure(0.0)
    for _ in range(10):
        breaker.failure(0.5)
    assert breaker.may_ask(1.0)
