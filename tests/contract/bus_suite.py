"""One behaviour suite of the bus contract, inherited by the tests of every implementation.

A subclass of ``BusContract`` gives the fixtures ``bus_config`` (a log that is up, empty or not), ``missing_config`` (one
that cannot be reached) and ``stall`` (a context in which the log acknowledges nothing). All else is here: buses are
opened with ``open_bus``, each call a new one on the same log, which stands for a process of its own; what
needs a process that dies starts a real one and kills it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol

import pytest

import distrl
from distrl.connectors import open_bus
from distrl.core.config import BusConfig
from distrl.core.contracts.bus import (
    Assignment,
    Bus,
    Consumer,
    Producer,
    Record,
    RecordPosition,
    Start,
    TopicPartition,
    TopicSpec,
)
from distrl.core.contracts.clock import SystemClock
from distrl.core.errors import (
    BusBackpressureError,
    BusError,
    BusUnavailableError,
    DeliveryError,
    FencedError,
    RecordTooLargeError,
    TopicMismatchError,
    UnknownTopicError,
)

WAIT_S = 45.0
"""Longest wait for something that must come; a test that reaches it fails."""

QUIET_S = 0.5
"""How long a test listens for something that must not come."""

MURMUR2 = {
    b"21": 0xC5F2F8EC,
    b"foobar": 0xD0E47BBE,
    b"a-little-bit-long-string": 0xC53B1DA0,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": 0xFC7D49CD,
    b"abc": 0x1C94221B,
    b"": 0x106E08D9,
    b"\xff\xfe\x80\x00\x7f": 0xA07ABB98,
}
"""Keys and their hashes, the first five from Apache Kafka's ``UtilsTest.testMurmur2``."""

CHILD = """
import sys
from distrl.connectors import open_bus
from distrl.core.config import BusConfig
from distrl.core.contracts.clock import SystemClock
from distrl.core.contracts.bus import Start

config, topic, group, member, assignment, wanted, acked = sys.argv[1:]
bus = open_bus(BusConfig.model_validate_json(config), clock=SystemClock(), client_id="child")
consumer = bus.consumer(
    [topic], group=group, start=Start.earliest(), member=member or None, assignment=assignment
)
seen = 0
said = False
while True:
    for record in consumer.poll(0.2):
        seen += 1
        if record.offset < int(acked):
            consumer.ack(record)
    if not said and seen >= int(wanted) and consumer.assignment():
        consumer.commit()
        print(",".join(str(p.partition) for p in sorted(consumer.assignment())), flush=True)
        said = True
"""


BOTH = pytest.mark.parametrize("assignment", ["together", "cooperative"])
"""Runs a test for each way in which a group can share partitions."""


class BusFactory(Protocol):
    """Opens one more bus on the log; keywords replace keys of its ``BusConfig``."""

    def __call__(self, **overrides: Any) -> Bus: ...


class TopicFactory(Protocol):
    """Makes a topic of a new name and returns the name."""

    def __call__(self, partitions: int = 1, **settings: Any) -> str: ...


Stall = Callable[[], AbstractContextManager[None]]


def collect(consumer: Consumer, count: int, *, ack: bool = True) -> list[Record]:
    """Poll until ``count`` records came; more than that is a failure."""
    records: list[Record] = []
    deadline = time.monotonic() + WAIT_S
    while len(records) < count:
        assert time.monotonic() < deadline, f"{len(records)} of {count} records came"
        for record in consumer.poll(0.2):
            records.append(record)
            if ack:
                consumer.ack(record)
    assert len(records) == count
    return records


def quiet(consumer: Consumer) -> list[Record]:
    """What comes although nothing should."""
    records: list[Record] = []
    deadline = time.monotonic() + QUIET_S
    while time.monotonic() < deadline:
        records += consumer.poll(0.1)
    return records


def poll_until(consumers: Sequence[Consumer], done: Callable[[], bool]) -> dict[int, list[Record]]:
    """Poll all in turn until ``done``; the records by the consumer's place. Nothing is acknowledged."""
    records: dict[int, list[Record]] = defaultdict(list)
    deadline = time.monotonic() + WAIT_S
    while not done():
        assert time.monotonic() < deadline, f"never: {[sorted(consumer.assignment()) for consumer in consumers]}"
        for index, consumer in enumerate(consumers):
            records[index] += consumer.poll(0.05)
    return records


def assigned(consumer: Consumer) -> None:
    """Poll until the consumer has partitions and knows where it stands; fails if records come."""
    records = poll_until([consumer], lambda: bool(consumer.assignment()))
    assert records[0] == []
    for partition in consumer.assignment():
        consumer.position(partition)


def send_all(producer: Producer, topic: str, values: Sequence[bytes], **settings: Any) -> list[RecordPosition]:
    """Send and wait for every acknowledgement."""
    return [future.result(WAIT_S) for future in [producer.send(topic, value, **settings) for value in values]]


