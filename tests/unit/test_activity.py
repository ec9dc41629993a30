"""What a node spends its time on, and the watchdog that ends a wait."""

from __future__ import annotations

import threading

import pytest

from distrl.core.contracts.metric import (
    BUCKETS_S,
    BUSY_SHARE,
    CHECKPOINT_AGE,
    EPISODES,
    HANDLED,
    HANDLER_SECONDS,
    IN_FLIGHT_BYTES,
    IN_FLIGHT_RECORDS,
    OUTBOX,
    WAIT_SHARE,
)
from distrl.core.errors import StarvedError
from distrl.core.runtime.activity import Activity
from distrl.core.runtime.watchdog import Missing, Watchdog
from distrl.testing import ManualClock


def test_time_goes_to_what_the_loop_marks() -> None:
    clock = ManualClock()
    activity = Activity(clock)
    with activity.span("busy"):
        clock.advance(3.0)
        with activity.span("store"):
            clock.advance(1.0)
            assert activity.waiting_for == "store"
        assert activity.waiting_for == ""
    activity.enter("trajectories")
    clock.advance(4.0)
    assert activity.waiting_for == "trajectories"
    interval, values = activity.take()
    assert interval == 8000
    assert values[BUSY_SHARE] == pytest.approx(3 / 8)
    assert values[WAIT_SHARE + "store"] == pytest.approx(1 / 8)
    assert values[WAIT_SHARE + "trajectories"] == pytest.approx(4 / 8)
    # What goes on goes on into the next interval.
    clock.advance(2.0)
    assert activity.take()[1][WAIT_SHARE + "trajectories"] == pytest.approx(1.0)


def test_counters_end_with_the_interval_and_gauges_stand() -> None:
    clock = ManualClock()
    activity = Activity(clock)
    activity.count(EPISODES, 2)
    activity.gauge(OUTBOX, 7)
    clock.advance(1.0)
    values = activity.take()[1]
    assert (values[EPISODES], values[OUTBOX]) == (2.0, 7.0)
    activity.count(EPISODES)
    clock.advance(1.0)
    values = activity.take()[1]
    assert (values[EPISODES], values[OUTBOX]) == (1.0, 7.0)
    assert activity.totals() == {EPISODES: 3}


def test_an_unknown_cause_is_refused() -> None:
    with pytest.raises(ValueError, match="napping"):
        Activity(ManualClock()).enter("napping")


def test_a_wait_ends_with_an_error_that_names_the_side() -> None:
    clock = ManualClock()
    activity = Activity(clock)
    watchdog = Watchdog(clock, bound_s=60.0, board=activity)
    missing = Missing("collector", "no collector is alive")

    def wait(seconds: float) -> None:
        clock.advance(seconds)
        watchdog.hungry(lambda: missing)

    wait(0.0)
    wait(59.0)
    watchdog.fed()
    wait(0.0)
    wait(59.0)
    with pytest.raises(StarvedError, match="no collector is alive"):
        wait(1.0)


def test_who_is_missing_is_told_until_there_is_progress() -> None:
    clock = ManualClock()
    activity = Activity(clock)
    watchdog = Watchdog(clock, bound_s=60.0, board=activity)
    collector, evaluator = Missing("collector", "no collector"), Missing("evaluator", "no evaluator")
    watchdog.hungry(lambda: collector)
    assert activity.missing == ()
    clock.advance(3.0)
    watchdog.hungry(lambda: collector)
    assert activity.missing == (collector,)
    clock.advance(1.0)
    watchdog.hungry(lambda: evaluator)
    assert activity.missing == (evaluator,)
    clock.advance(1.0)
    watchdog.hungry(lambda: None)
    assert activity.missing == ()
    clock.advance(1.0)
    watchdog.hungry(lambda: evaluator)
    activity.miss("another part", collector)
    watchdog.fed()
    assert activity.missing == (collector,)


def test_a_role_with_nothing_to_do_says_so_and_goes_on() -> None:
    clock = ManualClock()
    watchdog = Watchdog(clock, bound_s=60.0, ends=False)
    for _ in range(100):
        watchdog.hungry(lambda: Missing("collector", "no collector is alive"))
        clock.advance(10.0)
    assert watchdog.waited_s == pytest.approx(1000.0)


def test_a_wait_goes_on_over_the_polls_of_a_loop_and_ends_with_work() -> None:
    clock = ManualClock()
    activity = Activity(clock)
    for _ in range(4):
        with activity.span("trajectories"):
            clock.advance(0.5)
    assert activity.snapshot().waiting == ("trajectories", 2.0)
    with activity.span("busy"):
        clock.advance(1.0)
        assert activity.snapshot().waiting == ("", 0.0)
    with activity.span("log"):
        clock.advance(1.0)
        assert activity.snapshot().waiting == ("log", 1.0)
    assert activity.snapshot().seconds == {"trajectories": 2.0, "busy": 1.0, "log": 1.0}


def test_only_the_loop_s_own_thread_makes_progress() -> None:
    clock = ManualClock()
    activity = Activity(clock)
    clock.advance(5.0)
    for progress in (activity.came_round, lambda: activity.enter("busy")):
        thread = threading.Thread(target=progress)
        thread.start()
        thread.join()
        assert activity.loop_age_s == 5.0
    activity.came_round()
    assert activity.loop_age_s == 0.0


def test_what_is_served_counts_since_the_start_and_what_is_sent_since_the_last_time() -> None:
    clock = ManualClock()
    activity = Activity(clock)
    for _ in range(2):
        activity.count(HANDLED, 3, "rewards")
        activity.count(HANDLED, 1, "trajectories")
        clock.advance(1.0)
        assert activity.take()[1][HANDLED] == 4.0
    assert activity.snapshot().counts == {(HANDLED, "rewards"): 6, (HANDLED, "trajectories"): 2}
    assert activity.totals() == {HANDLED: 8}
    with activity.timed("update"):
        clock.advance(0.3)
    histogram = activity.snapshot().histograms[HANDLER_SECONDS, "update"]
    assert sum(histogram.counts) == 1
    assert histogram.counts[BUCKETS_S.index(0.5)] == 1
    assert histogram.sum == pytest.approx(0.3)
    activity.follow(lambda: (3, 700))
    activity.follow(lambda: (1, 50))
    activity.checkpointed()
    clock.advance(9.0)
    gauges = activity.snapshot().gauges
    assert (gauges[IN_FLIGHT_RECORDS], gauges[IN_FLIGHT_BYTES], gauges[CHECKPOINT_AGE]) == (4, 750, 9.0)
