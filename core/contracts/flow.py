"""What each topic carries, and which role writes and reads it: one table, in this one place. ``distrl schemas asyncapi`` tells it to
other programs, ``docs/topics.md`` to people (a test compares)."""

from __future__ import annotations

from dataclasses import dataclass

from distrl.core.contracts.events import (
    ROLES,
    DeadLetter,
    Event,
    Feedback,
    Metrics,
    NodeStatus,
    Priority,
    Reward,
    Role,
    Trajectory,
    WeightsUpdate,
)


@dataclass(frozen=True, slots=True)
class Flow:
    """One topic, between those who write it and those who read it."""

    event: type[Event]
    key: str
    """What a record is joined, compacted and partitioned by, in words."""
    written_by: tuple[Role, ...]
    read_by: tuple[Role, ...]
    """Besides tools that a person calls."""
    tombstones: bool = False
    """Whether a record without a value says that its key is gone."""


FLOWS: dict[str, Flow] = {
    "trajectories": Flow(
        Trajectory, "trajectory id", ("collector",), ("evaluator", "prioritizer", "learner", "supervisor")
    ),
    "rewards": Flow(Reward, "trajectory id", ("evaluator",), ("prioritizer", "learner", "supervisor")),
    "priorities": Flow(Priority, "trajectory id", ("prioritizer",), ("learner",)),
    "feedback": Flow(Feedback, "trajectory id", ("learner",), ("prioritizer", "supervisor")),
    "weights": Flow(WeightsUpdate, "policy name", ("learner",), ("learner", "supervisor")),
    "weights-latest": Flow(WeightsUpdate, "policy name", ("learner",), ("collector", "learner")),
    "nodes": Flow(NodeStatus, "node id", ROLES, (*ROLES, "supervisor"), tombstones=True),
    "metrics": Flow(Metrics, "node id", ROLES, ("supervisor",)),
    "dead-letters": Flow(DeadLetter, "key of the origin", ROLES, ("supervisor",)),
}
"""By topic (``core.contracts.topic``), in the order of its declarations."""
