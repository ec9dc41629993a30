"""What a node spends its time on, and the watchdog that ends a wait."""

from __future__ import annotations

import pytest

from distrl.core.contracts.metric import BUSY_SHARE, EPISODES, OUTBOX, QUEUE_AGE_MS, WAIT_SHARE
from distrl.core.errors import StarvedError
from distrl.core.runtime.activity import Activity
from distrl.core.runtime.watchdog import Watchdog
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
    activity.queue_age(30.0)
    activity.queue_age(20.0)
    clock.advance(1.0)
    values = activity.take()[1]
    assert (values[EPISODES], values[OUTBOX], values[QUEUE_AGE_MS]) == (2.0, 7.0, 30.0)
    activity.count(EPISODES)
    clock.advance(1.0)
    values = activity.take()[1]
    assert (values[EPISODES], values[OUTBOX], values[QUEUE_AGE_MS]) == (1.0, 7.0, 0.0)
    assert activity.totals() == {EPISODES: 3}


def test_an_unknown_cause_is_refused() -> None:
    with pytest.raises(ValueError, match="napping"):
        Activity(ManualClock()).enter("napping")


def test_a_wait_ends_with_an_error_that_names_the_side() -> None:
    clock = ManualClock()
    watchdog = Watchdog(clock, bound_s=60.0)
    watchdog.hungry(lambda: "no collector is alive")
    clock.advance(59.0)
    watchdog.hungry(lambda: "no collector is alive")
    watchdog.fed()
    watchdog.hungry(lambda: "no collector is alive")
    clock.advance(59.0)
    watchdog.hungry(lambda: "no collector is alive")
    clock.advance(1.0)
    with pytest.raises(StarvedError, match="no collector is alive"):
        watchdog.hungry(lambda: "no collector is alive")
