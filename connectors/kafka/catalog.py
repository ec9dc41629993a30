"""What topics there are, as the producers and consumers of one bus need to know it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from distrl.core.contracts.bus import TopicPartition
from distrl.core.errors import UnknownTopicError


@dataclass(frozen=True, slots=True)
class KnownTopic:
    partitions: int
    max_record_bytes: int


class Catalog:
    """Partitions and limits of topics, asked once and kept. Safe for use by several threads.

    ``describe`` maps names to what is known of those that exist (``admin.KafkaAdmin.describe``).
    """

    def __init__(self, describe: Callable[[Sequence[str]], dict[str, KnownTopic]]) -> None:
        self._describe = describe
        self._known: dict[str, KnownTopic] = {}
        self._lock = threading.Lock()

    def topic(self, name: str) -> KnownTopic:
        """Raises ``UnknownTopicError``, and ``BusUnavailableError`` if it must ask and gets no answer."""
        known = self._known.get(name)
        if known is None:
            with self._lock:
                self._known.update(self._describe([name]))
                known = self._known.get(name)
        if known is None:
            raise UnknownTopicError(f"there is no topic {name!r}; make it with `distrl topics apply`")
        return known

    def partitions(self, names: Sequence[str]) -> list[TopicPartition]:
        """All partitions of the topics. Always asks, so what was removed meanwhile is not believed in."""
        self.forget(names)
        return [TopicPartition(name, index) for name in names for index in range(self.topic(name).partitions)]

    def forget(self, names: Sequence[str]) -> None:
        for name in names:
            self._known.pop(name, None)
