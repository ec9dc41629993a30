"""``bus.compression`` on a real broker, as its log segments show it."""

from __future__ import annotations

import json
import random
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from kafka.record.memory_records import MemoryRecords

from distrl.connectors import open_bus
from distrl.connectors.kafka.compression import NUMBERS
from distrl.core.codec import Codec
from distrl.core.config import BusConfig
from distrl.core.contracts.bus import Bus, TopicSpec
from distrl.core.contracts.clock import SystemClock
from distrl.core.contracts.events import Blob, Envelope, ObservationRecord, StepRecord, Trajectory
from distrl.core.errors import MissingPackageError

if TYPE_CHECKING:
    from kafka_broker import KafkaServer

pytestmark = pytest.mark.kafka

WAIT_S = 60.0
_random = random.Random(11)


def tree(step: int) -> bytes:
    nodes = [{"class": "android.widget.TextView", "text": f"row {step}-{i}", "bounds": [0, i, 9, i]} for i in range(20)]
    return json.dumps(nodes).encode()


def trajectory(number: int, blob: bytes, media_type: str) -> bytes:
    """A framed event of five steps that carries ``blob`` in each."""
    inline = Blob(media_type, len(blob), "0" * 64, inline=blob)
    look = ObservationRecord(1_735_689_600_000, 1080, 2400, inline, None)
    step = StepRecord(look, "tap 0.250 0.125", (0, 37, 300), -1.25, (-0.5, -0.25, -0.5), 0.75, 0.5)
    event = Trajectory(
        Envelope(f"id-{number}", "demo", "collector-1", 1_735_689_600_000),
        *(f"trajectory-{number}", "policy", "search-17", "search", "train", "Search for milk", "[]", 1, 5, "phone-0"),
        *("factored", 1, 41, "", '{"temperature": 1.0}', "finished", 1_735_689_600_000, 1_735_689_601_000),
        steps=(step,) * 5,
        final_observation=look,
    )
    return Codec().encode(event)


def trees(count: int) -> list[bytes]:
    return [trajectory(number, tree(number), "application/json") for number in range(count)]


def screens(count: int) -> list[bytes]:
    """As good as PNG or JPEG: nothing is left to compress."""
    return [_random.randbytes(30_000) for _ in range(count)]


def opened(server: KafkaServer, **settings: Any) -> Bus:
    return open_bus(
        BusConfig(kind="kafka", bootstrap=(server.bootstrap,), **settings), clock=SystemClock(), client_id="compression"
    )


def made(bus: Bus) -> str:
    name = f"distrl.compression-{uuid.uuid4().hex[:8]}.records"
    bus.admin().create([TopicSpec(name)])
    return name


def segments(server: KafkaServer, topic: str) -> bytes:
    files = sorted((server.state_dir / "data" / f"{topic}-0").glob("*.log"))
    return b"".join(file.read_bytes() for file in files)


def codecs(server: KafkaServer, topic: str) -> list[int]:
    """The codec of each batch in the broker's log, in order, but for the marks that end transactions."""
    batches = MemoryRecords(segments(server, topic))
    return [batch.compression_type for batch in batches if not batch.is_control_batch]


def read(bus: Bus, topic: str) -> list[bytes | None]:
    with bus.consumer([topic]) as consumer:
        values: list[bytes | None] = []
        while any(consumer.lag().values()):
            values += [record.value for record in consumer.poll(0.2)]
        return values


def test_auto_compresses_trees_and_leaves_screens(kafka_server: KafkaServer) -> None:
    with opened(kafka_server) as bus, bus.producer() as producer:
        for values, number, most in ((trees(200), NUMBERS["zstd"], 0.3), (screens(60), NUMBERS["none"], 1.01)):
            topic = made(bus)
            for future in [producer.send(topic, value, key=b"k") for value in values]:
                future.result(WAIT_S)
            assert set(codecs(kafka_server, topic)) == {number}
            assert len(segments(kafka_server, topic)) < most * sum(map(len, values))
            assert read(bus, topic) == values


@pytest.mark.parametrize("fenced", [False, True], ids=["plain", "fenced"])
def test_auto_follows_mixed_traffic_in_order(kafka_server: KafkaServer, fenced: bool) -> None:
    """What is sent changes its kind several times: each batch is judged by itself, nothing is sent twice or overtakes."""
    with opened(kafka_server) as bus:
        topic = made(bus)
        compressed, plain = NUMBERS["zstd"], NUMBERS["none"]
        kinds = [(trees(30), compressed), (screens(10), plain), (trees(5), compressed), (screens(1), plain)]
        seen = 0
        with bus.producer(fence=topic if fenced else None) as producer:
            for values, number in kinds:
                futures = [producer.send(topic, value, key=b"k") for value in values]
                offsets = [future.result(WAIT_S).offset for future in futures]
                assert offsets == sorted(set(offsets))
                batches = codecs(kafka_server, topic)
                assert set(batches[seen:]) == {number}
                seen = len(batches)
            both = [*trees(3), *screens(3)] * 10
            for future in [producer.send(topic, value, key=b"k") for value in both]:
                future.result(WAIT_S)
        assert read(bus, topic) == [value for values, _ in [*kinds, (both, 0)] for value in values]


@pytest.mark.parametrize("name", ["none", "gzip", "lz4", "zstd"])
def test_a_named_codec_is_used_and_read_back(kafka_server: KafkaServer, name: str) -> None:
    with opened(kafka_server, compression=name) as bus, bus.producer() as producer:
        topic = made(bus)
        values = trees(20)
        for future in [producer.send(topic, value, key=b"k") for value in values]:
            future.result(WAIT_S)
        assert set(codecs(kafka_server, topic)) == {NUMBERS[name]}
        assert read(bus, topic) == values


def test_a_codec_without_its_package_is_refused_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distrl.connectors.kafka.compression.find_spec", lambda _: None)
    config = BusConfig(kind="kafka", compression="lz4")
    with pytest.raises(MissingPackageError, match=r"bus\.compression.*distrl\[lz4\]"):
        open_bus(config, clock=SystemClock(), client_id="compression")
