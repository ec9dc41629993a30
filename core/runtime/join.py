"""The join by trajectory id: a trajectory waits here for the verdict that trains. Used by prioritizer and learner.

Verdicts are a view of the log: they are read again from the start of their partition at each assignment, so a trajectory that is
delivered again after a restart finds its verdict, and they may be acknowledged as soon as they are here. A trajectory is
acknowledged when its effect is durable, which is the caller's business.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from distrl.core.contracts.bus import Record, TopicPartition
from distrl.core.contracts.clock import Clock
from distrl.core.contracts.events import Reward, Trajectory
from distrl.core.contracts.role import Experience


@dataclass(frozen=True, slots=True)
class Joined:
    """A judged trajectory and the record that brought it."""

    experience: Experience
    record: Record


@dataclass(slots=True)
class _Waiting:
    trajectory: Trajectory
    record: Record
    since: float


class Join:
    """Pairs trajectories with the first verdict of one evaluator. Memory is bounded: ``capacity`` verdicts, and
    ``patience_s`` seconds that a trajectory waits."""

    def __init__(
        self, *, evaluator: str, version_pattern: str, patience_s: float, clock: Clock, capacity: int = 200_000
    ) -> None:
        self._evaluator = evaluator
        self._pattern = version_pattern
        self._patience = patience_s
        self._clock = clock
        self._capacity = capacity
        self._waiting: OrderedDict[str, _Waiting] = OrderedDict()
        self._verdicts: OrderedDict[str, Reward] = OrderedDict()

    def trajectory(self, event: Trajectory, record: Record) -> Joined | None:
        """Take a trajectory; the pair, if its verdict is here."""
        reward = self._verdicts.get(event.trajectory_id)
        if reward is not None:
            self._waiting.pop(event.trajectory_id, None)
            return Joined(Experience(event, reward), record)
        self._waiting[event.trajectory_id] = _Waiting(event, record, self._clock.monotonic())
        return None

    def repeats(self, event: Trajectory, record: Record) -> bool:
        """Whether the trajectory waits already under another record: this one has nothing to add."""
        waiting = self._waiting.get(event.trajectory_id)
        return waiting is not None and (waiting.record.topic_partition, waiting.record.offset) != (
            record.topic_partition,
            record.offset,
        )

    def reward(self, event: Reward) -> Joined | None:
        """Take a verdict; the pair, if its trajectory waits. Other evaluators' and later verdicts are ignored."""
        if event.evaluator != self._evaluator or not fnmatchcase(event.evaluator_version, self._pattern):
            return None
        if event.trajectory_id in self._verdicts:
            return None
        self._verdicts[event.trajectory_id] = event
        if len(self._verdicts) > self._capacity:
            self._verdicts.popitem(last=False)
        waiting = self._waiting.pop(event.trajectory_id, None)
        return None if waiting is None else Joined(Experience(waiting.trajectory, event), waiting.record)

    def expired(self) -> list[Record]:
        """Records of trajectories that have waited too long; they are let go."""
        now = self._clock.monotonic()
        records: list[Record] = []
        while self._waiting:
            identity, oldest = next(iter(self._waiting.items()))
            if now - oldest.since < self._patience:
                break
            del self._waiting[identity]
            records.append(oldest.record)
        return records

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """These partitions belong to another node now."""
        gone = set(partitions)
        for identity in [key for key, item in self._waiting.items() if item.record.topic_partition in gone]:
            del self._waiting[identity]

    def oldest(self) -> dict[TopicPartition, int]:
        """Per partition, the lowest offset of a trajectory that still waits."""
        offsets: dict[TopicPartition, int] = {}
        for item in self._waiting.values():
            partition = item.record.topic_partition
            offsets[partition] = min(offsets.get(partition, item.record.offset), item.record.offset)
        return offsets

    @property
    def waiting(self) -> int:
        """Trajectories without a verdict."""
        return len(self._waiting)
