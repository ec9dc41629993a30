"""Records on their way to the broker: checked, counted, bounded, resolved. Used by ``producer`` and ``transaction``.

kafka-python takes in without a bound and holds all in memory; the bound is kept here.
"""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import Future
from typing import Any

from kafka.record.default_records import DefaultRecordBatchBuilder

from distrl.connectors.kafka.backdoor import hand_over
from distrl.connectors.kafka.catalog import Catalog
from distrl.connectors.kafka.connection import REQUEST_BYTES
from distrl.connectors.partitioner import partition_of
from distrl.core.config import BusConfig
from distrl.core.contracts.bus import Headers, RecordPosition
from distrl.core.contracts.clock import Clock
from distrl.core.errors import (
    BusBackpressureError,
    BusError,
    DeliveryError,
    DistrlError,
    RecordTooLargeError,
)

_OVERHEAD_BYTES = 128
"""At most what a batch of one record adds to its key, value and headers."""
_VARINT_BYTES = 5
_LOOK_S = 0.5
"""A waiting sender looks at the injected clock this often, seconds."""


class _Sent(Future[RecordPosition]):
    def cancel(self) -> bool:
        """A sender cannot take back what may be written already."""
        return False


class Delivery:
    """One record from ``send`` to its acknowledgement."""

    __slots__ = (
        "attempt",
        "deadline",
        "future",
        "headers",
        "key",
        "partition",
        "size",
        "timestamp_ms",
        "topic",
        "value",
    )

    def __init__(
        self,
        topic: str,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        timestamp_ms: int,
        size: int,
        deadline: float,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.key = key
        self.value = value
        self.headers = headers
        self.timestamp_ms = timestamp_ms
        self.size = size
        """Bytes in the log, at most."""
        self.deadline = deadline
        """Reading of ``Clock.monotonic`` at which it has failed."""
        self.attempt = 0
        """Number of the client that it was last handed to; 0 before the first."""
        self.future: Future[RecordPosition] = _Sent()

    def hand_over(self, client: Any) -> Any:
        """Give it to a ``KafkaProducer``; returns that one's future."""
        return hand_over(
            client,
            self.topic,
            self.partition,
            self.key,
            self.value,
            headers=list(self.headers),
            timestamp_ms=self.timestamp_ms,
        )


class Intake:
    """Takes records in within the bound, and resolves them. Safe for use by several threads."""

    def __init__(self, catalog: Catalog, config: BusConfig, clock: Clock) -> None:
        self._catalog = catalog
        self._config = config
        self._clock = clock
        self._turn = itertools.count()
        self._room = threading.Condition()
        self._records = 0
        self._bytes = 0
        self._waiting = 0

    def admit(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Headers,
        partition: int | None,
        timestamp_ms: int | None,
    ) -> Delivery:
        """Check a record and wait for room. Raises as ``Producer.send`` does."""
        known = self._catalog.topic(topic)
        if partition is None:
            partition = (
                next(self._turn) % known.partitions if key is None else partition_of(bytes(key), known.partitions)
            )
        elif not 0 <= partition < known.partitions:
            raise BusError(f"topic {topic!r} has partitions 0 to {known.partitions - 1}, not {partition}")
        limit = min(known.max_record_bytes, REQUEST_BYTES)
        size = _OVERHEAD_BYTES + len(key or b"") + len(value or b"")
        if headers:
            size += sum(2 * _VARINT_BYTES + len(name.encode()) + len(data) for name, data in headers)
        if size > limit:
            size = int(DefaultRecordBatchBuilder.estimate_size_in_bytes(key, value, list(headers)))
        if size > limit:  # what is known may be old: look again before a record is refused
            self._catalog.forget([topic])
            limit = min(self._catalog.topic(topic).max_record_bytes, REQUEST_BYTES)
        if size > limit:
            raise RecordTooLargeError(
                f"a record of {size} bytes does not fit into topic {topic!r} ({limit} bytes); put large artefacts into the store"
            )
        self._wait_for_room(size)
        now = self._clock.monotonic()
        stamp = self._clock.time_ms() if timestamp_ms is None else timestamp_ms
        return Delivery(topic, partition, key, value, headers, stamp, size, now + self._config.delivery_seconds)

    def resolve(self, delivery: Delivery, outcome: RecordPosition | DistrlError) -> None:
        """Tell the sender and make room. Call it once a delivery, holding no lock: the sender's callbacks run here."""
        if isinstance(outcome, RecordPosition):
            delivery.future.set_result(outcome)
        else:
            delivery.future.set_exception(outcome)
        config = self._config
        with self._room:
            self._records -= 1
            self._bytes -= delivery.size
            # A sender that waits is woken for half of the room, not for every record: a batch is acknowledged at once.
            half = 2 * self._records <= config.in_flight_records and 2 * self._bytes <= config.in_flight_bytes
            if self._waiting and half:
                self._room.notify_all()

    def expired(self, delivery: Delivery) -> DeliveryError:
        """What to resolve a delivery with when its time is over."""
        return DeliveryError(
            f"a record for {delivery.topic!r} was not acknowledged within {self._config.delivery_seconds:g} s "
            "(bus.delivery_seconds); whether it was written is unknown, sending it again is safe"
        )

    def in_flight(self) -> tuple[int, int]:
        """Deliveries that are not resolved, and their bytes."""
        with self._room:
            return self._records, self._bytes

    def flush(self, timeout_s: float) -> None:
        """Wait until everything is resolved. Raises ``DeliveryError`` when time runs out."""
        deadline = self._clock.monotonic() + timeout_s
        with self._room:
            while self._records:
                left = deadline - self._clock.monotonic()
                if left <= 0:
                    raise DeliveryError(f"{self._records} records are not acknowledged after {timeout_s:g} s")
                self._wait(left)

    def _wait_for_room(self, size: int) -> None:
        config = self._config
        deadline = self._clock.monotonic() + config.send_seconds
        with self._room:
            # One record alone may be larger than the bound, or it could never be sent.
            while self._records and (
                self._records >= config.in_flight_records or self._bytes + size > config.in_flight_bytes
            ):
                left = deadline - self._clock.monotonic()
                if left <= 0:
                    raise BusBackpressureError(
                        f"{self._records} records ({self._bytes} bytes) are in flight and none was acknowledged "
                        f"within {config.send_seconds:g} s (bus.send_seconds); the broker is slow or gone"
                    )
                self._wait(left)
            self._records += 1
            self._bytes += size

    def _wait(self, left_s: float) -> None:
        """Until somebody makes room, for a while; holds the lock before and after."""
        self._waiting += 1
        try:
            self._room.wait(min(left_s, _LOOK_S))
        finally:
            self._waiting -= 1
