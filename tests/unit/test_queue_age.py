"""How long records have waited, whatever clocks of other machines say and however this machine's is set."""

from __future__ import annotations

import pytest

from distrl.core.contracts.bus import Record, TopicPartition
from distrl.core.runtime.queue_age import QueueAges
from distrl.core.runtime.wall_clock import WallClock
from distrl.testing import ManualClock

ZERO = TopicPartition("distrl.demo.rewards", 0)
HOURS_S = 7 * 3600.0


def record(offset: int, time_ms: int) -> Record:
    return Record(ZERO.topic, ZERO.partition, offset, time_ms, None, b"")


def test_the_oldest_record_that_was_read_counts_until_it_is_told() -> None:
    clock = ManualClock()
    ages = QueueAges(clock)
    now = clock.time_ms()
    ages.read([record(0, now - 30_000), record(1, now - 20_000)])
    ages.read([])
    assert ages.ages() == {"rewards": 30.0}
    assert ages.take() == {"rewards": 30.0}
    assert ages.take() == {"rewards": 0.0}


def test_a_record_in_hand_grows_older_while_its_handler_hangs() -> None:
    clock = ManualClock()
    ages = QueueAges(clock)
    ages.read([record(0, clock.time_ms())])
    clock.advance(100.0)
    assert ages.take() == {"rewards": 100.0}
    ages.read([])
    assert ages.ages() == {"rewards": 0.0}


def test_what_is_unread_ages_although_nobody_reads_it() -> None:
    clock = ManualClock()
    ages = QueueAges(clock)
    ages.looked({ZERO: 2})
    clock.advance(50.0)
    ages.looked({ZERO: 3})
    assert ages.ages() == {"rewards": 50.0}
    ages.looked({ZERO: 0})
    assert ages.ages() == {"rewards": 0.0}


def test_what_is_read_again_on_purpose_has_not_waited() -> None:
    clock = ManualClock()
    ages = QueueAges(clock)
    ages.reread({ZERO: 5})
    ages.looked({ZERO: 5})
    clock.advance(10.0)
    ages.read([record(4, clock.time_ms() - 3_600_000)])
    ages.read([])
    assert ages.ages() == {"rewards": 0.0}
    ages.read([record(5, clock.time_ms() - 2_000)])
    assert ages.ages() == {"rewards": 2.0}


def test_another_machine_s_wrong_clock_does_not_make_a_record_old() -> None:
    clock = ManualClock()
    ages = QueueAges(clock)
    ages.looked({ZERO: 0})
    clock.advance(2.0)
    ages.read([record(0, clock.time_ms() - round(HOURS_S * 1000))])
    assert ages.ages() == {"rewards": 2.0}
    ages.read([record(1, clock.time_ms() + round(HOURS_S * 1000))])
    assert ages.take() == {"rewards": 2.0}


@pytest.mark.parametrize("jump_s", [HOURS_S, -HOURS_S])
def test_a_wall_clock_that_is_set_changes_no_age(jump_s: float) -> None:
    clock = ManualClock()
    ages, wall = QueueAges(clock), WallClock(clock)
    before = clock.time_ms()
    clock.advance(3.0)
    clock.set_forward_s += jump_s
    assert wall.age_s(before) == pytest.approx(3.0)
    ages.read([record(0, before)])
    assert ages.ages() == {"rewards": pytest.approx(3.0)}
    after = clock.time_ms()
    clock.advance(4.0)
    assert wall.age_s(after) == pytest.approx(4.0)
    ages.read([record(1, after)])
    assert ages.ages() == {"rewards": pytest.approx(4.0)}


def test_a_clock_that_is_set_there_and_back_changes_no_age() -> None:
    clock = ManualClock()
    wall = WallClock(clock)
    clock.set_forward_s = HOURS_S
    assert wall.age_s(clock.time_ms()) == 0.0
    during = clock.time_ms()
    clock.advance(5.0)
    clock.set_forward_s = 0.0
    assert wall.age_s(during) == pytest.approx(5.0)
    assert wall.age_s(clock.time_ms() - 2_000) == pytest.approx(2.0)
