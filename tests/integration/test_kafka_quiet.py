"""Readers without a group that only follow: the broker holds their fetch for long, and nobody waits for its end."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from distrl.connectors.kafka import KafkaBus, quiet
from distrl.core.config import BusConfig
from distrl.core.contracts.bus import TopicPartition, TopicSpec
from distrl.core.contracts.clock import SystemClock

if TYPE_CHECKING:
    from kafka_broker import KafkaServer

pytestmark = pytest.mark.kafka
HELD_S = 25.0
"""Longer than any wait of these tests, and than the connector waits for an answer."""


@pytest.fixture
def bus(kafka_server: KafkaServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[KafkaBus]:
    monkeypatch.setattr(quiet, "FOLLOWS_S", 0.0)
    monkeypatch.setattr(quiet, "LONG_WAIT_MS", int(HELD_S * 1000))
    config = BusConfig(kind="kafka", bootstrap=(kafka_server.bootstrap,))
    with KafkaBus(config, clock=SystemClock(), client_id="quiet") as bus:
        yield bus


@pytest.fixture
def topic(bus: KafkaBus) -> str:
    name = f"quiet-{uuid.uuid4().hex[:8]}"
    bus.admin().create([TopicSpec(name)])
    return name


@pytest.fixture
def follower(bus: KafkaBus, topic: str) -> Any:
    """A reader that has read the one record of its topic, and whose next fetch is with the broker."""
    bus.producer().send(topic, b"0").result(20)
    consumer = bus.consumer([topic])
    assert [record.value for record in consumer.poll(10.0)] == [b"0"]
    consumer.poll(0.3)
    assert consumer._quiet_poll is not None
    assert consumer._quiet_poll.held()
    return consumer


def test_a_record_ends_the_hold(bus: KafkaBus, topic: str, follower: Any) -> None:
    for number in range(3):
        bus.producer().send(topic, b"%d" % number).result(20)
        assert [record.value for record in follower.poll(10.0)] == [b"%d" % number]
        follower.poll(0.0)


def test_a_poll_that_may_not_wait_asks_nothing_while_the_broker_holds_the_fetch(
    bus: KafkaBus, topic: str, follower: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    poll = follower._client.poll

    def counted(**named: int) -> Any:
        asked.append(1)
        return poll(**named)

    monkeypatch.setattr(follower._client, "poll", counted)
    for _ in range(50):
        assert follower.poll(0.0) == []
    assert not asked
    bus.producer().send(topic, b"1").result(20)
    assert [record.value for record in follower.poll(10.0)] == [b"1"]
    assert asked


def test_what_else_is_asked_does_not_wait_behind_the_hold(topic: str, follower: Any) -> None:
    """A broker answers one connection's requests in turn; were these behind the fetch, they would fail for lack of an answer."""
    partition = TopicPartition(topic, 0)
    assert follower.end_offsets() == {partition: 1}
    follower.poll(0.3)
    assert follower._quiet_poll.held()
    assert follower.lag() == {partition: 0}
    follower.poll(0.3)
    assert follower._quiet_poll.held()
    follower.seek(partition, 0)
    assert [record.value for record in follower.poll(10.0)] == [b"0"]


def test_a_follower_that_pauses_misses_nothing(bus: KafkaBus, topic: str, follower: Any) -> None:
    partition = TopicPartition(topic, 0)
    follower.pause([partition])
    bus.producer().send(topic, b"1").result(20)
    assert follower.poll(1.0) == []
    follower.resume([partition])
    assert [record.value for record in follower.poll(10.0)] == [b"1"]


def test_closing_waits_for_no_hold(follower: Any) -> None:
    follower.close()
    assert not follower._client._net._io_thread or not follower._client._net._io_thread.is_alive()
