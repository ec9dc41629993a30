"""The ordinary producer: idempotent, ordered, and replaced when it wedges. Opened by ``bus.KafkaBus``.

kafka-python's producer can stop for ever after a long stall of the broker. So nothing is trusted to it alone: every record
is kept until it is acknowledged, and when none was for a while, the keeper thread throws the client away, opens a new one
and sends again, in order, all that is left. A record may then be in the log twice (consumers know
it by its event's id), never out of order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Self, TypeVar

from distrl.connectors.kafka.backdoor import discard
from distrl.connectors.kafka.compression import Compression
from distrl.connectors.kafka.connection import Connection
from distrl.connectors.kafka.delivery import Delivery, Intake
from distrl.connectors.kafka.failure import KafkaError, refused, translate
from distrl.connectors.kafka.feed import Feed
from distrl.connectors.kafka.patience import patiently
from distrl.core.contracts.bus import Headers, RecordPosition
from distrl.core.contracts.clock import Clock
from distrl.core.errors import BusError, DeliveryError, DistrlError

STALL_S = 30.0
"""A client that got no acknowledgement for this long, with records waiting for one, is replaced, seconds."""
_RETRY_S = 0.5
"""Pause between attempts to open a client while the broker is away, seconds."""

T = TypeVar("T")


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
        self._pending: dict[Delivery, None] = {}
        """In the order of sending; a record leaves when it is acknowledged or has failed. Changed under ``_table``."""
        self._table = threading.Lock()
        """Of its own, held for a moment only: senders hold ``_changed`` for longer, and an acknowledgement that waited for
        them would cost a change of threads."""
        self._feed: Feed | None = None
        """The client in use. Changed by the keeper."""
        self._level = False
        """Whether senders give their records to the client themselves; else the keeper does, when it has caught up."""
        self._attempt = 0
        self._progress = 0.0
        """When a record was last acknowledged, or first waited for."""
        self._broken = False
        self._careful = False
        """Whether the broker refused something: then records are sent again one by one, to learn which."""
        self._cause: Exception | None = None
        """Why the client in use failed, if it said so."""
        self._closing = False
        self._idle = True
        """Whether the keeper sleeps, or has not begun, until it is told of a record."""
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
        with self._changed:
            closed = self._closing
            if not closed:
                if not self._pending:
                    self._progress = self._clock.monotonic()
                with self._table:
                    self._pending[delivery] = None
                wake = self._idle
                if self._level and self._feed is not None and not self._put(self._feed, delivery):
                    self._level, wake = False, True
                if wake:
                    self._wake()
        if closed:
            self._intake.settle([delivery], [BusError("the producer is closed")])
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
            self._fail_all(DeliveryError("the producer was closed before the broker acknowledged"))
            if self._keeper.ident is not None:
                self._keeper.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _check(self) -> None:
        if self._closing:
            raise BusError("the producer is closed")

    def _wake(self) -> None:
        """Have the keeper look; holds the lock."""
        if self._keeper.ident is None:
            self._keeper.start()
        self._changed.notify_all()

    # --- a record's way ---------------------------------------------------------------------------

    def _put(self, feed: Feed, delivery: Delivery) -> bool:
        """Give a record to the client; holds the lock, so that the order of sending is the order in the log. False if it was not
        taken: it stays pending."""
        try:
            if not feed.put(delivery):
                return False
        except KafkaError as error:
            self._break(error)
            return False
        delivery.attempt = self._attempt
        return True

    def _written(self, deliveries: Sequence[Delivery], first: int) -> None:
        """Runs on a client's thread, perhaps that of one which was replaced: what is written is written."""
        topic, partition = deliveries[0].topic, deliveries[0].partition
        positions = [RecordPosition(topic, partition, first + index) for index in range(len(deliveries))]
        self._progress = self._clock.monotonic()
        self._settle(deliveries, positions)

    def _failed(self, attempt: int, deliveries: Sequence[Delivery], error: Exception) -> None:
        """Runs on a client's thread. The client is of no more use, and the records get their chance with the next one."""
        with self._changed:
            if attempt == self._attempt and any(delivery in self._pending for delivery in deliveries):
                self._break(error)

    def _break(self, error: Exception) -> None:
        """The client in use failed; holds the lock."""
        # A record may be refused only because another one in its batch was, or any since.
        self._careful = self._careful or refused(error)
        self._broken = True
        self._level = False
        self._cause = error
        self._changed.notify_all()

    def _settle(self, deliveries: Sequence[Delivery], outcomes: Sequence[RecordPosition | DistrlError]) -> None:
        """Tell the senders, each once: a record that was sent again may have two outcomes."""
        with self._table:
            pending = self._pending
            mine = [pending.pop(delivery, self) is None for delivery in deliveries]
        if not all(mine):
            deliveries = [delivery for delivery, is_mine in zip(deliveries, mine, strict=True) if is_mine]
            outcomes = [outcome for outcome, is_mine in zip(outcomes, mine, strict=True) if is_mine]
        if deliveries:
            self._intake.settle(deliveries, outcomes)
        if self._careful:
            with self._changed:
                self._changed.notify_all()

    def _waiting(self) -> list[Delivery]:
        """All that is pending, in order."""
        with self._table:
            return list(self._pending)

    def _fail_all(self, error: DistrlError) -> None:
        waiting = self._waiting()
        self._settle(waiting, [type(error)(error.message) for _ in waiting])

    # --- the keeper -------------------------------------------------------------------------------

    def _keep(self) -> None:
        try:
            while self._look():
                pass
        except Exception as error:
            # Nobody would expire what is pending any more.
            with self._changed:
                self._closing = True
            self._fail_all(BusError(f"the producer broke: {error!r}"))
            raise
        finally:
            with self._changed:
                feed, self._feed = self._feed, None
            if feed is not None:
                discard(feed.producer)

    def _look(self) -> bool:
        """Wait until there is something to do, and do it. False when the producer is closed."""
        with self._changed:
            while not self._pending and not self._closing:
                self._idle = True
                self._changed.wait()
            self._idle = False
            if self._level and not self._closing:
                self._changed.wait(self._tick_s)
            if self._closing:
                return False
            stalled = bool(self._pending) and self._clock.monotonic() > self._progress + self._attempt_s
            fit = self._feed is not None and not self._broken and not stalled
            level = fit and self._level
        self._expire()
        if not level and not ((fit or self._replace()) and self._catch_up()):
            self._pause()
        return True

    def _pause(self) -> None:
        with self._changed:
            if not self._closing:
                self._changed.wait(min(_RETRY_S, self._tick_s))

    def _expire(self) -> None:
        now = self._clock.monotonic()
        late: list[Delivery] = []
        for delivery in self._waiting():
            if delivery.deadline > now:
                break  # all have the same time, so the rest has more left
            late.append(delivery)
        if late:
            self._settle(late, [self._intake.expired(delivery) for delivery in late])

    def _patiently(self, call: Callable[[], T]) -> T:
        return patiently(call, self._expire, self._tick_s)

    def _replace(self) -> bool:
        """Throw the client away and open another. False if that must be tried again."""
        with self._changed:
            self._level = False
            feed, self._feed = self._feed, None
            # From here on the old client's failures mean nothing; its acknowledgements still do.
            self._attempt += 1
        if feed is not None:
            self._patiently(partial(discard, feed.producer))
        try:
            client = self._patiently(partial(self._connection.producer, attempt_s=self._attempt_s))
        except BusError as error:
            if not error.retriable:
                # Nothing can be sent as things are (refused credentials): say so to every sender.
                self._fail_all(error)
            return False
        compression = Compression(self._connection.config.compression)
        with self._changed:
            self._feed = Feed(client, compression, self._written, partial(self._failed, self._attempt))
            self._broken = False
            self._cause = None
            self._progress = self._clock.monotonic()
        return True

    def _catch_up(self) -> bool:
        """Give the client all that it has not, in order, and let senders do so from then on. False if it is of no more use."""
        feed = self._feed
        if feed is None or (self._careful and not self._send_one_by_one(feed)):
            return False
        while True:
            with self._changed:
                for delivery in self._waiting():
                    if delivery.attempt != self._attempt and not self._put(feed, delivery):
                        break
                else:
                    self._level = not self._broken
                    return self._level
                if self._closing or self._broken:
                    return False
            if not self._learn(feed, delivery):
                return False

    def _learn(self, feed: Feed, delivery: Delivery) -> bool:
        """Let the client ask for a record's topic; the record fails if that is refused. False if the client is of no more use."""
        try:
            self._patiently(partial(feed.learn, delivery.topic))
        except KafkaError as error:
            if refused(error):
                self._refuse(delivery, error)
                return True
            with self._changed:
                self._break(error)
            return False
        return True

    def _refuse(self, delivery: Delivery, error: Exception) -> None:
        self._settle([delivery], [translate(error, f"sending to {delivery.topic!r}", self._connection.brokers)])

    def _send_one_by_one(self, feed: Feed) -> bool:
        """Send what is pending, each record when the one before it is written; fail one that is refused though it is alone.
        False if the client is of no more use."""
        for delivery in self._waiting():
            give_up = self._clock.monotonic() + self._attempt_s
            while delivery in self._pending:
                with self._changed:
                    if self._closing or self._broken or self._clock.monotonic() > give_up:
                        break
                    sent = delivery.attempt == self._attempt or self._put(feed, delivery)
                    if sent and delivery in self._pending:
                        self._changed.wait(self._tick_s)
                self._expire()
                if not sent and not self._broken:
                    self._learn(feed, delivery)
            if delivery in self._pending:
                if self._cause is not None and refused(self._cause):
                    self._refuse(delivery, self._cause)
                with self._changed:
                    self._broken = True
                return False
        with self._changed:
            self._careful = False
        return True
