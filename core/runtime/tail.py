"""Reads a whole run off the log into a ``RunHistory``, again and again. Used by the supervisor and by ``distrl status``.

A broadcast reader: it has no group, commits nothing and moves no one's offset.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Protocol, Self

from distrl.core.contracts.bus import Bus, Consumer, Headers, Record
from distrl.core.contracts.clock import Clock, SystemClock
from distrl.core.contracts.events import Event, NodeStatus
from distrl.core.contracts.topic import ALL, TopicName
from distrl.core.errors import CodecError, RegistryUnavailableError
from distrl.core.runtime.dead_letter import read_marker
from distrl.core.runtime.history import RunHistory
from distrl.core.runtime.liveness import Signs

# `weights` tells all that its compacted copy does, and a priority changes nothing that a history shows.
DEFAULT_TOPICS = tuple(topic for topic in ALL if topic not in ("weights-latest", "priorities"))
STATUS_TOPICS = ("weights", "nodes", "metrics", "dead-letters")
"""Enough for who is alive, lag, waits, versions and what could not be handled; spares reading every trajectory."""
_BATCH = 500


class Decoder(Protocol):
    """The half of ``core.codec`` that a reader needs."""

    def decode(self, data: bytes, *, headers: Headers = ...) -> Event:
        """Raises ``CodecError`` for bytes that are no event."""


class RunTail:
    """Follows one run. Not safe for use by several threads. The topics must exist (``UnknownTopicError``)."""

    def __init__(
        self,
        bus: Bus,
        codec: Decoder,
        run: str,
        *,
        evaluator: str = "",
        topics: Sequence[str] = DEFAULT_TOPICS,
        clock: Clock | None = None,
    ) -> None:
        """``evaluator``: whose verdicts count (see ``RunHistory``). ``topics``: bare names of what to read."""
        name = TopicName(run)
        self.history = RunHistory(run, evaluator=evaluator)
        self._codec = codec
        self._topics = {name(topic): topic for topic in topics}
        self._consumer: Consumer = bus.consumer(list(self._topics))
        self.signs = Signs(clock or SystemClock())
        """Who is alive."""

    def poll(self, timeout_s: float) -> int:
        """Take over what there is, waiting up to ``timeout_s`` seconds for the first record; returns how many records came.

        Raises ``RegistryUnavailableError`` (retriable) at a record whose schema must be asked for and cannot be; it comes again.
        """
        if not self.signs.following:
            self.signs.follow(self._consumer.end_offsets())
        records = self._consumer.poll(timeout_s, _BATCH)
        for index, record in enumerate(records):
            try:
                self._take(record)
            except RegistryUnavailableError:
                self._read_again(records[index:])
                raise
        if len(records) < _BATCH:
            self.signs.looked()
        return len(records)

    def catch_up(self, limit: int | None = None) -> int:
        """Read until nothing is left (or ``limit`` records, so that a caller may breathe); returns how many came."""
        taken = 0
        while limit is None or taken < limit:
            taken += (count := self.poll(0.05))
            if count == 0 and not any(self._consumer.lag().values()):
                break
        return taken

    def behind(self) -> bool:
        """Whether the log holds more than was read."""
        return any(self._consumer.lag().values())

    def close(self) -> None:
        """Release the reader. Idempotent."""
        self._consumer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _read_again(self, records: Sequence[Record]) -> None:
        """Set the reader back to the first of ``records`` in each partition."""
        for record in reversed(records):
            self._consumer.seek(record.topic_partition, record.offset)

    def _take(self, record: Record) -> None:
        topic = self._topics[record.topic]
        if record.value is None:
            if topic == "nodes" and record.key is not None:
                with contextlib.suppress(UnicodeDecodeError):
                    self.history.node_left(record.key.decode())
                    self.signs.left(record.key.decode())
            elif topic == "dead-letters" and (marker := read_marker(record)) is not None:
                self.history.redriven(marker.letter_id)
            return
        try:
            event = self._codec.decode(record.value, headers=record.headers)
        except CodecError:
            self.history.undecodable += 1
            return
        self.history.add(topic, event, record.timestamp_ms)
        if isinstance(event, NodeStatus):
            self.signs.heard(record, event)
