"""Kafka's failures, on a broker of this module's own: killed, stalled, fenced, missing, and members that die."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import distrl
from distrl.connectors import open_bus
from distrl.core.config import BusConfig
from distrl.core.contracts.bus import Bus, RecordPosition, Start, TopicPartition, TopicSpec
from distrl.core.contracts.clock import SystemClock
from distrl.core.errors import BusError, BusUnavailableError, ConfigError, DeliveryError, DistrlError, FencedError

if TYPE_CHECKING:
    from kafka_broker import KafkaServer

pytestmark = pytest.mark.kafka

WAIT_S = 60.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    from kafka_broker import start_kafka

    with start_kafka(tmp_path_factory.mktemp("kafka") / "state") as server:
        yield server


@pytest.fixture(autouse=True)
def _healed(broker: KafkaServer) -> Iterator[None]:
    """However a test ends, the next one finds a broker that answers."""
    yield
    broker.resume()
    broker.start()


def opened(broker: KafkaServer, **settings: Any) -> Bus:
    config = BusConfig(**{"kind": "kafka", "bootstrap": (broker.bootstrap,), "session_seconds": 3.0, **settings})
    return open_bus(config, clock=SystemClock(), client_id="faults")


def made(bus: Bus, partitions: int = 1, **settings: Any) -> str:
    name = f"distrl.faults-{uuid.uuid4().hex[:8]}.records"
    bus.admin().create([TopicSpec(name, partitions=partitions, **settings)])
    return name


def read_to_end(bus: Bus, topic: str) -> list[bytes | None]:
    """All that a reader sees, in order within a partition."""
    with bus.consumer([topic]) as consumer:
        values: list[bytes | None] = []
        deadline = time.monotonic() + WAIT_S
        while any(consumer.lag().values()):
            assert time.monotonic() < deadline
            values += [record.value for record in consumer.poll(0.2)]
        return values


def first_seen(values: list[bytes | None]) -> list[bytes | None]:
    """What is left when every repeated value is dropped, as consumers do by the event's id."""
    return list(dict.fromkeys(values))


class Traffic:
    """Sends numbered records from a thread until it is told to stop, and keeps every future."""

    def __init__(self, bus: Bus, topic: str) -> None:
        self._producer = bus.producer()
        self._topic = topic
        self._stop = threading.Event()
        self.futures: list[Future[RecordPosition]] = []
        self.failure: DistrlError | None = None
        self._thread = threading.Thread(target=self._send)
        self._thread.start()

    def _send(self) -> None:
        try:
            while not self._stop.wait(0.005):
                self.futures.append(self._producer.send(self._topic, b"%d" % len(self.futures), key=b"k"))
        except DistrlError as error:
            self.failure = error

    def wait_for(self, count: int) -> None:
        """Until ``count`` more records are acknowledged than now."""
        wanted = sum(future.done() for future in self.futures) + count
        deadline = time.monotonic() + WAIT_S
        while sum(future.done() for future in self.futures) < wanted:
            assert time.monotonic() < deadline, self.failure
            time.sleep(0.05)

    def finish(self) -> list[RecordPosition]:
        self._stop.set()
        self._thread.join(WAIT_S)
        assert self.failure is None
        positions = [future.result(WAIT_S) for future in self.futures]
        self._producer.close()
        return positions


def test_nothing_acknowledged_is_lost_when_the_broker_is_killed(broker: KafkaServer) -> None:
    with opened(broker) as bus:
        topic = made(bus)
        with bus.consumer([topic], group=topic) as consumer:
            traffic = Traffic(bus, topic)
            seen: list[bytes | None] = []

            def read() -> None:
                for record in consumer.poll(0.2):
                    seen.append(record.value)
                    consumer.ack(record)

            traffic.wait_for(50)
            broker.kill()
            read()
            broker.start()
            traffic.wait_for(50)
            positions = traffic.finish()
            values = read_to_end(bus, topic)
            # In order, too: what was sent again after the crash comes after what was written before it.
            assert first_seen(values) == [b"%d" % number for number in range(len(positions))]
            assert {values[position.offset] for position in positions} == set(values)
            deadline = time.monotonic() + WAIT_S
            while len(set(seen)) < len(positions):  # the same member goes on after the crash
                assert time.monotonic() < deadline
                read()
            assert first_seen(seen) == first_seen(values)
            consumer.commit()
            assert consumer.lag() == {TopicPartition(topic, 0): 0}


