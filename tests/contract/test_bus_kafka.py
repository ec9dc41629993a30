"""The bus contract on a real Kafka broker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from bus_suite import WAIT_S, BusContract, TopicFactory
from group_suite import GroupContract
from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType

from distrl.core.config import BusConfig
from distrl.core.contracts.bus import Bus, Producer, Record, TopicPartition

if TYPE_CHECKING:
    from kafka_broker import KafkaServer

pytestmark = pytest.mark.kafka


class TestKafkaBus(GroupContract, BusContract):
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

    def test_what_is_no_bytes_is_refused_at_once(self, producer: Producer, topics: TopicFactory) -> None:
        topic = topics()
        wrong: list[dict[str, Any]] = [{"value": "text"}, {"key": "text"}, {"headers": (("name", "text"),)}]
        for part in wrong:
            with pytest.raises(TypeError, match="bytes"):
                producer.send(topic, **{"value": b"v", **part})
        assert producer.in_flight() == (0, 0)
        producer.send(topic, b"v").result(WAIT_S)

    def test_compaction_leaves_the_newest_of_each_key_at_its_offset(
        self, bus: Bus, producer: Producer, topics: TopicFactory, kafka_server: KafkaServer
    ) -> None:
        """Settings make the broker compact within seconds; a reader goes over the holes and ends without lag."""
        topic = topics(cleanup="compact")
        settings = {"segment.ms": "500", "min.cleanable.dirty.ratio": "0.01", "max.compaction.lag.ms": "500"}
        admin = KafkaAdminClient(bootstrap_servers=kafka_server.bootstrap)
        try:
            admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs=settings)])
        finally:
            admin.close()
        for number in range(10):
            for key in (b"a", b"b"):
                producer.send(topic, b"%d" % number, key=key).result(WAIT_S)
        deadline = time.monotonic() + WAIT_S
        end, seen = 20, list[Record]()
        while sum(record.key in (b"a", b"b") for record in seen) != 2:
            assert time.monotonic() < deadline, seen
            time.sleep(0.6)
            producer.send(topic, b"roll", key=b"roll").result(WAIT_S)  # ends a segment: the last is never compacted
            end += 1
            with bus.consumer([topic]) as consumer:
                seen = []
                while any(consumer.lag().values()):
                    assert time.monotonic() < deadline, seen
                    seen += consumer.poll(0.2)
                assert consumer.position(TopicPartition(topic, 0)) == end
        assert [(r.offset, r.key, r.value) for r in seen if r.key != b"roll"] == [(18, b"a", b"9"), (19, b"b", b"9")]
