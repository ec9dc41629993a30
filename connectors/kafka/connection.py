"""Opens kafka-python's clients. Used in this package.

kafka-python is told here: no topic is made by use, raw bytes in and out (a deserializer that raises would hang the next
poll), a quiet logger (it prints whole batches), quick reconnects after a broker came back.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.net.compat import KafkaNetClient

from distrl.connectors.kafka.backdoor import make_no_topics, try_bootstrap
from distrl.connectors.kafka.failure import most_telling, translated
from distrl.core.config import BusConfig
from distrl.core.errors import ConfigError

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


class Connection:
    """How to reach the brokers of one configuration. Opening raises ``BusUnavailableError`` when none answers,
    ``BusCredentialsError`` when they refuse the login or cannot be trusted, ``ConfigError`` for settings and files that
    cannot be used."""

    def __init__(self, config: BusConfig, client_id: str) -> None:
        self.config = config
        self.client_id = client_id
        self.brokers = ",".join(config.bootstrap)
        logger = logging.getLogger("kafka")
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.CRITICAL)

    def admin(self, *, bootstrap_s: float = BOOTSTRAP_S) -> Any:
        """A ``KafkaAdminClient``."""
        return self._open(KafkaAdminClient, bootstrap_s=bootstrap_s, request_timeout_ms=10_000)

    def producer(self, *, attempt_s: float, fence: str | None = None, fence_s: float = 60.0) -> Any:
        """A ``KafkaProducer``, idempotent; transactional with ``fence``.

        A batch never expires inside it: that would wedge it and break the order. Who uses it watches the time.
        """
        extra: dict[str, Any] = {}
        if self.config.compression not in ("auto", "none"):
            # Of batches that kafka-python makes itself, when one was too large; ``feed`` chooses for all others.
            extra["compression_type"] = self.config.compression
        if fence is not None:
            extra |= {"transactional_id": fence, "transaction_timeout_ms": int(fence_s * 1000)}
        return self._open(
            KafkaProducer,
            acks="all",
            enable_idempotence=True,
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
            client = KafkaNetClient(**configuration)
            opened.append(client)
            make_no_topics(client)
            failures = try_bootstrap(client, bootstrap_s)
            if failures:
                raise most_telling(failures)
            return client

        common = self._common()
        with translated("connecting", self.brokers):
            try:
                return kind(
                    **common,
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
        for broker in config.bootstrap:
            host, _, port = broker.rpartition(":")
            if not host or not port.isdecimal():
                raise ConfigError(f"bus.bootstrap: {broker!r} is not host:port")
        settings: dict[str, Any] = {
            "bootstrap_servers": list(config.bootstrap),
            "client_id": self.client_id,
            "security_protocol": config.security_protocol,
            "reconnect_backoff_ms": 50,
            "reconnect_backoff_max_ms": 1000,
        }
        if config.security_protocol.endswith("SSL"):
            check_files(config)
            for key, file in (
                ("ssl_cafile", config.ca_file),
                ("ssl_certfile", config.cert_file),
                ("ssl_keyfile", config.key_file),
            ):
                settings[key] = None if file is None else str(file)
        if config.security_protocol.startswith("SASL"):
            if not config.sasl_mechanism or not config.username:
                raise ConfigError(
                    f"bus.security_protocol is {config.security_protocol}: set bus.sasl_mechanism, bus.username and the "
                    "environment variable DISTRL_BUS__PASSWORD"
                )
            settings["sasl_mechanism"] = config.sasl_mechanism
            settings["sasl_plain_username"] = config.username
            settings["sasl_plain_password"] = config.password.get_secret_value()
        return settings


def check_files(config: BusConfig) -> None:
    """Raise ``ConfigError`` for a file of ``config`` that is not there, or is not what TLS needs there."""
    for name, file in (("ca_file", config.ca_file), ("cert_file", config.cert_file), ("key_file", config.key_file)):
        if file is not None and not file.is_file():
            raise ConfigError(f"bus.{name}: there is no file {file}")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if config.ca_file is not None:
        try:
            context.load_verify_locations(config.ca_file)
        except OSError as error:
            raise ConfigError(
                f"bus.ca_file: {config.ca_file} holds no certificate in PEM ({_reason(error)})"
            ) from error
    if config.cert_file is None:
        if config.key_file is not None:
            raise ConfigError("bus.key_file is the private key of bus.cert_file, which is not set")
        return
    try:
        # The password of an encrypted key must not be asked for on a terminal.
        context.load_cert_chain(config.cert_file, config.key_file, password=lambda: "")
    except OSError as error:
        raise ConfigError(
            f"bus.cert_file {config.cert_file} and bus.key_file {config.key_file or 'in it'} are no certificate in PEM "
            f"with its private key, not encrypted ({_reason(error)})"
        ) from error


def _reason(error: OSError) -> str:
    return getattr(error, "reason", None) or error.strerror or str(error)
