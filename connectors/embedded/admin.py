"""The embedded log's ``TopicAdmin``. Made by ``bus``; ``distrl topics``, ``status`` and ``runs`` use it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from distrl.connectors.embedded.catalogue import Catalogue, Topic
from distrl.connectors.embedded.partition import Partition
from distrl.connectors.embedded.uptime import uptime_ms
from distrl.core.contracts.bus import TopicPartition, TopicSpec
from distrl.core.contracts.clock import Clock
from distrl.core.errors import BusError


class EmbeddedAdmin:
    """Implements ``TopicAdmin``. Safe for use by several threads."""

    def __init__(self, catalogue: Catalogue, clock: Clock) -> None:
        self._catalogue = catalogue
        self._clock = clock

    def topics(self, names: Sequence[str] | None = None) -> dict[str, TopicSpec]:
        found = self._catalogue.topics()
        return {name: topic.spec for name, topic in found.items() if names is None or name in names}

    def create(self, specs: Sequence[TopicSpec]) -> list[str]:
        return self._catalogue.create_topics(specs)

    def alter(self, specs: Sequence[TopicSpec]) -> list[str]:
        return self._catalogue.alter_topics(specs)

    def delete(self, names: Sequence[str]) -> None:
        self._catalogue.delete_topics(names)

    def delete_records(self, before: Mapping[TopicPartition, int]) -> None:
        for name, offset in before.items():
            topic = self._catalogue.topic(name.topic)
            if not 0 <= name.partition < topic.spec.partitions:
                raise BusError(f"topic {name.topic!r} has no partition {name.partition}")
            with self._opened(topic, name.partition) as partition:
                partition.trim(offset)

    def groups(self, prefix: str = "") -> list[str]:
        return sorted(name for name in self._catalogue.groups(uptime_ms(self._clock)) if name.startswith(prefix))

    def delete_groups(self, names: Sequence[str]) -> None:
        kept = self._catalogue.delete_groups(names, uptime_ms(self._clock))
        if kept:
            raise BusError(f"group {', '.join(kept)} has members: stop them, or wait until their sessions end")

    def group_offsets(self, group: str) -> dict[TopicPartition, int]:
        return self._catalogue.offsets(group)

    def end_offsets(self, topics: Sequence[str]) -> dict[TopicPartition, int]:
        ends: dict[TopicPartition, int] = {}
        for topic in map(self._catalogue.topic, topics):
            for name in topic.partitions():
                with self._opened(topic, name.partition) as partition:
                    ends[name] = partition.end()
        return ends

    def sizes(self, prefix: str = "") -> dict[str, int]:
        return {
            name: self._catalogue.size(topic)
            for name, topic in self._catalogue.topics().items()
            if name.startswith(prefix)
        }

    @contextmanager
    def _opened(self, topic: Topic, index: int) -> Iterator[Partition]:
        partition = self._catalogue.open(topic, index)
        try:
            yield partition
        finally:
            partition.close()
