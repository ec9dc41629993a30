"""The newest event of each id, whatever order they come in: what prioritizer and learner know of priorities and feedback.

A sender that tries again may put an older event behind a newer one on the log, and a restart brings some twice. So the events
themselves say which is newer, not their offsets.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from distrl.core.contracts.events import Feedback, Priority
from distrl.core.contracts.identity import derived_id

E = TypeVar("E", Feedback, Priority)


def feedback_order(event: Feedback) -> tuple[Any, ...]:
    """Grows with the learner's work on a trajectory."""
    return event.epoch, event.version, event.envelope.time_ms, event.envelope.event_id


def priority_order(event: Priority) -> tuple[Any, ...]:
    """The same for priorities: what was computed on arrival is older than whatever training told of the same version."""
    trained = event.envelope.event_id != arrival_id(event.trajectory_id, event.prioritizer)
    return event.version, trained, event.envelope.time_ms, event.envelope.event_id


def arrival_id(trajectory_id: str, prioritizer: str) -> str:
    """The id of the priority that a trajectory gets when it arrives."""
    return derived_id("priority", trajectory_id, prioritizer, "arrived")


class Newest(Generic[E]):
    """Remembers ``capacity`` trajectories, those that had news last."""

    def __init__(self, capacity: int, order: Callable[[E], tuple[Any, ...]], events: Iterable[E] = ()) -> None:
        self._capacity = capacity
        self._order: Callable[[E], tuple[Any, ...]] = order
        self._events: OrderedDict[str, E] = OrderedDict()
        for event in events:
            self.offer(event)

    def offer(self, event: E) -> bool:
        """Take an event; whether it is newer than all that came of its trajectory."""
        known = self._events.get(event.trajectory_id)
        if known is not None and self._order(event) <= self._order(known):
            return False
        self._events[event.trajectory_id] = event
        self._events.move_to_end(event.trajectory_id)
        if len(self._events) > self._capacity:
            self._events.popitem(last=False)
        return True

    def get(self, trajectory_id: str) -> E | None:
        return self._events.get(trajectory_id)

    def forget(self, trajectory_id: str) -> None:
        self._events.pop(trajectory_id, None)

    def events(self) -> list[E]:
        """The one that had news longest ago first."""
        return list(self._events.values())