def test_a_wedged_producer_is_replaced_and_everything_arrives(broker: KafkaServer) -> None:
    """The stall outlasts the first client's time, but not the records'."""
    with opened(broker, delivery_seconds=30.0) as bus:
        topic = made(bus)
        with bus.producer() as producer:
            producer.send(topic, b"0", key=b"k").result(WAIT_S)
            broker.pause()
            futures = [producer.send(topic, b"%d" % number, key=b"k") for number in range(1, 201)]
            with pytest.raises(DeliveryError):
                producer.flush(17.0)
            broker.resume()
            futures += [producer.send(topic, b"%d" % number, key=b"k") for number in range(201, 251)]
            for future in futures:
                future.result(WAIT_S)
        assert first_seen(read_to_end(bus, topic)) == [b"%d" % number for number in range(251)]


def test_records_fail_in_their_time_and_later_ones_arrive(broker: KafkaServer) -> None:
    with opened(broker, delivery_seconds=12.0) as bus:
        topic = made(bus)
        with bus.producer() as producer:
            producer.send(topic, b"first").result(WAIT_S)
            broker.kill()
            futures = [producer.send(topic, b"lost-%d" % number) for number in range(20)]
            for future in futures:
                assert isinstance(future.exception(WAIT_S), DeliveryError)
            broker.start()
            producer.send(topic, b"after").result(WAIT_S)
        assert read_to_end(bus, topic) == [b"first", b"after"]


def test_a_fenced_producer_survives_a_crash_of_the_broker(broker: KafkaServer) -> None:
    with opened(broker) as bus:
        topic = made(bus)
        with bus.producer(fence=topic) as producer:
            producer.send(topic, b"0").result(WAIT_S)
            broker.kill()
            futures = [producer.send(topic, b"%d" % number) for number in range(1, 20)]
            broker.start()
            for future in futures:
                future.result(WAIT_S)
        assert first_seen(read_to_end(bus, topic)) == [b"%d" % number for number in range(20)]


def test_a_fenced_producer_survives_a_stall(broker: KafkaServer) -> None:
    """The transaction in hand hangs for longer than a client is given; the next client continues it."""
    with opened(broker, delivery_seconds=30.0) as bus:
        topic = made(bus)
        with bus.producer(fence=topic) as producer:
            producer.send(topic, b"0").result(WAIT_S)
            broker.pause()
            futures = [producer.send(topic, b"%d" % number) for number in range(1, 50)]
            with pytest.raises(DeliveryError):
                producer.flush(17.0)
            broker.resume()
            for future in futures:
                future.result(WAIT_S)
            producer.send(topic, b"50").result(WAIT_S)
        assert first_seen(read_to_end(bus, topic)) == [b"%d" % number for number in range(51)]


@pytest.mark.parametrize("fenced", [False, True], ids=["plain", "fenced"])
def test_a_stall_longer_than_the_records_time_ends_them_and_nothing_else(broker: KafkaServer, fenced: bool) -> None:
    """Sent into a broker that stands still, the fenced ones in a transaction that stays open: every sender is told in
    time; when the broker goes on, later records arrive, and none that was given up comes out of order."""
    with opened(broker, delivery_seconds=6.0) as bus:
        topic = made(bus)
        with bus.producer(fence=topic if fenced else None) as producer:
            producer.send(topic, b"0", key=b"k").result(WAIT_S)
            broker.pause()
            given_up = [producer.send(topic, b"%d" % number, key=b"k") for number in range(1, 101)]
            errors = [future.exception(WAIT_S) for future in given_up]
            assert all(isinstance(error, DeliveryError) for error in errors)
            assert len(set(map(id, errors))) == len(errors)
            waiting = [producer.send(topic, b"%d" % number, key=b"k") for number in range(101, 111)]
            broker.resume()
            later = [producer.send(topic, b"%d" % number, key=b"k") for number in range(111, 161)]
            outcomes = [future.exception(WAIT_S) for future in waiting]
            assert all(outcome is None or isinstance(outcome, DeliveryError) for outcome in outcomes)
            for future in later:
                future.result(WAIT_S)
            producer.flush(WAIT_S)
        numbers = [int(value or b"-1") for value in first_seen(read_to_end(bus, topic))]
        written = {number for number, outcome in enumerate(outcomes, 101) if outcome is None}
        assert set(numbers) >= {0, *written, *range(111, 161)}
        assert numbers == sorted(numbers)


