"""The bus contract on a real Kafka broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

import pytest
from bus_suite import BusContract

from distrl.core.config import BusConfig

if TYPE_CHECKING:
    from kafka_broker import KafkaServer

pytestmark = pytest.mark.kafka


class TestKafkaBus(BusContract):
    @pytest.fixture
    def bus_config(self, kafka_server: KafkaServer) -> BusConfig:
        return BusConfig(kind="kafka", bootstrap=(kafka_server.bootstrap,), session_seconds=3.0)

    @pytest.fixture
    def missing_config(self) -> BusConfig:
        from server import free_port

        return BusConfig(kind="kafka", bootstrap=(f"127.0.0.1:{free_port()}",))

    @pytest.fixture
    def stall(self, kafka_server: KafkaServer) -> Iterator[Callable[[], AbstractContextManager[None]]]:
        @contextmanager
        def stalled() -> Iterator[None]:
            kafka_server.pause()
            try:
                yield
            finally:
                kafka_server.resume()

        yield stalled
        kafka_server.resume()
