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
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Self

from kafka import errors

from distrl.connectors.kafka.admin import KafkaAdmin
from distrl.connectors.kafka.backdoor import Holder, begin_commit, discard, holder
from distrl.connectors.kafka.connection import Connection
from distrl.connectors.kafka.delivery import Delivery, Intake
from distrl.connectors.kafka.failure import KafkaError, refused, translate, translated
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
        self._client: Any = self._take_fence()
        self._holder: Holder = holder(self._client)
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
            self._intake.resolve(delivery, self._ended())
        return delivery.future

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

    def _take_fence(self) -> Any:
        low, high = _FENCE_S
        fence_s = min(high, max(low, 2 * self._connection.config.delivery_seconds))
        client = self._connection.producer(attempt_s=self._attempt_s, fence=self._fence, fence_s=fence_s)
        try:
            with translated(f"taking fence {self._fence}", self._connection.brokers):
                client.init_transactions()
        except BaseException:
            discard(client)
            raise
        return client

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
            discard(self._client)
        with self._changed:
            left = [*self._current, *self._queue]
            self._queue.clear()
        for delivery in left:
            if not delivery.future.done():
                closed = DeliveryError("the producer was closed before the broker acknowledged")
                self._intake.resolve(delivery, closed if self._end is None else self._ended())

    def _write(self) -> None:
        """Bring ``_current`` into the log. Returns when all are resolved. Raises what ends this producer."""
        while self._current and not self._closing:
            try:
                if self._client is None:
                    self._client = self._continue()
                    self._holder = holder(self._client)
                self._transaction(self._client)
            except (KafkaError, ValueError):
                self._holder = holder(self._client)  # kafka-python may have renewed its epoch by itself
                client, self._client = self._client, None
                discard(client)
                self._expire()
            except BusError as error:
                if not error.retriable:
                    raise
                self._expire()
                self._pause()

    def _continue(self) -> Any:
        """A new client under the same fence, if it is still ours. Raises ``FencedError`` if not."""
        known = self._admin.holder(self._fence)
        if known != self._holder:
            raise FencedError(f"fence {self._fence}: another holder took over; this one must stop")
        return self._take_fence()

    def _transaction(self, client: Any) -> None:
        """One transaction with all of ``_current``, or with the first alone once something was refused. Raises
        ``KafkaError`` when it has to be tried again."""
        give_up = self._clock.monotonic() + self._attempt_s
        taken: list[tuple[Delivery, Any]] = []
        try:
            client.begin_transaction()
            for delivery in itertools.islice(self._current, 1 if self._careful else None):
                taken.append((delivery, delivery.hand_over(client)))
            commit = begin_commit(client)
            while not commit.wait(_TICK_S * 1000):
                self._expire()
                if self._closing or self._clock.monotonic() > give_up:
                    raise errors.KafkaTimeoutError("the transaction hangs")
        except KafkaError:
            self._look_for_refused(taken)
            raise
        for delivery, future in taken:
            written = future.get(timeout=_TICK_S)
            self._settle(delivery, RecordPosition(written.topic, written.partition, written.offset))

    def _look_for_refused(self, taken: Sequence[tuple[Delivery, Any]]) -> None:
        """A record that the broker refuses fails all others of its transaction; alone in one, it is known."""
        failed = [(delivery, future) for delivery, future in taken if future.failed() and refused(future.exception)]
        if failed and self._careful:
            ((delivery, future),) = failed
            doing = f"sending to {delivery.topic!r}"
            self._settle(delivery, translate(future.exception, doing, self._connection.brokers))
        self._careful = self._careful or bool(failed)

    def _expire(self) -> None:
        now = self._clock.monotonic()
        for delivery in [delivery for delivery in self._current if delivery.deadline <= now]:
            self._settle(delivery, self._intake.expired(delivery))
        with self._changed:
            late = [delivery for delivery in self._queue if delivery.deadline <= now]
            for delivery in late:
                self._queue.remove(delivery)
        for delivery in late:
            self._intake.resolve(delivery, self._intake.expired(delivery))

    def _settle(self, delivery: Delivery, outcome: RecordPosition | DistrlError) -> None:
        if delivery in self._current:
            del self._current[delivery]
            self._intake.resolve(delivery, outcome)

    def _pause(self) -> None:
        with self._changed:
            if not self._closing:
                self._changed.wait(_RETRY_S)