def test_records_fail_in_their_time_while_a_client_is_being_opened(broker: KafkaServer) -> None:
    """The stalled broker takes connections and never answers, so that opening a client outlasts the records."""
    with opened(broker, delivery_seconds=2.0) as bus:
        topic = made(bus)
        bus.admin().end_offsets([topic])
        with bus.producer() as producer:
            known = producer.send(topic, b"0", key=b"k")
            known.result(WAIT_S)
        with bus.producer() as producer:
            broker.pause()
            late = [producer.send(topic, b"%d" % number, key=b"k") for number in range(1, 11)]
            for future in late:
                assert isinstance(future.exception(WAIT_S), DeliveryError)
            assert any(thread.name == "kafka-patience" for thread in threading.enumerate())  # it still is
            broker.resume()
            while isinstance(producer.send(topic, b"after", key=b"k").exception(WAIT_S), DeliveryError):
                pass
        values = first_seen(read_to_end(bus, topic))
        assert values[0] == b"0"
        assert values[-1] == b"after"


def test_a_reader_outlasts_a_stall_of_the_broker(broker: KafkaServer) -> None:
    """Longer than its session: it loses its place perhaps, and no record."""
    with opened(broker, delivery_seconds=60.0) as bus:
        topic = made(bus)
        with bus.producer() as producer, bus.consumer([topic], group=topic) as consumer:
            seen: list[bytes | None] = []

            def read() -> None:
                for record in consumer.poll(0.2):
                    seen.append(record.value)
                    consumer.ack(record)

            def read_until(count: int) -> None:
                deadline = time.monotonic() + WAIT_S
                while len(set(seen)) < count:
                    assert time.monotonic() < deadline
                    read()

            for number in range(50):
                producer.send(topic, b"%d" % number, key=b"k")
            read_until(50)
            consumer.commit()
            broker.pause()
            futures = [producer.send(topic, b"%d" % number, key=b"k") for number in range(50, 100)]
            stalled = time.monotonic() + 8.0  # the session is 3 s
            while time.monotonic() < stalled:
                read()
            broker.resume()
            for future in futures:
                future.result(WAIT_S)
            read_until(100)
            assert first_seen(seen) == [b"%d" % number for number in range(100)]
            deadline = time.monotonic() + WAIT_S
            while bus.admin().group_offsets(topic) != bus.admin().end_offsets([topic]):
                assert time.monotonic() < deadline
                read()
                consumer.commit()


def test_an_older_holder_never_takes_the_fence_back(broker: KafkaServer) -> None:
    """It was stalled when it was replaced, so it finds out only while it recovers."""
    with opened(broker, delivery_seconds=90.0) as bus:
        topic = made(bus)
        older = bus.producer(fence=topic)
        older.send(topic, b"old").result(WAIT_S)
        broker.kill()
        lost = older.send(topic, b"never")
        broker.start()
        with bus.producer(fence=topic) as newer:
            newer.send(topic, b"new-0").result(WAIT_S)
            outcome = lost.exception(WAIT_S)
            assert outcome is None or isinstance(outcome, FencedError)
            with pytest.raises(FencedError):
                older.send(topic, b"never").result(WAIT_S)
            newer.send(topic, b"new-1").result(WAIT_S)
        older.close()
        expected = [b"old", b"new-0", b"new-1"]
        if outcome is None:  # it was quicker than its successor
            expected.insert(1, b"never")
        assert read_to_end(bus, topic) == expected


def test_what_a_replaced_holder_left_open_is_never_read(broker: KafkaServer) -> None:
    """A holder that dies inside a transaction leaves records in the log that no reader may see."""
    from kafka import KafkaProducer

    with opened(broker) as bus:
        topic = made(bus)
        dead = KafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id=topic)
        dead.init_transactions()
        dead.begin_transaction()
        dead.send(topic, b"unfinished").get(WAIT_S)
        with bus.producer(fence=topic) as producer:
            producer.send(topic, b"finished").result(WAIT_S)
        assert read_to_end(bus, topic) == [b"finished"]
        assert bus.admin().end_offsets([topic])[TopicPartition(topic, 0)] > 2
        with bus.consumer([topic], group=topic) as consumer:
            while not any(record.value == b"finished" for record in consumer.poll(0.2)):
                pass
            consumer.ack(RecordPosition(topic, 0, 2))
            while any(consumer.lag().values()):
                consumer.poll(0.2)
            consumer.commit()
        # The marks of transactions are behind the commit too, or a group would lag for ever.
        assert bus.admin().group_offsets(topic) == bus.admin().end_offsets([topic])
        dead._sender.force_close()
        dead.close(timeout=1)


