"""The producer behind a fence: only the newest of a name writes. Opened by ``bus.KafkaBus``.

The fence is a transactional id. One thread writes what is queued in transactions; readers see a record when its transaction
is committed, so what a replaced holder had not finished is never read. When a transaction
fails or hangs, the client is thrown away and a new one continues, but only if the broker still knows this
producer as the holder: a new client takes the fence, and must not take it back from a successor.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Self, TypeVar

from kafka import errors

from distrl.connectors.kafka.admin import KafkaAdmin
from distrl.connectors.kafka.backdoor import Holder, begin_commit, discard, holder
from distrl.connectors.kafka.compression import Compression
from distrl.connectors.kafka.connection import Connection
from distrl.connectors.kafka.delivery import Delivery, Intake
from distrl.connectors.kafka.failure import KafkaError, refused, translate, translated
from distrl.connectors.kafka.feed import Feed
from distrl.connectors.kafka.patience import patiently
from distrl.core.contracts.bus import Headers, RecordPosition
from distrl.core.contracts.clock import Clock
from distrl.core.errors import BusError, DeliveryError, DistrlError, FencedError

BATCH_RECORDS = 500
"""Most records of one transaction."""
HANG_S = 10.0
"""A transaction that takes longer is given up, and its records written in another, seconds."""
_RETRY_S = 0.5
_TICK_S = 0.2
_FENCE_S = (60.0, 900.0)
"""Shortest and longest time after which the broker gives up a holder's open transaction; brokers allow 900 s."""

T = TypeVar("T")


