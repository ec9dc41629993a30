"""The embedded log itself: one folder, any number of processes. Made by ``connectors.open_bus``.

Durable over the death of any process; with ``synchronous="FULL"`` over a loss of power, too.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from distrl.connectors.embedded.admin import EmbeddedAdmin
from distrl.connectors.embedded.budget import Budget
from distrl.connectors.embedded.catalogue import Catalogue
from distrl.connectors.embedded.consumer import EmbeddedConsumer
from distrl.connectors.embedded.database import Synchronous
from distrl.connectors.embedded.fence import Fence
from distrl.connectors.embedded.group import Membership
from distrl.connectors.embedded.heartbeat import Heartbeat
from distrl.connectors.embedded.producer import EmbeddedProducer
from distrl.core.contracts.bus import Assignment, RebalanceCallback, Start
from distrl.core.contracts.clock import Clock, SystemClock
from distrl.core.errors import BusError

LOCK_S = 10.0
"""How long the catalogue, a reader or the fence waits for a lock that another process holds."""

WRITE_LOCK_S = 0.1
"""How long a producer waits for one partition's lock before it turns to the others and comes back."""


class EmbeddedBus:
    """Implements ``Bus`` on a folder, which is made at the first use. Safe for use by several threads.

    ``session_s``: a group member whose process is silent this long is replaced; ``poll_limit_s``: so is one that does not
    poll (Kafka's max.poll.interval.ms). ``in_flight_records`` and ``in_flight_bytes``
    bound what one producer has not yet written, ``send_s`` how long a send waits for room, ``delivery_s`` how
    long a locked file is tried before the record has failed. Closing the bus closes what it has made.
    """

    def __init__(
        self,
        path: Path,
        *,
        synchronous: Synchronous = "NORMAL",
        session_s: float = 10.0,
        in_flight_records: int = 1000,
        in_flight_bytes: int = 32_000_000,
        send_s: float = 60.0,
        delivery_s: float = 120.0,
        poll_limit_s: float = 300.0,
        clock: Clock | None = None,
    ) -> None:
        self._path = Path(path).absolute()
        self._synchronous: Synchronous = synchronous
        self._session_s = session_s
        self._in_flight_records = in_flight_records
        self._in_flight_bytes = in_flight_bytes
        self._send_s = send_s
        self._delivery_s = delivery_s
        self._clock: Clock = SystemClock() if clock is None else clock
        self._lock = threading.Lock()
        self._open: set[EmbeddedProducer | EmbeddedConsumer] = set()
        self._admin: Catalogue | None = None
        self._closed = False
        self._heartbeat = Heartbeat(
            self._path, synchronous=synchronous, session_s=session_s, poll_limit_s=poll_limit_s, clock=self._clock
        )

    def producer(self, *, fence: str | None = None) -> EmbeddedProducer:
        catalogue = self._catalogue(WRITE_LOCK_S)
        try:
            held = None if fence is None else self._fence(fence)
        except BaseException:
            catalogue.close()
            raise
        producer = EmbeddedProducer(
            catalogue,
            budget=Budget(records=self._in_flight_records, size=self._in_flight_bytes, clock=self._clock),
            send_s=self._send_s,
            delivery_s=self._delivery_s,
            clock=self._clock,
            fence=held,
            on_close=self._forget,
        )
        self._remember(producer)
        return producer

    def consumer(
        self,
        topics: Sequence[str],
        *,
        group: str | None = None,
        start: Start | None = None,
        member: str | None = None,
        assignment: Assignment = "together",
        on_assign: RebalanceCallback | None = None,
        on_revoke: RebalanceCallback | None = None,
    ) -> EmbeddedConsumer:
        catalogue = self._catalogue(LOCK_S)
        try:
            for topic in topics:
                catalogue.topic(topic)  # before joining: a group must not be disturbed by a wrong name
            membership = None
            if group is not None:
                membership = Membership(
                    catalogue,
                    group,
                    topics,
                    static_name=member,
                    assignment=assignment,
                    session_s=self._session_s,
                    clock=self._clock,
                )
            consumer = EmbeddedConsumer(
                catalogue,
                topics,
                start=Start.earliest() if start is None else start,
                membership=membership,
                heartbeat=self._heartbeat,
                on_assign=on_assign,
                on_revoke=on_revoke,
                clock=self._clock,
                on_close=self._forget,
            )
        except BaseException:
            catalogue.close()
            raise
        self._remember(consumer)
        return consumer

    def admin(self) -> EmbeddedAdmin:
        with self._lock:
            if self._admin is None:
                self._admin = self._catalogue(LOCK_S)
            return EmbeddedAdmin(self._admin, self._clock)

    def ping(self, timeout_s: float) -> None:
        catalogue = self._catalogue(timeout_s)
        try:
            with catalogue.database.transaction():  # the write lock: that the log can be read alone is not enough
                catalogue.topics()
        finally:
            catalogue.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            remaining = list(self._open)
        failures: list[Exception] = []
        for part in remaining:
            try:
                part.close()
            except Exception as error:
                failures.append(error)
        self._heartbeat.close()
        with self._lock:
            if self._admin is not None:
                self._admin.close()
                self._admin = None
        if failures:
            raise failures[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _catalogue(self, wait_s: float) -> Catalogue:
        if self._closed:
            raise BusError("the bus is closed")
        return Catalogue(self._path, synchronous=self._synchronous, wait_s=wait_s)

    def _fence(self, name: str) -> Fence:
        return Fence(self._path, name, synchronous=self._synchronous, wait_s=LOCK_S)

    def _remember(self, part: EmbeddedProducer | EmbeddedConsumer) -> None:
        with self._lock:
            self._open.add(part)

    def _forget(self, part: EmbeddedProducer | EmbeddedConsumer) -> None:
        with self._lock:
            self._open.discard(part)