MEMBER = """
import sys
from distrl.connectors import open_bus
from distrl.core.config import BusConfig
from distrl.core.contracts.clock import SystemClock

bus = open_bus(BusConfig.model_validate_json(sys.argv[1]), clock=SystemClock(), client_id="member")
consumer = bus.consumer([sys.argv[2]], group=sys.argv[2])
while True:
    for record in consumer.poll(0.2):
        consumer.ack(record)
        print(record.value.decode(), flush=True)
    consumer.commit()
"""


def test_a_killed_member_is_taken_over_under_traffic(broker: KafkaServer) -> None:
    with opened(broker) as bus:
        topic = made(bus, partitions=2)
        config = BusConfig(kind="kafka", bootstrap=(broker.bootstrap,), session_seconds=3.0)
        packages = str(Path(distrl.__file__).parents[1])
        with (
            subprocess.Popen(
                [sys.executable, "-c", MEMBER, config.model_dump_json(), topic],
                stdout=subprocess.PIPE,
                text=True,
                env={"PYTHONPATH": packages},
            ) as member,
            bus.consumer([topic], group=topic) as consumer,
            bus.producer() as producer,
        ):
            seen: Counter[str] = Counter()
            sent = 0

            def send_and_read() -> None:
                nonlocal sent
                producer.send(topic, b"%d" % sent, partition=sent % 2)
                sent += 1
                read()

            def read() -> None:
                for record in consumer.poll(0.05):
                    seen[(record.value or b"").decode()] += 1
                    consumer.ack(record)

            deadline = time.monotonic() + WAIT_S
            while len(consumer.assignment()) != 1 or sent < 40:
                assert time.monotonic() < deadline
                send_and_read()
            member.kill()
            assert member.stdout is not None
            theirs = set(member.stdout.read().split())
            while len(consumer.assignment()) != 2:
                assert time.monotonic() < deadline
                send_and_read()
            producer.flush(WAIT_S)
            while any(consumer.lag().values()):
                assert time.monotonic() < deadline
                read()
            assert set(seen) | theirs == {str(number) for number in range(sent)}


def test_a_long_handler_keeps_its_membership(broker: KafkaServer) -> None:
    """Signs of life go on while nobody polls: a handler longer than the session loses nothing."""
    with opened(broker, session_seconds=1.5) as bus:
        topic = made(bus)
        with bus.producer() as producer:
            for number in range(3):
                producer.send(topic, b"%d" % number).result(WAIT_S)
        moves: list[str] = []
        with bus.consumer(
            [topic],
            group=topic,
            on_assign=lambda _: moves.append("assign"),
            on_revoke=lambda _: moves.append("revoke"),
        ) as consumer:
            records = []
            while len(records) < 3:
                records += consumer.poll(0.2)
            time.sleep(4.0)
            for record in records:
                consumer.ack(record)
            consumer.commit()
            assert consumer.poll(0.5) == []
            assert moves == ["assign"]
        assert bus.admin().group_offsets(topic) == {TopicPartition(topic, 0): 3}


def test_callbacks_run_in_the_polling_thread_and_their_errors_come_out_of_poll(broker: KafkaServer) -> None:
    with opened(broker) as bus:
        topic = made(bus)
        threads: list[int] = []

        def on_assign(_: object) -> None:
            threads.append(threading.get_ident())
            raise ValueError("the handler's own")

        with bus.consumer([topic], group=topic, on_assign=on_assign) as consumer:

            def poll() -> None:
                while True:
                    consumer.poll(0.2)

            with pytest.raises(ValueError, match="the handler's own"):
                poll()
        assert threads == [threading.get_ident()]


def test_a_callback_may_ask_and_seek(broker: KafkaServer) -> None:
    with opened(broker) as bus:
        topic = made(bus)
        zero = TopicPartition(topic, 0)
        with bus.producer() as producer:
            for number in range(5):
                producer.send(topic, b"%d" % number).result(WAIT_S)
        asked: list[object] = []

        def on_assign(partitions: object) -> None:
            asked.extend([consumer.committed(zero), consumer.end_offsets(), consumer.beginning_offsets()])
            consumer.seek(zero, 3)
            asked.append(consumer.position(zero))

        consumer = bus.consumer([topic], group=topic, on_assign=on_assign, start=Start.latest())
        with consumer:
            values: list[bytes | None] = []
            while len(values) < 2:
                values += [record.value for record in consumer.poll(0.2)]
        assert values == [b"3", b"4"]
        assert asked == [5, {zero: 5}, {zero: 0}, 3]


