"""Opens kafka-python's clients, and holds all that must reach behind its public surface. Used in this package.

kafka-python is told here: no topic is made by use, raw bytes in and out (a deserializer that raises would hang the next
poll), a quiet logger (it prints whole batches), quick reconnects after a broker came back.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any, NamedTuple

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, errors
from kafka.net.compat import KafkaNetClient
from kafka.serializer import Serializer

from distrl.connectors.kafka.failure import translated
from distrl.core.config import BusConfig

BOOTSTRAP_S = 8.0
"""Longest time to find a broker that answers, seconds."""
REQUEST_S = 30.0
"""Longest wait for the answer to one request, seconds."""
LINGER_MS = 5
BATCH_BYTES = 1_000_000
REQUEST_BYTES = 64 * 1024 * 1024
FETCH_WAIT_MS = 100
"""Longest time the broker holds an empty fetch. A record that arrives is answered at once; this bounds how long another
partition, resumed or sought meanwhile, waits for its turn."""
FOREVER_MS = 7 * 24 * 3_600_000

_TOMBSTONE = object()


class Holder(NamedTuple):
    """Who may write under a fence: what the broker knows a transactional producer by."""

    producer_id: int
    epoch: int


class _Bytes(Serializer):  # type: ignore[misc]  # kafka-python has no types
    """Bytes as they are. Turns ``_TOMBSTONE`` into no value after kafka-python has checked that key or value is there."""

    def serialize(self, _topic: str, _headers: object, data: object) -> object:
        return None if data is _TOMBSTONE else data


class Connection:
    """How to reach the brokers of one configuration."""

    def __init__(self, config: BusConfig, client_id: str) -> None:
        self.config = config
        self.client_id = client_id
        self.brokers = ",".join(config.bootstrap)
        logger = logging.getLogger("kafka")
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.CRITICAL)

    def admin(self, *, bootstrap_s: float = BOOTSTRAP_S) -> Any:
        """A ``KafkaAdminClient``. Raises ``BusUnavailableError``, ``BusError`` for refused credentials."""
        return self._open(KafkaAdminClient, bootstrap_s=bootstrap_s, request_timeout_ms=10_000)

    def producer(self, *, attempt_s: float, fence: str | None = None, fence_s: float = 60.0) -> Any:
        """A ``KafkaProducer``, idempotent; transactional with ``fence``.

        A batch never expires inside it: that would wedge it and break the order. Who uses it watches the time.
        """
        extra: dict[str, Any] = {}
        if fence is not None:
            extra = {"transactional_id": fence, "transaction_timeout_ms": int(fence_s * 1000)}
        return self._open(
            KafkaProducer,
            acks="all",
            enable_idempotence=True,
            value_serializer=_Bytes(),
            batch_size=min(BATCH_BYTES, self.config.max_record_bytes),
            linger_ms=LINGER_MS,
            max_request_size=REQUEST_BYTES,
            request_timeout_ms=int(max(1.0, min(REQUEST_S, attempt_s / 2)) * 1000),
            delivery_timeout_ms=FOREVER_MS,
            max_block_ms=int(BOOTSTRAP_S * 1000),
            allow_auto_create_topics=False,
            metrics_enabled=False,
            **extra,
        )

    def consumer(self, **settings: Any) -> Any:
        """A ``KafkaConsumer`` with the given settings."""
        return self._open(
            KafkaConsumer,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            fetch_max_wait_ms=FETCH_WAIT_MS,
            request_timeout_ms=int(REQUEST_S * 1000),
            allow_auto_create_topics=False,
            metrics_enabled=False,
            **settings,
        )

    def _open(self, kind: Callable[..., Any], *, bootstrap_s: float = BOOTSTRAP_S, **settings: Any) -> Any:
        opened: list[Any] = []

        def remember(**configuration: Any) -> Any:
            opened.append(KafkaNetClient(**configuration))
            return opened[-1]

        with translated("connecting", self.brokers):
            try:
                return kind(
                    **self._common(),
                    **settings,
                    bootstrap_timeout_ms=max(1, int(bootstrap_s * 1000)),
                    kafka_client=remember,
                )
            except BaseException:
                # The constructor starts threads and sockets before it connects, and leaves them when it fails.
                for client in opened:
                    client.close()
                raise

    def _common(self) -> dict[str, Any]:
        config = self.config
        settings: dict[str, Any] = {
            "bootstrap_servers": list(config.bootstrap),
            "client_id": self.client_id,
            "security_protocol": config.security_protocol,
            "reconnect_backoff_ms": 50,
            "reconnect_backoff_max_ms": 1000,
        }
        if config.ca_file is not None:
            settings["ssl_cafile"] = str(config.ca_file)
        if config.security_protocol.startswith("SASL"):
            settings["sasl_mechanism"] = config.sasl_mechanism
            settings["sasl_plain_username"] = config.username
            settings["sasl_plain_password"] = config.password.get_secret_value()
        return settings


# --- behind kafka-python's public surface: each would otherwise wait without an end --------------------


def hand_over(
    producer: Any, topic: str, partition: int, key: bytes | None, value: bytes | None, **settings: Any
) -> Any:
    """``KafkaProducer.send`` that takes records without key and value too."""
    return producer.send(topic, _TOMBSTONE if value is None else value, key=key, partition=partition, **settings)


def discard(producer: Any) -> None:
    """Throw a producer away with all that it holds; a public ``close`` would first wait for what is stuck."""
    producer._sender.force_close()
    with contextlib.suppress(errors.KafkaError):
        producer.close(timeout=2.0)


def holder(producer: Any) -> Holder:
    """What the broker knows this transactional producer by."""
    known = producer._transaction_manager.producer_id_and_epoch
    return Holder(known.producer_id, known.epoch)


def begin_commit(producer: Any) -> Any:
    """Start ``commit_transaction``; the result has ``wait(timeout_ms)``, which the public method calls without a limit."""
    result = producer._transaction_manager.begin_commit()
    producer._sender.wakeup()
    return result


def call_on_loop(consumer: Any, action: Callable[[], object]) -> None:
    """Run ``action`` soon on the consumer's own network thread."""
    consumer._net.call_soon_threadsafe(action)
