"""Records on their way to the broker: checked, counted, bounded, resolved. Used by ``producer`` and ``transaction``.

kafka-python takes in without a bound and holds all in memory; the bound is kept here.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence

from kafka.record.default_records import DefaultRecordBatchBuilder

from distrl.connectors.kafka.catalog import Catalog
from distrl.connectors.kafka.connection import REQUEST_BYTES
from distrl.connectors.kafka.receipt import Receipt, resolve
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


class Delivery:
    """One record from ``send`` to its acknowledgement."""

    __slots__ = (
        "attempt",
        "deadline",
        "headers",
        "key",
        "partition",
        "receipt",
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
        self.receipt = Receipt()
        """The sender's future."""


class Intake:
    """Takes records in within the bound, and resolves them. Safe for use by several threads."""

    def __init__(self, catalog: Catalog, config: BusConfig, clock: Clock) -> None:
        self._catalog = catalog
        self._max_records = config.in_flight_records
        self._max_bytes = config.in_flight_bytes
        self._send_s = config.send_seconds
        self._delivery_s = config.delivery_seconds
        self._clock = clock
        self._turn = itertools.count()
        self._room = threading.Condition()
        self._records = 0
        self._bytes = 0
        self._unsettled = 0
        """Records whose senders do not know their outcome yet."""
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
            partition = next(self._turn) % known.partitions if key is None else partition_of(key, known.partitions)
        elif not 0 <= partition < known.partitions:
            raise BusError(f"topic {topic!r} has partitions 0 to {known.partitions - 1}, not {partition}")
        size = _OVERHEAD_BYTES
        for data in (key, value):
            if data is not None:
                if type(data) is not bytes:
                    raise TypeError(f"keys and values are bytes, not {type(data).__name__}")
                size += len(data)
        for name, data in headers:
            if type(data) is not bytes:
                raise TypeError(f"headers are bytes, not {type(data).__name__}")
            size += 2 * _VARINT_BYTES + len(name.encode()) + len(data)
        if size > known.max_record_bytes or size > REQUEST_BYTES:
            size = self._exact(topic, key, value, headers)
        self._wait_for_room(size)
        stamp = self._clock.time_ms() if timestamp_ms is None else int(timestamp_ms)
        deadline = self._clock.monotonic() + self._delivery_s
        return Delivery(topic, partition, key, value, headers, stamp, size, deadline)

    def settle(self, deliveries: Sequence[Delivery], outcomes: Sequence[RecordPosition | DistrlError]) -> None:
        """Make room and tell the senders. Call it once a delivery, holding no lock: the senders' callbacks run here, and may
        send."""
        size = 0
        for delivery in deliveries:
            size += delivery.size
        with self._room:
            self._records -= len(deliveries)
            self._bytes -= size
            # A sender that waits is woken for half of the room, not for every record.
            if self._waiting and 2 * self._records <= self._max_records and 2 * self._bytes <= self._max_bytes:
                self._room.notify_all()
        resolve([delivery.receipt for delivery in deliveries], outcomes)
        with self._room:
            self._unsettled -= len(deliveries)
            if self._waiting and not self._unsettled:
                self._room.notify_all()

    def expired(self, delivery: Delivery) -> DeliveryError:
        """What to resolve a delivery with when its time is over."""
        return DeliveryError(
            f"a record for {delivery.topic!r} was not acknowledged within {self._delivery_s:g} s "
            "(bus.delivery_seconds); whether it was written is unknown, sending it again is safe"
        )

    def in_flight(self) -> tuple[int, int]:
        """Deliveries that are not settled, and their bytes."""
        with self._room:
            return self._records, self._bytes

    def flush(self, timeout_s: float) -> None:
        """Wait until every sender knows. Raises ``DeliveryError`` when time runs out."""
        deadline = self._clock.monotonic() + timeout_s
        with self._room:
            while self._unsettled:
                left = deadline - self._clock.monotonic()
                if left <= 0:
                    raise DeliveryError(f"{self._unsettled} records are not acknowledged after {timeout_s:g} s")
                self._wait(left)

    def _exact(self, topic: str, key: bytes | None, value: bytes | None, headers: Headers) -> int:
        """The size that kafka-python will find, bytes. Raises ``RecordTooLargeError``."""
        size = int(DefaultRecordBatchBuilder.estimate_size_in_bytes(key, value, list(headers)))
        if size > self._catalog.topic(topic).max_record_bytes:
            self._catalog.forget([topic])  # what is known may be old: look again before a record is refused
        limit = min(self._catalog.topic(topic).max_record_bytes, REQUEST_BYTES)
        if size > limit:
            raise RecordTooLargeError(
                f"a record of {size} bytes does not fit into topic {topic!r} ({limit} bytes); put large artefacts into the store"
            )
        return size

    def _wait_for_room(self, size: int) -> None:
        with self._room:
            # One record alone may be larger than the bound, or it could never be sent.
            if self._records and (self._records >= self._max_records or self._bytes + size > self._max_bytes):
                self._wait_until_there_is(size)
            self._records += 1
            self._unsettled += 1
            self._bytes += size

    def _wait_until_there_is(self, size: int) -> None:
        deadline = self._clock.monotonic() + self._send_s
        while self._records and (self._records >= self._max_records or self._bytes + size > self._max_bytes):
            left = deadline - self._clock.monotonic()
            if left <= 0:
                raise BusBackpressureError(
                    f"{self._records} records ({self._bytes} bytes) are in flight and none was acknowledged "
                    f"within {self._send_s:g} s (bus.send_seconds); the broker is slow or gone"
                )
            self._wait(left)

    def _wait(self, left_s: float) -> None:
        """Until somebody makes room, for a while; holds the lock before and after."""
        self._waiting += 1
        try:
            self._room.wait(min(left_s, _LOOK_S))
        finally:
            self._waiting -= 1