@pytest.mark.parametrize("compression", ["auto", "zstd"])
def test_many_small_records_fit_a_topic_of_small_batches(broker: KafkaServer, compression: str) -> None:
    """The client's batches are larger than the topic allows, and do not get smaller by compressing; it has to split them."""
    noise = random.Random(3)
    with opened(broker, compression=compression) as bus:
        topic = made(bus, max_record_bytes=65_536)
        sent = [b"%04d" % number + noise.randbytes(1000) for number in range(500)]
        with bus.producer() as producer:
            futures = [producer.send(topic, value, key=b"k") for value in sent]
            offsets = [future.result(WAIT_S).offset for future in futures]
        values = read_to_end(bus, topic)
        assert first_seen(values) == sent
        assert [values[offset] for offset in offsets] == sent


class BreakingClock(SystemClock):
    """Raises, once it is told to, wherever the keeper of a producer asks for the time."""

    broken = False

    def monotonic(self) -> float:
        if self.broken and threading.current_thread().name == "kafka-producer-keeper":
            raise RuntimeError("broken on purpose")
        return super().monotonic()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_producer_whose_keeper_breaks_tells_its_senders_and_leaves_nothing(broker: KafkaServer) -> None:
    clock = BreakingClock()
    config = BusConfig(kind="kafka", bootstrap=(broker.bootstrap,), delivery_seconds=30.0)
    with open_bus(config, clock=clock, client_id="breaking") as bus:
        topic = made(bus)
        producer = bus.producer()
        producer.send(topic, b"0").result(WAIT_S)
        broker.pause()
        future = producer.send(topic, b"1")
        clock.broken = True
        assert isinstance(future.exception(WAIT_S), BusError)
        with pytest.raises(BusError):
            producer.send(topic, b"2")
        deadline = time.monotonic() + WAIT_S
        while any(thread.name == "breaking-network-thread" for thread in threading.enumerate()):
            assert time.monotonic() < deadline
            time.sleep(0.1)


@pytest.mark.parametrize("fenced", [False, True], ids=["plain", "fenced"])
def test_a_refused_record_fails_alone(broker: KafkaServer, fenced: bool) -> None:
    """A compacted topic takes no record without a key, which only the broker knows; it refuses the whole batch."""
    with opened(broker) as bus:
        topic = made(bus, cleanup="compact")
        with bus.producer(fence=topic if fenced else None) as producer:
            producer.send(topic, b"first", key=b"first").result(WAIT_S)
            futures = {}
            for number in range(12):
                key = None if number in (4, 9) else b"%d" % number
                futures[number] = producer.send(topic, b"%d" % number, key=key)
            refused = [number for number, future in futures.items() if future.exception(WAIT_S) is not None]
            assert refused == [4, 9]
            for number in refused:
                error = futures[number].exception()
                assert isinstance(error, BusError)
                assert not error.retriable
            producer.send(topic, b"last", key=b"last").result(WAIT_S)
        expected = [b"first", *(b"%d" % number for number in range(12) if number not in (4, 9)), b"last"]
        assert first_seen(read_to_end(bus, topic)) == expected


def test_a_missing_broker_is_said_at_once(free_port: int) -> None:
    config = BusConfig(kind="kafka", bootstrap=(f"127.0.0.1:{free_port}",))
    with open_bus(config, clock=SystemClock(), client_id="faults") as bus:
        calls = [
            lambda: bus.ping(5.0),
            lambda: bus.producer(fence="f"),
            lambda: bus.consumer(["topic"]),
            lambda: bus.admin().topics(),
            lambda: bus.producer().send("topic", b"v"),
        ]
        for call in calls:
            with pytest.raises(BusUnavailableError, match=rf"127\.0\.0\.1:{free_port}.*bus\.bootstrap"):
                call()


def test_a_broker_that_accepts_and_never_answers_is_unavailable(broker: KafkaServer) -> None:
    broker.pause()
    with opened(broker) as bus, pytest.raises(BusUnavailableError):
        bus.ping(2.0)


def test_a_malformed_address_is_a_configuration_error() -> None:
    bus = open_bus(BusConfig(kind="kafka", bootstrap=("localhost",)), clock=SystemClock(), client_id="faults")
    with bus, pytest.raises(ConfigError, match=r"localhost.*host:port"):
        bus.ping(1.0)


def test_wrong_security_settings_end_with_a_clear_error(broker: KafkaServer) -> None:
    settings = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", "username": "u", "password": "hidden"}
    with opened(broker, **settings) as bus, pytest.raises(BusError) as caught:
        bus.ping(5.0)
    assert "bus.s" in str(caught.value)
    assert "hidden" not in str(caught.value)


@pytest.fixture
def free_port() -> int:
    from server import free_port

    return free_port()
