"""Who is alive, whatever the wall clocks of this machine and of others say."""

from __future__ import annotations

import pytest

from distrl.core.contracts.bus import Record, TopicPartition
from distrl.core.contracts.events import Envelope, NodeStatus
from distrl.core.runtime.liveness import Signs
from distrl.testing import ManualClock

TOPIC = "distrl.demo.nodes"
HOURS_S = 7 * 3600.0


class View:
    """Signs of life of one node, a sign a second."""

    def __init__(self, *, before: int = 0) -> None:
        """``before``: offset at which the log ends when the reader comes."""
        self.clock = ManualClock()
        self.signs = Signs(self.clock)
        self.signs.follow({TopicPartition(TOPIC, 0): before})
        self.offset = 0

    def beat(self, node: str = "c0", *, time_ms: int | None = None, state: str = "running") -> None:
        time_ms = self.clock.time_ms() if time_ms is None else time_ms
        status = NodeStatus(Envelope("e", "demo", node, time_ms), "collector", "p", state, "i", "h", 1, 0, 1000)  # type: ignore[arg-type]
        self.signs.heard(Record(TOPIC, 0, self.offset, time_ms, node.encode(), b""), status)
        self.signs.looked()
        self.offset += 1


def test_three_missed_signs_mean_dead() -> None:
    view = View()
    view.beat()
    view.clock.advance(3.0)
    assert view.signs.is_alive("c0")
    view.clock.advance(0.1)
    assert not view.signs.is_alive("c0")
    assert [status.envelope.node for status in view.signs.silent()] == ["c0"]
    assert view.signs.age_s("c0") == pytest.approx(3.1)
    view.beat()
    assert view.signs.is_alive("c0")


def test_who_left_or_stopped_is_not_alive_and_not_silent() -> None:
    view = View()
    view.beat("c0")
    view.beat("c1", state="stopped")
    view.signs.left("c0")
    assert view.signs.alive() == []
    assert view.signs.silent() == []
    assert view.signs.age_s("c0") is None


def test_a_sign_from_before_is_as_old_as_it_says() -> None:
    view = View(before=1)
    view.beat(time_ms=view.clock.time_ms() - 60_000)
    assert not view.signs.is_alive("c0")


def test_a_sign_from_before_that_lies_in_the_future_proves_nothing_until_the_next_one() -> None:
    view = View(before=1)
    view.beat(time_ms=view.clock.time_ms() + round(HOURS_S * 1000))
    assert not view.signs.is_alive("c0")
    view.clock.advance(1.0)
    view.beat(time_ms=view.clock.time_ms() + round(HOURS_S * 1000))
    assert view.signs.is_alive("c0")


@pytest.mark.parametrize("jump_s", [HOURS_S, -HOURS_S])
def test_a_clock_that_is_set_kills_nobody_and_hides_no_death(jump_s: float) -> None:
    view = View()
    view.beat()
    view.clock.advance(1.0)
    view.clock.set_forward_s += jump_s
    assert view.signs.is_alive("c0")
    view.beat()
    view.clock.advance(3.0)
    assert view.signs.is_alive("c0")
    view.clock.advance(0.1)
    assert not view.signs.is_alive("c0")


@pytest.mark.parametrize("skew_s", [HOURS_S, -HOURS_S])
def test_another_machine_s_clock_need_not_agree(skew_s: float) -> None:
    view = View()
    for _ in range(5):
        view.clock.advance(1.0)
        view.beat(time_ms=view.clock.time_ms() + round(skew_s * 1000))
        assert view.signs.is_alive("c0")


def test_signs_that_were_read_late_are_not_taken_for_new() -> None:
    view = View()
    view.beat()
    written = view.clock.time_ms()
    view.clock.advance(600.0)
    view.beat(time_ms=written)
    assert not view.signs.is_alive("c0")
