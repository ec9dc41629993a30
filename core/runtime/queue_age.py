"""How long records have waited to be read and handled, by topic. ``EventReader`` feeds it, the node's numbers come from it.

A record's own time was taken by another machine's clock. So what this reader has seen itself bounds it: a record cannot be older
than the moment at which its partition was last seen empty, and what is known to be unread ages whether or not it is read.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from distrl.core.contracts.bus import Record, TopicPartition
from distrl.core.contracts.clock import Clock
from distrl.core.runtime.wall_clock import WallClock


@dataclass(slots=True)
class _Partition:
    empty: float | None = None
    """When nothing was unread, at the last such look; monotonic seconds."""
    unread: float | None = None
    """Since when something is known to be unread and nothing was read."""
    reread: int = 0
    """Records below this offset are read once more; they wait for nobody."""


class QueueAges:
    """Ages in seconds. Fed by one thread, read by any."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wall = WallClock(clock)
        self._lock = threading.Lock()
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._read: dict[str, float] = {}
        """The oldest record read since the last ``take``, by topic."""
        self._in_hand: dict[str, float] = {}
        """When the oldest record in hand would have been written, monotonic seconds."""

    def read(self, records: Sequence[Record]) -> None:
        """These were read and are in hand until the next call."""
        with self._lock:
            now = self._clock.monotonic()
            self._in_hand.clear()
            for record in records:
                partition = self._partitions.setdefault(record.topic_partition, _Partition())
                if record.offset < partition.reread:
                    continue
                age = self._wall.age_s(record.timestamp_ms)
                if partition.unread is not None:
                    age = max(age, now - partition.unread)
                if partition.empty is not None:
                    age = min(age, now - partition.empty)
                topic = _bare(record.topic)
                self._read[topic] = max(self._read.get(topic, 0.0), age)
                self._in_hand[topic] = min(self._in_hand.get(topic, now), now - age)
            for place in {record.topic_partition for record in records}:
                self._partitions[place].unread = None

    def looked(self, lags: Mapping[TopicPartition, int]) -> None:
        """What is unread now, by assigned partition. A partition that is not named is another reader's."""
        with self._lock:
            now = self._clock.monotonic()
            for gone in self._partitions.keys() - lags.keys():
                del self._partitions[gone]
            for place, lag in lags.items():
                partition = self._partitions.setdefault(place, _Partition())
                if not lag:
                    partition.empty, partition.unread, partition.reread = now, None, 0
                elif partition.unread is None and not partition.reread:
                    partition.unread = now

    def reread(self, below: Mapping[TopicPartition, int]) -> None:
        """These partitions are read again from further back, on purpose, up to the offset that stands here."""
        with self._lock:
            for place, offset in below.items():
                self._partitions[place] = _Partition(reread=offset)

    def ages(self) -> dict[str, float]:
        """By topic, how long the oldest record has waited that was read since the last ``take``, is in hand, or is unread."""
        with self._lock:
            return self._ages()

    def take(self) -> dict[str, float]:
        """The same, and a new interval begins."""
        with self._lock:
            ages = self._ages()
            self._read = dict.fromkeys(self._read, 0.0)
            return ages

    def _ages(self) -> dict[str, float]:
        now = self._clock.monotonic()
        ages = dict(self._read)
        for topic, written in self._in_hand.items():
            ages[topic] = max(ages.get(topic, 0.0), now - written)
        for place, partition in self._partitions.items():
            topic = _bare(place.topic)
            waited = 0.0 if partition.unread is None else now - partition.unread
            ages[topic] = max(ages.get(topic, 0.0), waited)
        return ages


def _bare(topic: str) -> str:
    return topic.rpartition(".")[2]
