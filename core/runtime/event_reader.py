"""Reads events for a role: decodes, checks and hands over; what is no event goes to the dead letters and the role goes on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from distrl.core.codec import Codec
from distrl.core.contracts.bus import Consumer, Record, TopicPartition
from distrl.core.contracts.clock import Clock
from distrl.core.contracts.events import Event
from distrl.core.contracts.metric import HANDLED, LAG
from distrl.core.errors import BusUnavailableError, DistrlError, InvalidEventError
from distrl.core.runtime.activity import Activity
from distrl.core.runtime.event_writer import EventWriter

E = TypeVar("E", bound=Event)


@dataclass(frozen=True, slots=True)
class Received(Generic[E]):
    """An event and the record that brought it."""

    record: Record
    event: E


class EventReader:
    """Events of one consumer. Used from one thread."""

    def __init__(
        self, consumer: Consumer, codec: Codec, writer: EventWriter, *, run: str, clock: Clock, activity: Activity
    ) -> None:
        self.consumer = consumer
        self._codec = codec
        self._writer = writer
        self._run = run
        self._clock = clock
        self._activity = activity
        self._lag_due = 0.0

    def poll(self, timeout_s: float, max_records: int = 500) -> list[Received[Event]]:
        """The next events. Poison is dead-lettered and acknowledged here; tombstones are acknowledged and skipped."""
        received: list[Received[Event]] = []
        records = self.consumer.poll(timeout_s, max_records)
        self._activity.came_round()
        self._activity.partitions = len(self.consumer.assignment())
        self._activity.queues.read(records)
        for record in records:
            if record.value is None:
                self.consumer.ack(record)
                continue
            try:
                event = self._codec.decode(record.value, headers=record.headers)
                if event.envelope.run != self._run:
                    raise InvalidEventError(f"an event of run {event.envelope.run!r} on a topic of {self._run!r}")
            except DistrlError as error:
                self.refuse(record, error)
                continue
            received.append(Received(record, event))
        for topic, count in Counter(item.record.topic for item in received).items():
            self._activity.count(HANDLED, count, topic.rpartition(".")[2])
        self._note_lag()
        return received

    def ack(self, records: Iterable[Record]) -> None:
        """These are done. Committed at the next ``commit``."""
        for record in records:
            self.consumer.ack(record)

    def refuse(self, record: Record, error: DistrlError, *, attempt: int = 1) -> None:
        """Dead-letter a record, then acknowledge it."""
        self._writer.dead_letter(record, error, attempt=attempt)
        self.consumer.ack(record)

    def seek(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Read these partitions from further back, on purpose: what is read once more has not waited for this reader."""
        self._activity.queues.reread({partition: self.consumer.position(partition) for partition in offsets})
        for partition, offset in offsets.items():
            self.consumer.seek(partition, offset)

    def _note_lag(self) -> None:
        now = self._clock.monotonic()
        if now < self._lag_due:
            return
        self._lag_due = now + 2.0
        try:
            lags = self.consumer.lag()
        except BusUnavailableError:
            return  # an observation only: what matters about an outage shows in poll
        self._activity.queues.looked(lags)
        totals: dict[str, int] = {}
        for partition, lag in lags.items():
            totals[partition.topic] = totals.get(partition.topic, 0) + lag
        for topic, lag in totals.items():
            self._activity.gauge(LAG + topic.rpartition(".")[2], lag)
