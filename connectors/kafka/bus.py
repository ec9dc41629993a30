"""``Bus`` on Kafka. Opened by ``connectors.open_bus``; opening does not connect."""

from __future__ import annotations

import re
import weakref
from collections.abc import Sequence
from typing import Self

from distrl.connectors.kafka.admin import KafkaAdmin
from distrl.connectors.kafka.compression import require
from distrl.connectors.kafka.connection import Connection
from distrl.connectors.kafka.consumer import KafkaLogConsumer
from distrl.connectors.kafka.delivery import Intake
from distrl.connectors.kafka.producer import KafkaLogProducer
from distrl.connectors.kafka.transaction import FencedProducer
from distrl.core.config import BusConfig
from distrl.core.contracts.bus import Assignment, RebalanceCallback, Start
from distrl.core.contracts.clock import Clock
from distrl.core.errors import BusError

PING_S = 10.0
"""Longest time of a ping, whatever is asked for, seconds."""
_MEMBER = re.compile(r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}")


class KafkaBus:
    """A log on the brokers of ``config``. ``client_id`` is what their operator sees.

    Parts of it that were not closed are closed with it.
    """

    def __init__(self, config: BusConfig, *, clock: Clock, client_id: str) -> None:
        require(config.compression)
        self._config = config
        self._clock = clock
        self._connection = Connection(config, client_id)
        self._admin = KafkaAdmin(self._connection, clock)
        self._parts: weakref.WeakSet[KafkaLogProducer | FencedProducer | KafkaLogConsumer] = weakref.WeakSet()
        self._closed = False

    def producer(self, *, fence: str | None = None) -> KafkaLogProducer | FencedProducer:
        self._check()
        intake = Intake(self._admin.catalog, self._config, self._clock)
        producer = (
            KafkaLogProducer(self._connection, intake, self._clock)
            if fence is None
            else FencedProducer(self._connection, intake, self._admin, self._clock, fence)
        )
        self._parts.add(producer)
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
    ) -> KafkaLogConsumer:
        self._check()
        if member is not None and not _MEMBER.fullmatch(member):
            raise BusError(f"no member can be called {member!r}: use letters, digits, '.', '_', '-', at most 249")
        consumer = KafkaLogConsumer(
            self._connection,
            self._admin.catalog.partitions(topics),
            self._clock,
            group=group,
            start=start or Start.earliest(),
            member=member,
            assignment=assignment,
            on_assign=on_assign,
            on_revoke=on_revoke,
        )
        self._parts.add(consumer)
        return consumer

    def admin(self) -> KafkaAdmin:
        self._check()
        return self._admin

    def ping(self, timeout_s: float) -> None:
        self._check()
        self._admin.ping(min(timeout_s, PING_S))

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            for part in list(self._parts):
                part.close()
        finally:
            self._admin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _check(self) -> None:
        if self._closed:
            raise BusError("the bus is closed")