class FencedProducer:
    """``Producer`` that holds a fence from its construction on; that connects, and aborts what an older holder left open."""

    def __init__(self, connection: Connection, intake: Intake, admin: KafkaAdmin, clock: Clock, fence: str) -> None:
        self._connection = connection
        self._intake = intake
        self._admin = admin
        self._clock = clock
        self._fence = fence
        # After a crash of the broker kafka-python's transactions may hang for good; a healthy one takes a blink.
        self._attempt_s = min(HANG_S, connection.config.delivery_seconds / 4)
        self._changed = threading.Condition()
        self._queue: deque[Delivery] = deque()
        self._current: dict[Delivery, None] = {}
        """Taken from the queue, not resolved, in order. Only the writer's thread touches it."""
        self._careful = False
        """Whether a record of ``_current`` was refused: then each gets a transaction of its own, to learn which."""
        self._closing = False
        self._end: DistrlError | None = None
        """Why nothing can be sent any more."""
        self._client: _Client | None = self._take_fence()
        self._holder: Holder = holder(self._client.producer)
        self._writer = threading.Thread(target=self._write_all, name="kafka-fenced-producer", daemon=True)
        self._writer.start()

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Future[RecordPosition]:
        self._check()
        delivery = self._intake.admit(topic, value, key, headers, partition, timestamp_ms)
        with self._changed:
            refuse = self._end is not None or self._closing
            if not refuse:
                self._queue.append(delivery)
                self._changed.notify_all()
        if refuse:
            self._intake.settle([delivery], [self._ended()])
        return delivery.receipt

    def in_flight(self) -> tuple[int, int]:
        return self._intake.in_flight()

    def flush(self, timeout_s: float) -> None:
        self._intake.flush(timeout_s)

    def close(self, timeout_s: float = 10.0) -> None:
        if self._closing:
            return
        try:
            self._intake.flush(timeout_s)
        finally:
            with self._changed:
                self._closing = True
                self._changed.notify_all()
            self._writer.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # --- inside -----------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._end is not None or self._closing:
            raise self._ended()

    def _ended(self) -> DistrlError:
        """A fresh copy: one exception object raised in several threads would collect their tracebacks."""
        if self._end is not None:
            return type(self._end)(self._end.message)
        return BusError("the producer is closed")

    def _take_fence(self) -> _Client:
        low, high = _FENCE_S
        fence_s = min(high, max(low, 2 * self._connection.config.delivery_seconds))
        producer = self._connection.producer(attempt_s=self._attempt_s, fence=self._fence, fence_s=fence_s)
        try:
            with translated(f"taking fence {self._fence}", self._connection.brokers):
                producer.init_transactions()
        except BaseException:
            discard(producer)
            raise
        return _Client(producer, Compression(self._connection.config.compression))

    def _write_all(self) -> None:
        while True:
            with self._changed:
                while not self._queue and not self._closing:
                    self._changed.wait()
                if self._closing:
                    break
                batch = [self._queue.popleft() for _ in range(min(BATCH_RECORDS, len(self._queue)))]
            self._current = dict.fromkeys(batch)
            self._careful = False
            try:
                self._write()
            except Exception as error:
                with self._changed:
                    self._end = error if isinstance(error, DistrlError) else BusError(f"the producer broke: {error!r}")
                break
        if self._client is not None:
            discard(self._client.producer)
        with self._changed:
            left = [*self._current, *self._queue]
            self._queue.clear()
        closed = DeliveryError("the producer was closed before the broker acknowledged")
        end = closed if self._end is None else self._end
        self._intake.settle(left, [type(end)(end.message) for _ in left])

    def _write(self) -> None:
        """Bring ``_current`` into the log. Returns when all are resolved. Raises what ends this producer."""
        while self._current and not self._closing:
            try:
                if self._client is None:
                    self._client = self._patiently(self._continue)
                    self._holder = holder(self._client.producer)
                self._transaction(self._client)
            except KafkaError:
                client, self._client = self._client, None
                if client is not None:
                    self._holder = holder(client.producer)  # kafka-python may have renewed its epoch by itself
                    self._patiently(partial(discard, client.producer))
                self._expire()
            except BusError as error:
                if not error.retriable:
                    raise
                self._expire()
                self._pause()

    def _patiently(self, call: Callable[[], T]) -> T:
        return patiently(call, self._expire, _TICK_S)

    def _continue(self) -> _Client:
        """A new client under the same fence, if it is still ours. Raises ``FencedError`` if not."""
        known = self._admin.holder(self._fence)
        if known != self._holder:
            raise FencedError(f"fence {self._fence}: another holder took over; this one must stop")
        return self._take_fence()

    def _transaction(self, client: _Client) -> None:
        """One transaction with all of ``_current``, or with the first alone once something was refused. Raises
        ``KafkaError`` when it has to be tried again."""
        batch = list(itertools.islice(self._current, 1 if self._careful else None))
        give_up = self._clock.monotonic() + self._attempt_s
        client.outcomes.clear()
        try:
            for delivery in batch:
                self._know_topic(client, delivery)
            client.producer.begin_transaction()
            for delivery in batch:
                if not client.feed.put(delivery):
                    raise errors.StaleMetadata("a topic is gone")
            commit = begin_commit(client.producer)
            while not commit.wait(_TICK_S * 1000):
                self._expire()
                if self._closing or self._clock.monotonic() > give_up:
                    raise errors.KafkaTimeoutError("the transaction hangs")
            written = client.written(batch)
        except KafkaError:
            self._look_for_refused(client)
            raise
        self._settle(batch, written)

    def _know_topic(self, client: _Client, delivery: Delivery) -> None:
        if not client.feed.knows(delivery.topic):
            try:
                self._patiently(partial(client.feed.learn, delivery.topic))
            except KafkaError as error:
                client.outcomes[delivery] = error
                raise

    def _look_for_refused(self, client: _Client) -> None:
        """A record that the broker refuses fails all others of its transaction; alone in one, it is known."""
        for delivery, outcome in list(client.outcomes.items()):
            if isinstance(outcome, Exception) and refused(outcome):
                if self._careful:
                    doing = f"sending to {delivery.topic!r}"
                    self._settle([delivery], [translate(outcome, doing, self._connection.brokers)])
                self._careful = True
                return

    def _expire(self) -> None:
        now = self._clock.monotonic()
        late = [delivery for delivery in self._current if delivery.deadline <= now]
        self._settle(late, [self._intake.expired(delivery) for delivery in late])
        with self._changed:
            queued = [delivery for delivery in self._queue if delivery.deadline <= now]
            for delivery in queued:
                self._queue.remove(delivery)
        self._intake.settle(queued, [self._intake.expired(delivery) for delivery in queued])

    def _settle(self, deliveries: Sequence[Delivery], outcomes: Sequence[RecordPosition | DistrlError]) -> None:
        mine = [pair for pair in zip(deliveries, outcomes, strict=True) if pair[0] in self._current]
        for delivery, _ in mine:
            del self._current[delivery]
        self._intake.settle([delivery for delivery, _ in mine], [outcome for _, outcome in mine])

    def _pause(self) -> None:
        with self._changed:
            if not self._closing:
                self._changed.wait(_RETRY_S)


class _Client:
    """A client that holds the fence, and what became of the records of the transaction in its hands."""

    def __init__(self, producer: Any, compression: Compression) -> None:
        self.producer = producer
        self.feed = Feed(producer, compression, self._written, self._failed)
        self.outcomes: dict[Delivery, RecordPosition | Exception] = {}
        """Filled on the client's own thread."""

    def written(self, deliveries: Sequence[Delivery]) -> list[RecordPosition]:
        """Where a committed transaction's records are. Raises ``KafkaError`` if one is not there after all."""
        outcomes = map(self.outcomes.get, deliveries)
        positions = [outcome for outcome in outcomes if isinstance(outcome, RecordPosition)]
        if len(positions) != len(deliveries):
            raise errors.KafkaError("a record of a committed transaction was not written")
        return positions

    def _written(self, deliveries: Sequence[Delivery], first: int) -> None:
        for offset, delivery in enumerate(deliveries, first):
            self.outcomes[delivery] = RecordPosition(delivery.topic, delivery.partition, offset)

    def _failed(self, deliveries: Sequence[Delivery], error: Exception) -> None:
        self.outcomes.update(dict.fromkeys(deliveries, error))