class BusContract:
    """What every bus does. See the module for the fixtures that a subclass gives."""

    # --- what the tests stand on ------------------------------------------------------------------

    @pytest.fixture
    def bus_factory(self, bus_config: BusConfig) -> Iterator[BusFactory]:
        with contextlib.ExitStack() as stack:

            def make(**overrides: Any) -> Bus:
                config = BusConfig(**{**bus_config.model_dump(), **overrides})
                return stack.enter_context(open_bus(config, clock=SystemClock(), client_id="test"))

            yield make

    @pytest.fixture
    def bus(self, bus_factory: BusFactory) -> Bus:
        return bus_factory()

    @pytest.fixture
    def producer(self, bus: Bus) -> Iterator[Producer]:
        with bus.producer() as producer:
            yield producer

    @pytest.fixture
    def topics(self, bus_factory: BusFactory) -> Iterator[TopicFactory]:
        admin = bus_factory().admin()
        made: list[str] = []

        def make(partitions: int = 1, **settings: Any) -> str:
            name = f"distrl.test-{uuid.uuid4().hex[:12]}.records"
            assert admin.create([TopicSpec(name, partitions=partitions, **settings)]) == [name]
            made.append(name)
            return name

        yield make
        admin.delete(made)

    @pytest.fixture
    def group(self) -> str:
        return f"test-{uuid.uuid4().hex[:12]}"

    @pytest.fixture
    def child(self, bus_config: BusConfig) -> Iterator[Callable[..., tuple[subprocess.Popen[str], list[int]]]]:
        """Starts a member in a process of its own, which acknowledges offsets below ``acked`` and commits; gives
        the process and the partitions it held when it had seen ``wanted`` records. It then goes on polling."""
        with contextlib.ExitStack() as stack:

            def start(
                topic: str,
                group: str,
                *,
                member: str = "",
                assignment: Assignment = "together",
                wanted: int,
                acked: int,
                session_seconds: float = 3.0,
            ) -> tuple[subprocess.Popen[str], list[int]]:
                packages = str(Path(distrl.__file__).parents[1])
                config = bus_config.model_copy(update={"session_seconds": session_seconds})
                arguments = [config.model_dump_json(), topic, group, member, assignment, str(wanted), str(acked)]
                process = stack.enter_context(
                    subprocess.Popen(
                        [sys.executable, "-c", CHILD, *arguments],
                        stdout=subprocess.PIPE,
                        text=True,
                        env={**os.environ, "PYTHONPATH": os.pathsep.join([packages, os.environ.get("PYTHONPATH", "")])},
                    )
                )
                stack.callback(process.kill)
                assert process.stdout is not None
                line = process.stdout.readline().strip()
                assert line, "the child died"
                return process, [int(part) for part in line.split(",")]

            yield start

    # --- sending and reading ----------------------------------------------------------------------

    def test_reads_what_was_sent(self, bus: Bus, producer: Producer, topics: TopicFactory) -> None:
        topic = topics()
        headers = (("a", b"1"), ("a", b"2"), ("empty", b""))
        position = producer.send(topic, b"value", key=b"key", headers=headers, timestamp_ms=1_700_000_000_123).result(
            WAIT_S
        )
        assert position == RecordPosition(topic, 0, 0)
        with bus.consumer([topic]) as consumer:
            (record,) = collect(consumer, 1)
        assert record == Record(topic, 0, 0, 1_700_000_000_123, b"key", b"value", headers)

    def test_nothing_and_empty_are_told_apart(self, bus: Bus, producer: Producer, topics: TopicFactory) -> None:
        topic = topics()
        cases: list[tuple[bytes | None, bytes | None]] = [(None, None), (b"", b""), (b"k", None), (None, b"v")]
        for key, value in cases:
            producer.send(topic, value, key=key, partition=0)
        producer.flush(WAIT_S)
        with bus.consumer([topic]) as consumer:
            assert [(record.key, record.value) for record in collect(consumer, 4)] == cases

    def test_timestamp_is_now_unless_given(self, bus: Bus, producer: Producer, topics: TopicFactory) -> None:
        topic = topics()
        before = SystemClock().time_ms()
        producer.send(topic, b"v").result(WAIT_S)
        after = SystemClock().time_ms()
        with bus.consumer([topic]) as consumer:
            (record,) = collect(consumer, 1)
        assert before <= record.timestamp_ms <= after

    def test_large_records_survive(self, bus: Bus, producer: Producer, topics: TopicFactory) -> None:
        topic = topics()
        values = [os.urandom(900_000) for _ in range(5)]
        send_all(producer, topic, values)
        with bus.consumer([topic]) as consumer:
            assert [record.value for record in collect(consumer, 5)] == values

    def test_offsets_grow_and_positions_match(self, bus: Bus, producer: Producer, topics: TopicFactory) -> None:
        topic = topics(3)
        values = [b"%d" % index for index in range(300)]
        positions = send_all(producer, topic, values)
        assert Counter(position.partition for position in positions).keys() == {0, 1, 2}
        with bus.consumer([topic]) as consumer:
            records = collect(consumer, 300)
        read = {RecordPosition(record.topic, record.partition, record.offset): record.value for record in records}
        assert [read[position] for position in positions] == values
        for partition in range(3):
            offsets = [record.offset for record in records if record.partition == partition]
            assert offsets == sorted(set(offsets))

    def test_keys_go_where_kafka_puts_them(self, producer: Producer, topics: TopicFactory) -> None:
        topic = topics(7)
        for key, hashed in MURMUR2.items():
            assert producer.send(topic, b"v", key=key).result(WAIT_S).partition == (hashed & 0x7FFFFFFF) % 7

    def test_order_within_a_key(self, bus_factory: BusFactory, topics: TopicFactory) -> None:
        topic = topics(4)
        keys = [b"key-%d" % index for index in range(10)]

        def write(share: list[bytes]) -> None:
            with bus_factory().producer() as producer:
                for number in range(50):
                    for key in share:
                        producer.send(topic, b"%d" % number, key=key)
                producer.flush(WAIT_S)

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(write, [keys[:5], keys[5:]]))
        with bus_factory().consumer([topic]) as consumer:
            records = collect(consumer, 500)
        by_key: dict[bytes | None, list[bytes | None]] = defaultdict(list)
        for record in records:
            by_key[record.key].append(record.value)
        assert by_key == {key: [b"%d" % number for number in range(50)] for key in keys}
        assert len({(record.key, record.partition) for record in records}) == 10

    def test_many_threads_share_a_producer(self, bus: Bus, producer: Producer, topics: TopicFactory) -> None:
        topic = topics(2)
        with ThreadPoolExecutor(4) as pool:
            futures = list(pool.map(lambda index: producer.send(topic, b"%d" % index), range(200)))
        assert len({future.result(WAIT_S) for future in futures}) == 200
        with bus.consumer([topic]) as consumer:
            assert {record.value for record in collect(consumer, 200)} == {b"%d" % index for index in range(200)}

    def test_partition_can_be_named(self, producer: Producer, topics: TopicFactory) -> None:
        topic = topics(3)
        assert producer.send(topic, b"v", key=b"k", partition=2).result(WAIT_S).partition == 2
        with pytest.raises(BusError):
            producer.send(topic, b"v", partition=3).result(WAIT_S)

    def test_poll_gives_at_most_max_records(self, bus: Bus, producer: Producer, topics: TopicFactory) -> None:
        topic = topics(2)
        send_all(producer, topic, [b"%d" % index for index in range(25)])
        with bus.consumer([topic]) as consumer:
            sizes: list[int] = []
            poll_until([consumer], lambda: bool(consumer.assignment()))
            consumer.seek(TopicPartition(topic, 0), 0)
            consumer.seek(TopicPartition(topic, 1), 0)
            deadline = time.monotonic() + WAIT_S
            while sum(sizes) < 25:
                assert time.monotonic() < deadline
                sizes.append(len(consumer.poll(0.2, max_records=10)))
        assert max(sizes) <= 10
        assert sum(sizes) == 25

    def test_reader_waits_for_what_comes_later(self, bus: Bus, producer: Producer, topics: TopicFactory) -> None:
        topic = topics()
        with bus.consumer([topic]) as consumer:
            assigned(consumer)
            for index in range(3):
                producer.send(topic, b"%d" % index).result(WAIT_S)
                assert [record.value for record in collect(consumer, 1)] == [b"%d" % index]

    # --- errors -----------------------------------------------------------------------------------

    def test_unknown_topic_is_refused(self, bus: Bus, producer: Producer) -> None:
        with pytest.raises(UnknownTopicError):
            producer.send("distrl.test.absent", b"v").result(WAIT_S)
        with pytest.raises(UnknownTopicError):
            bus.consumer(["distrl.test.absent"])
        with pytest.raises(UnknownTopicError):
            bus.consumer(["distrl.test.absent"], group="g")
        assert "distrl.test.absent" not in bus.admin().topics()

    def test_too_large_record_is_refused_alone(self, bus: Bus, producer: Producer, topics: TopicFactory) -> None:
        topic = topics(max_record_bytes=65_536)
        with pytest.raises(RecordTooLargeError):
            producer.send(topic, bytes(100_000)).result(WAIT_S)
        producer.send(topic, bytes(60_000)).result(WAIT_S)
        with bus.consumer([topic]) as consumer:
            assert [len(record.value or b"") for record in collect(consumer, 1)] == [60_000]

    def test_send_blocks_then_says_so_and_recovers(
        self, bus_factory: BusFactory, topics: TopicFactory, stall: Stall
    ) -> None:
        topic = topics()
        bus = bus_factory(in_flight_records=4, send_seconds=0.5)
        with bus.producer() as producer:
            producer.send(topic, b"first").result(WAIT_S)
            with stall():
                futures = [producer.send(topic, b"%d" % index) for index in range(4)]
                with pytest.raises(BusBackpressureError):
                    producer.send(topic, b"refused")
                records, size = producer.in_flight()
                assert records == 4
                assert size >= 4
                assert not any(future.done() for future in futures)
                with pytest.raises(DeliveryError):
                    producer.flush(0.2)
            for future in futures:
                future.result(WAIT_S)
            producer.send(topic, b"last").result(WAIT_S)
            producer.flush(WAIT_S)
            assert producer.in_flight() == (0, 0)
        with bus.consumer([topic]) as consumer:
            assert [record.value for record in collect(consumer, 6)] == [b"first", b"0", b"1", b"2", b"3", b"last"]

    def test_bytes_in_flight_are_bounded(self, bus_factory: BusFactory, topics: TopicFactory, stall: Stall) -> None:
        topic = topics()
        bus = bus_factory(in_flight_bytes=100_000, send_seconds=0.5)
        with bus.producer() as producer:
            producer.send(topic, bytes(200_000)).result(WAIT_S)  # one alone may be larger than the bound
            with stall():
                futures = [producer.send(topic, bytes(40_000)) for _ in range(2)]
                with pytest.raises(BusBackpressureError):
                    producer.send(topic, bytes(40_000))
            for future in futures:
                future.result(WAIT_S)

    def test_more_than_the_bound_passes_in_time(self, bus_factory: BusFactory, topics: TopicFactory) -> None:
        topic = topics()
        with bus_factory(in_flight_records=4).producer() as producer:
            assert len(send_all(producer, topic, [b"%d" % index for index in range(100)])) == 100

    def test_a_future_s_callback_may_send(self, bus_factory: BusFactory, topics: TopicFactory) -> None:
        """There is room for the next record before the sender hears of the last one, even if that was all the room."""
        topic = topics()
        sent = SimpleQueue[Any]()
        with bus_factory(in_flight_records=1, send_seconds=20.0).producer() as producer:
            first = producer.send(topic, b"first")
            first.add_done_callback(lambda _: sent.put(producer.send(topic, b"second")))
            second = sent.get(timeout=WAIT_S)
            assert second.result(WAIT_S).offset > first.result(0).offset
            producer.flush(WAIT_S)
            assert producer.in_flight() == (0, 0)

    def test_failed_delivery_reaches_the_future(
        self, bus_factory: BusFactory, topics: TopicFactory, stall: Stall
    ) -> None:
        topic = topics()
        with bus_factory(delivery_seconds=6.0).producer() as producer:
            producer.send(topic, b"first").result(WAIT_S)
            with stall():
                futures = [producer.send(topic, b"late") for _ in range(3)]
                errors = [future.exception(WAIT_S) for future in futures]
            assert all(isinstance(error, BusError) and error.retriable for error in errors)
            assert len(set(map(id, errors))) == len(errors)  # raised in several threads, they share no traceback
            producer.send(topic, b"after").result(WAIT_S)

    def test_ping(self, bus: Bus, missing_config: BusConfig) -> None:
        bus.ping(WAIT_S)
        with (
            pytest.raises(BusUnavailableError),
            open_bus(missing_config, clock=SystemClock(), client_id="test") as missing,
        ):
            missing.ping(2.0)

    def test_closing_twice_is_harmless(self, bus_factory: BusFactory, topics: TopicFactory, group: str) -> None:
        topic = topics()
        bus = bus_factory()
        producer = bus.producer()
        future = producer.send(topic, b"v")
        consumer = bus.consumer([topic], group=group)
        producer.close()
        assert future.done()
        for closable in (producer, consumer, consumer, bus, bus):
            closable.close()
        with pytest.raises(BusError):
            producer.send(topic, b"v").result(WAIT_S)

    # --- broadcast --------------------------------------------------------------------------------

    def test_every_broadcast_reader_reads_all(self, bus_factory: BusFactory, topics: TopicFactory) -> None:
        first, second = topics(3), topics(1)
        bus = bus_factory()
        values = [b"%d" % index for index in range(20)]
        with bus.producer() as producer:
            send_all(producer, first, values)
            send_all(producer, second, values)
        everything = {TopicPartition(first, 0), TopicPartition(first, 1), TopicPartition(first, 2)} | {
            TopicPartition(second, 0)
        }
        for reader in (bus, bus_factory()):
            with reader.consumer([first, second]) as consumer:
                records = collect(consumer, 40)
                assert consumer.assignment() == everything
                consumer.commit()
                assert consumer.committed(TopicPartition(first, 0)) is None
            assert Counter(record.value for record in records) == dict.fromkeys(values, 2)

    def test_broadcast_reader_has_its_partitions_at_once(
        self, bus: Bus, producer: Producer, topics: TopicFactory
    ) -> None:
        topic = topics(2)
        zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
        send_all(producer, topic, [b"0", b"1"], partition=0)
        announced: list[TopicPartition] = []
        with bus.consumer([topic], start=Start.at_offsets({zero: 1}), on_assign=announced.extend) as consumer:
            assert consumer.assignment() == {zero, one}
            assert (consumer.position(zero), consumer.position(one)) == (1, 0)
            assert consumer.lag() == {zero: 1, one: 0}
            consumer.seek(zero, 0)
            consumer.pause([one])
            assert [record.value for record in collect(consumer, 2)] == [b"0", b"1"]
            assert sorted(announced) == [zero, one]

    # --- where to start ---------------------------------------------------------------------------

    @pytest.mark.parametrize("grouped", [False, True], ids=["broadcast", "group"])
    def test_start(self, bus: Bus, producer: Producer, topics: TopicFactory, group: str, grouped: bool) -> None:
        topic = topics()
        for index in range(6):
            producer.send(topic, b"%d" % index, timestamp_ms=1_700_000_000_000 + 1000 * index).result(WAIT_S)
        partition = TopicPartition(topic, 0)
        names = (f"{group}-{index}" if grouped else None for index in itertools.count())

        def read(start: Start | None, count: int) -> list[bytes | None]:
            with bus.consumer([topic], group=next(names), start=start) as consumer:
                return [record.value for record in collect(consumer, count)]

        assert read(None, 6) == [b"0", b"1", b"2", b"3", b"4", b"5"]
        assert read(Start.earliest(), 6)[0] == b"0"
        assert read(Start.at_time(1_700_000_003_000), 3) == [b"3", b"4", b"5"]
        assert read(Start.at_time(1_700_000_002_001), 3) == [b"3", b"4", b"5"]
        assert read(Start.at_offsets({partition: 4}), 2) == [b"4", b"5"]
        assert read(Start.at_offsets({}), 6)[0] == b"0"
        for start in (Start.latest(), Start.at_time(1_800_000_000_000)):
            with bus.consumer([topic], group=next(names), start=start) as consumer:
                assigned(consumer)
                position = producer.send(topic, b"new", timestamp_ms=1_700_000_010_000).result(WAIT_S)
                (record,) = collect(consumer, 1)
                assert (record.offset, record.value) == (position.offset, b"new")

    # --- acknowledging ----------------------------------------------------------------------------

    def test_committed_is_the_lowest_not_acknowledged(
        self, bus_factory: BusFactory, topics: TopicFactory, group: str
    ) -> None:
        topic = topics()
        bus = bus_factory()
        partition = TopicPartition(topic, 0)
        with bus.producer() as producer:
            send_all(producer, topic, [b"%d" % index for index in range(10)])
        with bus.consumer([topic], group=group) as consumer:
            records = collect(consumer, 10, ack=False)
            for index in (9, 1, 0, 4, 2):
                consumer.ack(records[index])
            consumer.commit()
            assert consumer.committed(partition) == 3
            assert bus.admin().group_offsets(group) == {partition: 3}
            consumer.ack(RecordPosition(topic, 0, 3))
            consumer.commit()
            assert consumer.committed(partition) == 5
        with bus_factory().consumer([topic], group=group, start=Start.latest()) as consumer:
            again = collect(consumer, 5, ack=False)
            assert [record.offset for record in again] == [5, 6, 7, 8, 9]
            for record in reversed(again):
                consumer.ack(record)
            consumer.commit()
            assert consumer.committed(partition) == 10
        assert bus.admin().group_offsets(group) == {partition: 10}
        assert bus.admin().group_offsets(f"{group}-unknown") == {}

    def test_close_commits(self, bus: Bus, producer: Producer, topics: TopicFactory, group: str) -> None:
        topic = topics()
        send_all(producer, topic, [b"0", b"1"])
        with bus.consumer([topic], group=group) as consumer:
            collect(consumer, 2)
        assert bus.admin().group_offsets(group) == {TopicPartition(topic, 0): 2}
        with bus.consumer([topic], group=group) as consumer:
            assigned(consumer)
            assert quiet(consumer) == []

    def test_groups_are_independent(self, bus: Bus, producer: Producer, topics: TopicFactory, group: str) -> None:
        topic = topics(2)
        send_all(producer, topic, [b"%d" % index for index in range(10)])
        for name in (f"{group}-a", f"{group}-b"):
            with bus.consumer([topic], group=name) as consumer:
                assert len(collect(consumer, 10)) == 10

    # --- position ---------------------------------------------------------------------------------

    def test_position_lag_and_offsets(self, bus: Bus, producer: Producer, topics: TopicFactory, group: str) -> None:
        topic = topics(2)
        zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
        send_all(producer, topic, [b"%d" % index for index in range(4)], partition=0)
        with bus.consumer([topic], group=group) as consumer:
            collect(consumer, 4)
            assert (consumer.position(zero), consumer.position(one)) == (4, 0)
            assert consumer.lag() == {zero: 0, one: 0}
            assert consumer.beginning_offsets() == {zero: 0, one: 0}
            assert consumer.end_offsets() == {zero: 4, one: 0}
            assert bus.admin().end_offsets([topic]) == {zero: 4, one: 0}
            send_all(producer, topic, [b"x"] * 3, partition=1)
            assert consumer.lag() == {zero: 0, one: 3}

    def test_seek(self, bus: Bus, producer: Producer, topics: TopicFactory, group: str) -> None:
        topic = topics()
        partition = TopicPartition(topic, 0)
        send_all(producer, topic, [b"%d" % index for index in range(5)])
        with bus.consumer([topic], group=group) as consumer:
            collect(consumer, 5, ack=False)
            consumer.seek(partition, 2)
            assert consumer.position(partition) == 2
            assert [record.offset for record in collect(consumer, 3)] == [2, 3, 4]
            consumer.commit()
            assert consumer.committed(partition) == 5

    def test_pause_and_resume(self, bus: Bus, producer: Producer, topics: TopicFactory) -> None:
        topic = topics(2)
        zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
        with bus.consumer([topic]) as consumer:
            assigned(consumer)
            consumer.pause([zero])
            assert consumer.paused() == {zero}
            send_all(producer, topic, [b"0"], partition=0)
            send_all(producer, topic, [b"1"], partition=1)
            assert [record.topic_partition for record in collect(consumer, 1)] == [one]
            assert quiet(consumer) == []
            assert consumer.lag() == {zero: 1, one: 0}
            consumer.resume([zero])
            assert consumer.paused() == frozenset()
            assert [record.topic_partition for record in collect(consumer, 1)] == [zero]

    # --- groups -----------------------------------------------------------------------------------

    @BOTH
    def test_two_members_share_and_a_leave_hands_over(
        self, bus_factory: BusFactory, topics: TopicFactory, group: str, assignment: Assignment
    ) -> None:
        topic = topics(4)
        everything = {TopicPartition(topic, index) for index in range(4)}
        bus = bus_factory()
        first = bus.consumer([topic], group=group, assignment=assignment)
        assigned(first)
        assert first.assignment() == everything
        second = bus_factory().consumer([topic], group=group, assignment=assignment)
        poll_until([first, second], lambda: len(first.assignment()) == len(second.assignment()) == 2)
        assert first.assignment() | second.assignment() == everything
        with bus.producer() as producer:
            for index in range(4):
                send_all(producer, topic, [b"%d" % index] * 5, partition=index)
        got: dict[int, list[Record]] = defaultdict(list)
        deadline = time.monotonic() + WAIT_S
        while sum(map(len, got.values())) < 20:
            assert time.monotonic() < deadline
            for index, consumer in enumerate((first, second)):
                for record in consumer.poll(0.05):
                    got[index].append(record)
                    consumer.ack(record)
        assert {record.topic_partition for record in got[0]} == first.assignment()
        assert {record.topic_partition for record in got[1]} == second.assignment()
        first.close()
        records = poll_until([second], lambda: second.assignment() == everything)
        assert records[0] == []  # all was acknowledged, and a close commits
        assert quiet(second) == []
        second.close()

    def test_equal_partition_numbers_stay_together(
        self, bus_factory: BusFactory, topics: TopicFactory, group: str
    ) -> None:
        names = [topics(5), topics(5), topics(5)]
        with contextlib.ExitStack() as stack:
            members = [stack.enter_context(bus_factory().consumer(names, group=group)) for _ in range(3)]
            poll_until(
                members,
                lambda: (
                    all(member.assignment() for member in members)
                    and sum(len(member.assignment()) for member in members) == 15
                ),
            )
            for member in members:
                numbers = {topic: {p.partition for p in member.assignment() if p.topic == topic} for topic in names}
                assert numbers[names[0]] == numbers[names[1]] == numbers[names[2]]
                assert len(numbers[names[0]]) in (1, 2)

    @BOTH
    def test_more_members_than_partitions(
        self, bus_factory: BusFactory, topics: TopicFactory, group: str, assignment: Assignment
    ) -> None:
        topic = topics(1)
        with (
            bus_factory().consumer([topic], group=group, assignment=assignment) as first,
            bus_factory().consumer([topic], group=group, assignment=assignment) as second,
        ):
            poll_until([first, second], lambda: len(first.assignment()) + len(second.assignment()) == 1)
            owner, other = (first, second) if first.assignment() else (second, first)
            owner.close()
            poll_until([other], lambda: len(other.assignment()) == 1)

    @BOTH
    def test_callbacks_tell_of_every_move(
        self, bus_factory: BusFactory, topics: TopicFactory, group: str, assignment: Assignment
    ) -> None:
        topic = topics(2)
        held: set[TopicPartition] = set()

        def on_assign(partitions: Collection[TopicPartition]) -> None:
            assert not held & set(partitions)
            held.update(partitions)

        def on_revoke(partitions: Collection[TopicPartition]) -> None:
            assert held >= set(partitions)
            held.difference_update(partitions)

        first = bus_factory().consumer(
            [topic], group=group, assignment=assignment, on_assign=on_assign, on_revoke=on_revoke
        )
        assigned(first)
        assert held == first.assignment() == {TopicPartition(topic, 0), TopicPartition(topic, 1)}
        with bus_factory().consumer([topic], group=group, assignment=assignment) as second:
            poll_until([first, second], lambda: len(first.assignment()) == len(second.assignment()) == 1)
            assert held == first.assignment()
        poll_until([first], lambda: len(first.assignment()) == 2)
        assert held == first.assignment()
        first.close()
        assert held == set()

    @BOTH
    def test_revoke_comes_before_the_final_commit(
        self, bus_factory: BusFactory, topics: TopicFactory, group: str, assignment: Assignment
    ) -> None:
        topic = topics(2)
        bus = bus_factory()
        with bus.producer() as producer:
            for index in range(2):
                send_all(producer, topic, [b"v"] * 3, partition=index)
        records: list[Record] = []

        def finish(partitions: Collection[TopicPartition]) -> None:
            for record in records:
                if record.topic_partition in partitions:
                    first.ack(record)

        first = bus.consumer([topic], group=group, assignment=assignment, on_revoke=finish)
        records += collect(first, 6, ack=False)
        with first, bus_factory().consumer([topic], group=group, assignment=assignment) as second:
            got = poll_until([first, second], lambda: len(second.assignment()) == 1)
            assert got[1] == []
            assert quiet(second) == []

    @BOTH
    def test_ack_after_revoke_is_ignored(
        self, bus_factory: BusFactory, topics: TopicFactory, group: str, assignment: Assignment
    ) -> None:
        topic = topics(2)
        bus = bus_factory()
        with bus.producer() as producer:
            for index in range(2):
                send_all(producer, topic, [b"v"] * 3, partition=index)
        with bus.consumer([topic], group=group, assignment=assignment) as first:
            records = collect(first, 6, ack=False)
            with bus_factory().consumer([topic], group=group, assignment=assignment) as second:
                got = poll_until([first, second], lambda: len(second.assignment()) == 1)[1]
                (moved,) = second.assignment()
                for record in records:
                    if record.topic_partition == moved:
                        first.ack(record)
                first.commit()
                got += collect(second, 3 - len(got), ack=False)
                assert [record.topic_partition for record in got] == [moved] * 3
                assert bus.admin().group_offsets(group).get(moved, 0) == 0

    @BOTH
    def test_killed_member_is_replaced_and_nothing_is_lost(
        self,
        bus_factory: BusFactory,
        topics: TopicFactory,
        group: str,
        child: Callable[..., Any],
        assignment: Assignment,
    ) -> None:
        topic = topics(2)
        bus = bus_factory()
        with bus.producer() as producer:
            for index in range(2):
                send_all(producer, topic, [b"%d-%d" % (index, number) for number in range(10)], partition=index)
        process, partitions = child(topic, group, assignment=assignment, wanted=20, acked=4)
        assert partitions == [0, 1]
        process.send_signal(signal.SIGKILL)
        process.wait(WAIT_S)
        with bus.consumer([topic], group=group, assignment=assignment) as consumer:
            records = collect(consumer, 12)
            assert consumer.assignment() == {TopicPartition(topic, 0), TopicPartition(topic, 1)}
            assert quiet(consumer) == []
        expected = {(index, offset, b"%d-%d" % (index, offset)) for index in range(2) for offset in range(4, 10)}
        assert {(record.partition, record.offset, record.value) for record in records} == expected

    @BOTH
    def test_killed_neighbour_is_replaced(
        self,
        bus_factory: BusFactory,
        topics: TopicFactory,
        group: str,
        child: Callable[..., Any],
        assignment: Assignment,
    ) -> None:
        topic = topics(2)
        bus = bus_factory()
        process, _ = child(topic, group, assignment=assignment, wanted=0, acked=0)
        with bus.consumer([topic], group=group, assignment=assignment) as consumer:
            poll_until([consumer], lambda: len(consumer.assignment()) == 1)
            process.send_signal(signal.SIGKILL)
            process.wait(WAIT_S)
            with bus.producer() as producer:
                for index in range(2):
                    send_all(producer, topic, [b"v"] * 3, partition=index)
            records = collect(consumer, 6)
            assert {record.partition for record in records} == {0, 1}

    def test_member_that_does_not_poll_is_replaced_and_its_commit_refused(
        self, bus_factory: BusFactory, topics: TopicFactory, group: str
    ) -> None:
        topic = topics()
        partition = TopicPartition(topic, 0)
        revoked: list[TopicPartition] = []
        bus = bus_factory()
        with bus.producer() as producer:
            send_all(producer, topic, [b"%d" % index for index in range(4)])
        with bus_factory(poll_gap_seconds=1.5).consumer([topic], group=group, on_revoke=revoked.extend) as hung:
            mine = collect(hung, 4, ack=False)
            with bus.consumer([topic], group=group) as other:
                theirs = collect(other, 4, ack=False)
                assert [record.offset for record in theirs] == [0, 1, 2, 3]
                other.ack(theirs[0])
                other.commit()
                for record in mine:
                    hung.ack(record)
                hung.commit()
                assert other.committed(partition) == 1
                assert hung.poll(0.0) == []
                poll_until([hung], lambda: revoked == [partition])
                assert hung.assignment() == frozenset()
                assert other.committed(partition) == 1
            assert [record.offset for record in collect(hung, 3)] == [1, 2, 3]

    def test_paused_member_that_polls_keeps_its_partitions(
        self, bus_factory: BusFactory, topics: TopicFactory, group: str
    ) -> None:
        topic = topics()
        partition = TopicPartition(topic, 0)
        revoked: list[TopicPartition] = []
        impatient = bus_factory(poll_gap_seconds=1.0)
        with (
            impatient.consumer([topic], group=group, on_revoke=revoked.extend) as busy,
            impatient.consumer([topic], group=f"{group}-hung") as hung,
        ):
            assigned(busy)
            assigned(hung)
            busy.pause([partition])
            with impatient.producer() as producer:
                send_all(producer, topic, [b"v"])
            # A member of another group that does not poll is replaced meanwhile, so time enough has passed.
            with bus_factory().consumer([topic], group=f"{group}-hung") as successor:
                got = poll_until([busy, successor], lambda: bool(successor.assignment()))
            assert got[0] == []
            assert revoked == []
            assert busy.paused() == busy.assignment() == {partition}
            busy.resume([partition])
            assert [record.value for record in collect(busy, 1)] == [b"v"]

    def test_successor_of_a_latest_reader_starts_where_that_started(
        self, bus: Bus, bus_factory: BusFactory, producer: Producer, topics: TopicFactory, group: str
    ) -> None:
        topic = topics()
        send_all(producer, topic, [b"before"])
        hung = bus.consumer([topic], group=group, start=Start.latest(), member="a")
        poll_until([hung], lambda: len(hung.assignment()) == 1)
        send_all(producer, topic, [b"after"])
        with bus_factory().consumer([topic], group=group, start=Start.latest(), member="a") as successor:
            assert [record.value for record in collect(successor, 1)] == [b"after"]

    def test_nothing_is_skipped_after_a_seek_or_start_beyond_the_end(
        self, bus: Bus, producer: Producer, topics: TopicFactory
    ) -> None:
        topic = topics()
        beyond = {TopicPartition(topic, 0): 100}
        send_all(producer, topic, [b"old"])
        with bus.consumer([topic], start=Start.at_offsets(beyond)) as started, bus.consumer([topic]) as sought:
            assert started.poll(0.2) == []
            sought.seek(TopicPartition(topic, 0), 100)
            send_all(producer, topic, [b"new"])
            assert [record.value for record in collect(started, 1)] == [b"new"]
            assert [record.value for record in collect(sought, 1)] == [b"new"]

    @BOTH
    def test_static_member_keeps_its_partitions_over_a_restart(
        self,
        bus_factory: BusFactory,
        topics: TopicFactory,
        group: str,
        child: Callable[..., Any],
        assignment: Assignment,
    ) -> None:
        topic = topics(2)
        revoked: list[TopicPartition] = []
        process, _ = child(topic, group, assignment=assignment, member="a", wanted=0, acked=0, session_seconds=30.0)
        with bus_factory(session_seconds=30.0).consumer(
            [topic], group=group, assignment=assignment, member="b", on_revoke=revoked.extend
        ) as stays:
            poll_until([stays], lambda: len(stays.assignment()) == 1)
            before = stays.assignment()
            revoked.clear()
            process.send_signal(signal.SIGKILL)
            process.wait(WAIT_S)
            with bus_factory().consumer([topic], group=group, assignment=assignment, member="a") as again:
                poll_until([again, stays], lambda: len(again.assignment()) == 1)
                assert quiet(stays) == []
                assert stays.assignment() == before
                assert again.assignment() == {TopicPartition(topic, 0), TopicPartition(topic, 1)} - before
                assert revoked == []

    @BOTH
    def test_second_holder_of_a_member_name_fences_the_first(
        self, bus_factory: BusFactory, topics: TopicFactory, group: str, assignment: Assignment
    ) -> None:
        topic = topics(1)
        first = bus_factory().consumer([topic], group=group, assignment=assignment, member="a")
        assigned(first)
        with bus_factory().consumer([topic], group=group, assignment=assignment, member="a") as second:
            poll_until([second], lambda: len(second.assignment()) == 1)

            def poll_both() -> None:
                deadline = time.monotonic() + WAIT_S
                while time.monotonic() < deadline:
                    first.poll(0.1)
                    second.poll(0.1)

            with pytest.raises(FencedError):
                poll_both()
            first.close()
            assert second.assignment() == {TopicPartition(topic, 0)}

    # --- fencing producers ------------------------------------------------------------------------

    def test_fence_lets_only_the_newest_write(self, bus_factory: BusFactory, topics: TopicFactory, group: str) -> None:
        topic = topics()
        reader = bus_factory()
        with bus_factory().producer(fence=group) as older:
            older.send(topic, b"old-0").result(WAIT_S)
            with bus_factory().producer(fence=group) as newer, reader.producer(fence=f"{group}-other") as other:
                with pytest.raises(FencedError):
                    older.send(topic, b"old-1").result(WAIT_S)
                newer.send(topic, b"new-0").result(WAIT_S)
                with pytest.raises(FencedError):
                    older.send(topic, b"old-2").result(WAIT_S)
                other.send(topic, b"other").result(WAIT_S)
                newer.send(topic, b"new-1").result(WAIT_S)
        with reader.consumer([topic]) as consumer:
            values = [record.value for record in collect(consumer, 4)]
            assert quiet(consumer) == []
        assert values == [b"old-0", b"new-0", b"other", b"new-1"]

    def test_fence_taken_in_the_midst_of_writing(
        self, bus_factory: BusFactory, topics: TopicFactory, group: str
    ) -> None:
        topic = topics()
        with bus_factory().producer(fence=group) as older, ThreadPoolExecutor(1) as pool:
            started = threading.Event()

            def write() -> int:
                for number in itertools.count():
                    try:
                        older.send(topic, b"old").result(WAIT_S)
                    except FencedError:
                        return number
                    if number == 5:
                        started.set()
                raise AssertionError("unreachable")

            written = pool.submit(write)
            assert started.wait(WAIT_S)
            with bus_factory().producer(fence=group) as newer:
                newer.send(topic, b"new").result(WAIT_S)
                count = written.result(WAIT_S)
        with bus_factory().consumer([topic]) as consumer:
            values = [record.value for record in collect(consumer, count + 1)]
            assert quiet(consumer) == []
        assert values == [b"old"] * count + [b"new"]

    # --- topics -----------------------------------------------------------------------------------

    def test_create_is_idempotent_and_refuses_a_mismatch(self, bus: Bus, topics: TopicFactory) -> None:
        admin = bus.admin()
        settings: dict[str, Any] = {
            "retention_ms": 3_600_000,
            "retention_bytes": 50_000_000,
            "max_record_bytes": 70_000,
        }
        topic = topics(3, **settings)
        spec = TopicSpec(topic, partitions=3, **settings)
        assert admin.create([spec]) == []
        assert admin.topics()[topic] == spec
        for partitions in (1, 4):
            with pytest.raises(TopicMismatchError):
                admin.create([TopicSpec(topic, partitions=partitions, **settings)])
        assert admin.topics()[topic] == spec

    def test_topics_say_what_was_declared(self, bus: Bus, topics: TopicFactory) -> None:
        compacted, endless = topics(cleanup="compact"), topics(2)
        found = bus.admin().topics()
        assert found[compacted] == TopicSpec(compacted, cleanup="compact")
        assert found[endless] == TopicSpec(endless, partitions=2)

    @pytest.mark.parametrize(
        "change",
        [
            {"cleanup": "compact"},
            {"cleanup": "compact,delete"},
            {"retention_ms": 7_200_000},
            {"retention_ms": None},
            {"retention_bytes": None},
            {"max_record_bytes": 80_000},
        ],
        ids=str,
    )
    def test_alter_changes_a_setting_and_leaves_the_rest(
        self, bus: Bus, topics: TopicFactory, change: dict[str, Any]
    ) -> None:
        admin = bus.admin()
        settings: dict[str, Any] = {
            "retention_ms": 3_600_000,
            "retention_bytes": 50_000_000,
            "max_record_bytes": 70_000,
        }
        topic, same = topics(2, **settings), topics(2, **settings)
        declared = TopicSpec(topic, partitions=2, **{**settings, **change})
        unchanged, absent = TopicSpec(same, partitions=2, **settings), TopicSpec("distrl.test.absent", **settings)
        assert admin.alter([unchanged, declared, absent]) == [topic]
        assert admin.topics()[topic] == declared
        assert admin.topics()[same] == unchanged
        assert absent.name not in admin.topics()
        assert admin.alter([unchanged, declared]) == []

    def test_alter_never_touches_partitions_or_replication(self, bus: Bus, topics: TopicFactory) -> None:
        admin = bus.admin()
        topic = topics(2)
        assert admin.alter([TopicSpec(topic, partitions=5, replication=3)]) == []
        assert admin.alter([TopicSpec(topic, partitions=1, replication=3, retention_ms=3_600_000)]) == [topic]
        assert admin.topics()[topic] == TopicSpec(topic, partitions=2, retention_ms=3_600_000)
        assert admin.alter([]) == []

    def test_a_producer_takes_what_an_altered_topic_takes(
        self, bus: Bus, bus_factory: BusFactory, producer: Producer, topics: TopicFactory
    ) -> None:
        topic = topics(max_record_bytes=70_000)
        with pytest.raises(RecordTooLargeError):
            producer.send(topic, bytes(80_000)).result(WAIT_S)
        bus_factory().admin().alter([TopicSpec(topic, max_record_bytes=90_000)])  # as another process does it
        producer.send(topic, bytes(80_000)).result(WAIT_S)

    def test_a_topic_that_becomes_compacted_tells_the_newest_of_each_key(
        self, bus: Bus, producer: Producer, topics: TopicFactory
    ) -> None:
        topic = topics()
        for value in (b"1", b"2"):
            producer.send(topic, value, key=b"a").result(WAIT_S)
        assert bus.admin().alter([TopicSpec(topic, cleanup="compact")]) == [topic]
        producer.send(topic, b"3", key=b"a").result(WAIT_S)
        with bus.consumer([topic]) as consumer:
            records: list[Record] = []
            while not records or records[-1].offset != 2:
                records += consumer.poll(WAIT_S)
        assert records[-1].value == b"3"

    # --- groups -----------------------------------------------------------------------------------

    def test_groups_are_known_by_members_or_offsets(
        self, bus: Bus, bus_factory: BusFactory, producer: Producer, topics: TopicFactory, group: str
    ) -> None:
        topic = topics()
        send_all(producer, topic, [b"v"])
        admin = bus.admin()
        assert admin.groups(group) == []
        with (
            bus_factory().consumer([topic], group=f"{group}.b") as left,
            bus_factory().consumer([topic], group=f"{group}.a") as stays,
        ):
            collect(left, 1)
            left.close()
            collect(stays, 1, ack=False)
            assert admin.groups(group) == [f"{group}.a", f"{group}.b"]
            assert admin.groups(f"{group}.b") == [f"{group}.b"]
            assert set(admin.groups()) >= {f"{group}.a", f"{group}.b"}

    def test_delete_groups_forgets_offsets_and_keeps_who_lives(
        self, bus: Bus, bus_factory: BusFactory, producer: Producer, topics: TopicFactory, group: str
    ) -> None:
        topic = topics()
        send_all(producer, topic, [b"v"])
        gone, lives, absent = f"{group}.gone", f"{group}.lives", f"{group}.absent"
        admin = bus.admin()
        with bus_factory().consumer([topic], group=gone) as left, bus_factory().consumer([topic], group=lives) as stays:
            collect(left, 1)
            left.close()
            collect(stays, 1)
            stays.commit()
            with pytest.raises(BusError, match=lives):
                admin.delete_groups([lives, absent, gone])
            assert admin.groups(group) == [lives]
            assert admin.group_offsets(gone) == {}
            assert admin.group_offsets(lives) == {TopicPartition(topic, 0): 1}
            stays.poll(0.0)
        admin.delete_groups([lives, absent])
        admin.delete_groups([])
        assert admin.groups(group) == []
        with bus.consumer([topic], group=lives) as again:
            assert [record.value for record in collect(again, 1)] == [b"v"]

    @pytest.mark.parametrize("name", ["", ".", "..", "../escape", "a/b", "a b", "a\0b", "x" * 250])
    def test_impossible_topic_names_are_refused(self, bus: Bus, name: str) -> None:
        with pytest.raises(BusError):
            bus.admin().create([TopicSpec(name)])

    def test_delete_removes_a_topic(self, bus: Bus, topics: TopicFactory) -> None:
        topic, kept = topics(2), topics()
        admin = bus.admin()
        admin.delete([topic, "distrl.test.absent"])
        deadline = time.monotonic() + WAIT_S
        while topic in admin.topics():  # a broker removes in the background
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert kept in admin.topics()
        with pytest.raises(UnknownTopicError):
            bus.consumer([topic])

    def test_sizes_are_told_by_topic(self, bus: Bus, producer: Producer, topics: TopicFactory) -> None:
        small, large = topics(), topics(partitions=2)
        for number in range(20):
            producer.send(large, os.urandom(50_000), key=str(number).encode()).result(10.0)
        producer.send(small, b"x").result(10.0)
        admin = bus.admin()
        sizes = admin.sizes(large)
        assert set(sizes) == {large}
        assert 1_000_000 <= sizes[large] < 10_000_000
        assert admin.sizes()[small] < 500_000
        assert admin.sizes("no-topic-begins-like-this") == {}

    def test_delete_records(self, bus: Bus, producer: Producer, topics: TopicFactory) -> None:
        topic = topics(2)
        zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
        for index in range(2):
            send_all(producer, topic, [b"%d" % number for number in range(5)], partition=index)
        bus.admin().delete_records({zero: 3})
        with bus.consumer([topic], start=Start.at_offsets({zero: 1, one: 4})) as consumer:
            records = collect(consumer, 3)
            assert sorted((record.partition, record.offset) for record in records) == [(0, 3), (0, 4), (1, 4)]
            assert consumer.beginning_offsets() == {zero: 3, one: 0}
            assert consumer.end_offsets() == {zero: 5, one: 5}

    def test_compacted_topic_tells_the_newest_of_each_key(
        self, bus: Bus, producer: Producer, topics: TopicFactory
    ) -> None:
        topic = topics(cleanup="compact")
        for key, value in [(b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"c", b"1"), (b"b", None)]:
            producer.send(topic, value, key=key).result(WAIT_S)
        deadline = time.monotonic() + WAIT_S
        with bus.consumer([topic]) as consumer:
            newest: dict[bytes | None, bytes | None] = {}
            while consumer.lag() != {TopicPartition(topic, 0): 0} or not newest:
                assert time.monotonic() < deadline
                for record in consumer.poll(0.2):
                    newest[record.key] = record.value
        assert {key: value for key, value in newest.items() if value is not None} == {b"a": b"2", b"c": b"1"}
