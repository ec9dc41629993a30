"""Reads events for a role: decodes, checks and hands over. What fails is tried again or goes to the dead letters, and the role goes on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import wait
from dataclasses import dataclass
from typing import Generic, TypeVar

import structlog

from distrl.core.codec import Codec
from distrl.core.contracts.bus import Consumer, Record, TopicPartition
from distrl.core.contracts.clock import Clock
from distrl.core.contracts.events import Event
from distrl.core.contracts.metric import HANDLED, HELD, LAG, RETRIES
from distrl.core.errors import BusUnavailableError, DistrlError, InvalidEventError, is_environmental, is_retriable
from distrl.core.runtime.activity import Activity
from distrl.core.runtime.batch import Untried
from distrl.core.runtime.event_writer import EventWriter
from distrl.core.runtime.retry import Retries
from distrl.core.runtime.worker import Worker

log = structlog.get_logger(__name__)
ATTEND_S = 1.0
"""Seconds after a poll from which on work is attended: until then the consumer is left alone."""
E = TypeVar("E", bound=Event)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Received(Generic[E]):
    """An event and the record that brought it."""

    record: Record
    event: E


class EventReader:
    """Events of one consumer, which it alone pauses and resumes. Used from one thread."""

    def __init__(
        self,
        consumer: Consumer,
        codec: Codec,
        writer: EventWriter,
        *,
        run: str,
        clock: Clock,
        activity: Activity,
        retries: Retries,
    ) -> None:
        self.consumer = consumer
        self._codec = codec
        self._writer = writer
        self._run = run
        self._clock = clock
        self._activity = activity
        self._retries = retries
        self._early: list[Record] = []
        """Came while nothing was asked for: from partitions that were assigned meanwhile."""
        self._polled = clock.monotonic()
        self._lag_due = 0.0

    def poll(self, timeout_s: float, max_records: int = 500) -> list[Received[Event]]:
        """The next events, and those whose time has come to be tried again.

        Poison is dead-lettered and acknowledged here; tombstones are acknowledged and skipped.
        """
        self._retries.keep(self.consumer.assignment())
        again = self._retries.take(max_records)
        self._activity.count(RETRIES, len(again))
        room = self._retries.room(max_records - len(again))
        fresh = self._fresh(0.0 if again else timeout_s, room)
        self._activity.came_round()
        self._activity.partitions = len(self.consumer.assignment())
        self._activity.queues.read(fresh)
        received: list[Received[Event]] = []
        for record in [*again, *(record for record in fresh if self._retries.admits(record))]:
            if record.value is None:
                self.consumer.ack(record)
                continue
            try:
                event = self._codec.decode(record.value, headers=record.headers)
                if event.envelope.run != self._run:
                    raise InvalidEventError(f"an event of run {event.envelope.run!r} on a topic of {self._run!r}")
            except DistrlError as error:
                self.failed(record, error)
                continue
            received.append(Received(record, event))
        for topic, count in Counter(item.record.topic for item in received).items():
            self._activity.count(HANDLED, count, topic.rpartition(".")[2])
        self._activity.gauge(HELD, len(self._retries))
        self._note_lag()
        return received

    # --- what became of them ----------------------------------------------------------------------

    def ack(self, records: Iterable[Record]) -> None:
        """These are done. Committed at the next ``commit``."""
        for record in records:
            self.consumer.ack(record)

    def failed(self, record: Record, error: DistrlError) -> None:
        """A record could not be handled. It is held to be tried again if that may help, else it is dead-lettered and acknowledged.

        Raises ``error`` if it is about this machine or its services and no retry mends it, or if none has for too long: then the
        record is not acknowledged.
        """
        if is_retriable(error):
            tries = self._retries.failed(record, error)
            if not tries:
                log.warning(
                    "tried again later",
                    code=error.code,
                    error=error.message,
                    topic=record.topic,
                    partition=record.partition,
                    offset=record.offset,
                )
                return
        elif is_environmental(error):
            raise error
        else:
            tries = self._retries.tries(record) + 1
        self.refuse(record, error, attempt=tries)

    def not_done(self, record: Record, why: DistrlError | Untried) -> None:
        """What ``core.runtime.batch`` says of a record that was not handled: it failed, or it was not tried and is held."""
        if isinstance(why, Untried):
            self._retries.put_off(record)
        else:
            self.failed(record, why)

    def succeeded(self) -> None:
        """The work that may fail with what passes (a store, a model's server) was done for some record."""
        self._retries.succeeded()

    def refuse(self, record: Record, error: DistrlError, *, attempt: int = 1) -> None:
        """Dead-letter a record, then acknowledge it. Raises what keeps the letter from the log: then nothing is acknowledged."""
        self._writer.dead_letter(record, error, attempt=attempt)
        self.consumer.ack(record)

    def seek(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Read these partitions from further back, on purpose: what is read once more has not waited for this reader."""
        self._activity.queues.reread({partition: self.consumer.position(partition) for partition in offsets})
        for partition, offset in offsets.items():
            self.consumer.seek(partition, offset)

    @property
    def held(self) -> int:
        """Records that are held to be tried again."""
        return len(self._retries)

    def unhandled(self) -> dict[TopicPartition, int]:
        """Per partition, the lowest offset that was read and is not handled yet: what a checkpoint must not pass."""
        offsets = self._retries.oldest()
        for record in self._early:
            partition = record.topic_partition
            offsets[partition] = min(offsets.get(partition, record.offset), record.offset)
        return offsets

    # --- long work --------------------------------------------------------------------------------

    def attend(self, worker: Worker, work: Callable[[], T]) -> T:
        """Let ``worker`` do it, and keep the consumer's place in its group meanwhile, however long it takes.

        The consumer is paused and polled, so rebalances go on. Should a partition be taken away, its records are handled twice:
        the results go out all the same, readers recognise them by their ids, and acknowledging them has no effect here.
        """
        future = worker.submit(work)
        # Not ATTEND_S from now: a batch may be many short pieces of work.
        wait([future], max(self._polled + ATTEND_S - self._clock.monotonic(), 0.0))
        attending = True
        while not future.done():
            if attending:
                try:
                    self._early += self._poll(0.0, set(self.consumer.assignment()), 1)
                except DistrlError as error:
                    # The result comes first. If this still holds then, the next poll says it again.
                    log.warning("the log does not answer while a handler works", error=str(error))
                    attending = False
            wait([future], ATTEND_S / 2)
        return future.result()

    # --- inside -----------------------------------------------------------------------------------

    def _fresh(self, timeout_s: float, room: int) -> Sequence[Record]:
        """Up to ``room`` records that are new, or came early."""
        if room and self._early:
            fresh, self._early = self._early[:room], self._early[room:]
            return fresh
        timeout_s = min(timeout_s, self._retries.wait_s())
        if room:
            return self._poll(timeout_s, self._retries.crowded(), room)
        self._early += self._poll(timeout_s, set(self.consumer.assignment()), 1)
        return ()

    def _poll(self, timeout_s: float, paused: set[TopicPartition], max_records: int) -> list[Record]:
        """Poll with exactly these partitions paused."""
        former = self.consumer.paused()
        if former != paused:
            mine = self.consumer.assignment()
            self.consumer.resume((former - paused) & mine)
            self.consumer.pause((paused - former) & mine)
        records = self.consumer.poll(timeout_s, max_records)
        self._polled = self._clock.monotonic()
        return records

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
