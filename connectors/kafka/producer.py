"""The ordinary producer: idempotent, ordered, and replaced when it wedges. Opened by ``bus.KafkaBus``.

kafka-python's producer can stop for ever after a long stall of the broker. So nothing is trusted to it alone: every record
is kept until it is acknowledged, and when none was for a while, the keeper thread throws the client away, opens a new one
and sends again, in order, all that is left. A record may then be in the log twice (consumers know
it by its event's id), never out of order.
"""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import Future
from functools import partial
from typing import Any, Self

from distrl.connectors.kafka.backdoor import discard
from distrl.connectors.kafka.connection import Connection
from distrl.connectors.kafka.delivery import Delivery, Intake
from distrl.connectors.kafka.failure import KafkaError, refused, translate
from distrl.core.contracts.bus import Headers, RecordPosition
from distrl.core.contracts.clock import Clock
from distrl.core.errors import BusError, DeliveryError, DistrlError

STALL_S = 30.0
"""A client that got no acknowledgement for this long, with records waiting for one, is replaced, seconds."""
_RETRY_S = 0.5
"""Pause between attempts to open a client while the broker is away, seconds."""


class KafkaLogProducer:
    """``Producer``. Connects at the first record."""

    def __init__(self, connection: Connection, intake: Intake, clock: Clock) -> None:
        self._connection = connection
        self._intake = intake
        self._clock = clock
        # At most half the time for the first client, so that the second has time left to deliver.
        self._attempt_s = min(STALL_S, connection.config.delivery_seconds / 2)
        self._tick_s = min(1.0, self._attempt_s / 4)
        self._changed = threading.Condition()
        self._pending: dict[int, Delivery] = {}
        """In the order of sending; a record leaves when it is acknowledged or has failed. Changed under ``_table``."""
        self._table = threading.Lock()
        """Of its own, held for a moment only: senders hold ``_changed`` for long, and an acknowledgement that waited for
        them would cost a change of threads each time."""
        self._sent = 0
        self._client: Any = None
        """Takes new records; ``None`` while the keeper opens one and sends again what is pending."""
        self._attempt = 0
        self._progress = 0.0
        """When a record was last acknowledged, or first waited for."""
        self._broken = False
        self._careful = False
        """Whether the broker refused something: then records are sent again one by one, to learn which."""
        self._closing = False
        self._idle = False
        """Whether the keeper sleeps until it is told of a record."""
        self._keeper = threading.Thread(target=self._keep, name="kafka-producer-keeper", daemon=True)

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
        taken = None
        with self._changed:
            number, self._sent = self._sent, self._sent + 1
            closed = self._closing
            if not closed:
                if not self._pending:
                    self._progress = self._clock.monotonic()
                if self._idle:
                    self._changed.notify_all()
                with self._table:
                    self._pending[number] = delivery
                if self._keeper.ident is None:
                    self._keeper.start()
                if self._client is not None:
                    # Under the lock: the order of sending is the order in the log.
                    taken = self._hand_over(self._client, delivery)
        if closed:
            self._intake.resolve(delivery, BusError("the producer is closed"))
        elif taken is not None:
            self._follow(number, delivery, taken)
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
                client, self._client = self._client, None
            for number, delivery in self._waiting():
                closed = DeliveryError("the producer was closed before the broker acknowledged")
                self._settle(number, delivery, closed)
            if client is not None:
                discard(client)
            if self._keeper.ident is not None:
                self._keeper.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _check(self) -> None:
        if self._closing:
            raise BusError("the producer is closed")

    # --- a record's way ---------------------------------------------------------------------------

    def _hand_over(self, client: Any, delivery: Delivery) -> Any:
        """Give a record to the client; holds the lock. ``None`` if it was not taken: it stays pending."""
        delivery.attempt = self._attempt
        try:
            return delivery.hand_over(client)
        except (KafkaError, ValueError):
            # Timed out on metadata, or closed itself: another client will be better.
            self._broken = True
            self._changed.notify_all()
            return None

    def _follow(self, number: int, delivery: Delivery, taken: Any) -> None:
        taken.add_callback(partial(self._acknowledged, number, delivery))
        taken.add_errback(partial(self._failed, number, delivery, delivery.attempt))

    def _acknowledged(self, number: int, delivery: Delivery, written: Any) -> None:
        """Runs on a client's thread, perhaps that of one which was replaced: what is written is written."""
        self._settle(number, delivery, RecordPosition(written.topic, written.partition, written.offset))

    def _failed(self, number: int, delivery: Delivery, attempt: int, error: Exception) -> None:
        """Runs on a client's thread. The client is of no more use, and the record gets its chance with the next one."""
        with self._changed:
            if attempt == self._attempt and number in self._pending:
                # It may be refused only because another record in its batch was, or any record since.
                self._careful = self._careful or refused(error)
                self._broken = True
                self._changed.notify_all()

    def _settle(self, number: int, delivery: Delivery, outcome: RecordPosition | DistrlError) -> None:
        with self._table:
            if self._pending.pop(number, None) is None:
                return
        self._progress = self._clock.monotonic()
        self._intake.resolve(delivery, outcome)

    def _waiting(self) -> list[tuple[int, Delivery]]:
        """All that is pending, in order."""
        with self._table:
            return list(self._pending.items())

    # --- the keeper -------------------------------------------------------------------------------

    def _keep(self) -> None:
        try:
            self._watch()
        except Exception as error:
            # Nobody would expire what is pending any more.
            with self._changed:
                self._closing = True
            self._fail_all(BusError(f"the producer broke: {error!r}"))
            raise

    def _watch(self) -> None:
        while True:
            with self._changed:
                while not self._pending and not self._closing:
                    self._idle = True
                    self._changed.wait()
                self._idle = False
                if self._closing:
                    return
                if self._client is not None and not self._broken:
                    self._changed.wait(self._tick_s)
                stalled = bool(self._pending) and self._clock.monotonic() > self._progress + self._attempt_s
                replace = self._client is None or self._broken or stalled
            self._expire()
            if replace and not self._replace():
                with self._changed:
                    if not self._closing:
                        self._changed.wait(min(_RETRY_S, self._tick_s))

    def _expire(self) -> None:
        now = self._clock.monotonic()
        for number, delivery in self._waiting():
            if delivery.deadline > now:
                break  # all have the same time, so the rest has more left
            self._settle(number, delivery, self._intake.expired(delivery))

    def _replace(self) -> bool:
        """Throw the client away, open another and give it all that is pending. False if that must be tried again."""
        with self._changed:
            old, self._client = self._client, None
            # From here on the old client's failures mean nothing; its acknowledgements still do.
            self._attempt += 1
        if old is not None:
            discard(old)
        try:
            client = self._connection.producer(attempt_s=self._attempt_s)
        except BusError as error:
            if not error.retriable:
                self._fail_all(error)
            return False
        with self._changed:
            self._broken = False
            self._progress = self._clock.monotonic()
        if self._careful and not self._send_one_by_one(client):
            discard(client)
            return False
        while True:
            with self._changed:
                again = [(number, d) for number, d in self._waiting() if d.attempt != self._attempt]
                if self._closing:
                    break
                if not again:
                    self._client = client
                    return True
                taken = [(number, delivery, self._hand_over(client, delivery)) for number, delivery in again]
                if self._broken:
                    break
            for number, delivery, future in taken:
                self._follow(number, delivery, future)
        discard(client)
        return False

    def _send_one_by_one(self, client: Any) -> bool:
        """Send what is pending, each record when the one before it is written; fail one that is refused though it is alone.
        False if the client is of no more use."""
        for number, delivery in self._waiting():
            with self._changed:
                if self._closing:
                    return False
                if number not in self._pending:
                    continue
                taken = self._hand_over(client, delivery)
            give_up = self._clock.monotonic() + self._attempt_s
            while taken is not None and not taken.is_done:
                self._expire()
                if self._closing or self._clock.monotonic() > give_up:
                    return False
                with contextlib.suppress(KafkaError):
                    taken.get(timeout=self._tick_s)
            if taken is None or taken.failed():
                if taken is not None and refused(taken.exception):
                    doing = f"sending to {delivery.topic!r}"
                    self._settle(number, delivery, translate(taken.exception, doing, self._connection.brokers))
                return False
            self._acknowledged(number, delivery, taken.value)
        with self._changed:
            self._careful = False
        return True

    def _fail_all(self, error: BusError) -> None:
        """Nothing can be sent as things are (refused credentials): say so to every sender."""
        for number, delivery in self._waiting():
            self._settle(number, delivery, type(error)(error.message))
