"""The embedded log keeps the bus contract, and what it alone promises: see the classes below."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import structlog
from bus_suite import BusContract, Stall, collect, poll_until, send_all
from group_suite import GroupContract

import distrl
from distrl.connectors.embedded import EmbeddedBus
from distrl.connectors.embedded.database import CHECKPOINT_BYTES
from distrl.connectors.embedded.partition import Partition
from distrl.core.config import BusConfig
from distrl.core.contracts.bus import Record, TopicPartition, TopicSpec
from distrl.core.contracts.clock import SystemClock
from distrl.core.errors import BusError, BusUnavailableError, StoreFullError, UnknownTopicError


class TestEmbeddedBus(GroupContract, BusContract):
    """The contract."""

    @pytest.fixture
    def bus_config(self, tmp_path: Path) -> BusConfig:
        return BusConfig(kind="embedded", path=tmp_path / "log", session_seconds=3.0)

    @pytest.fixture
    def missing_config(self, tmp_path: Path) -> BusConfig:
        (tmp_path / "file").write_text("in the way of a folder")
        return BusConfig(kind="embedded", path=tmp_path / "file" / "log")

    @pytest.fixture
    def stall(self, bus_config: BusConfig) -> Stall:
        """Another process that keeps every partition's write lock."""

        @contextlib.contextmanager
        def stalled() -> Iterator[None]:
            with contextlib.ExitStack() as stack:
                for path in bus_config.path.glob("topics/*/*.db"):
                    connection = stack.enter_context(contextlib.closing(sqlite3.connect(path, isolation_level=None)))
                    connection.execute("BEGIN IMMEDIATE")
                yield

        return stalled


def test_what_was_read_before_a_partition_failed_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with EmbeddedBus(tmp_path / "log") as bus:
        bus.admin().create([TopicSpec("t", partitions=2)])
        with bus.producer() as producer:
            for partition in (0, 1):
                producer.send("t", b"value", partition=partition).result(timeout=10)
        read = Partition.read
        monkeypatch.setattr(
            Partition, "read", lambda self, *bounds: fails() if self.name.partition == 1 else read(self, *bounds)
        )

        def fails() -> Any:
            raise BusUnavailableError("the disk")

        with bus.consumer(["t"]) as consumer:
            got: list[Record] = []
            errors = 0
            for _ in range(6):
                try:
                    got += consumer.poll(0.0)
                except BusUnavailableError:
                    errors += 1
            assert [record.partition for record in got] == [0]
            assert errors >= 2
            monkeypatch.undo()
            assert [record.partition for record in collect(consumer, 1)] == [1]


class SteppedClock:
    """The machine's clock, plus what a test adds; sleeping can be made to advance it in place of waiting."""

    def __init__(self, *, frozen: bool = False) -> None:
        self._system = SystemClock()
        self._frozen = frozen
        self._start = self._system.monotonic()
        self.ahead_s = 0.0
        self.sleeps: list[float] = []

    def time_ms(self) -> int:
        return self._system.time_ms() + round(1000 * self.ahead_s)

    def monotonic(self) -> float:
        return (self._start if self._frozen else self._system.monotonic()) + self.ahead_s

    def sleep(self, seconds: float) -> None:
        if self._frozen:
            self.sleeps.append(seconds)
            self.ahead_s += seconds
        else:
            self._system.sleep(seconds)

    def wait(self, event: threading.Event, seconds: float) -> bool:
        return self._system.wait(event, seconds)


@pytest.fixture
def clock() -> SteppedClock:
    return SteppedClock()


@pytest.fixture
def bus(tmp_path: Path, clock: SteppedClock) -> Iterator[EmbeddedBus]:
    with EmbeddedBus(tmp_path / "log", session_s=3.0, clock=clock) as bus:
        yield bus


def values(bus: EmbeddedBus, topic: str) -> list[tuple[int, bytes | None, bytes | None]]:
    """All that a topic of one partition holds: offset, key, value."""
    with bus.consumer([topic]) as consumer:
        records: list[Record] = []
        while any(consumer.lag().values()):
            records += consumer.poll(0.0)
    return [(record.offset, record.key, record.value) for record in records]


class TestRetention:
    """Writers let go of what a topic no longer keeps."""

    def test_by_time(self, bus: EmbeddedBus, clock: SteppedClock) -> None:
        bus.admin().create([TopicSpec("t", retention_ms=60_000)])
        with bus.producer() as producer:
            send_all(producer, "t", [b"old"] * 5000)
            clock.ahead_s += 61.0
            send_all(producer, "t", [b"new"])
            send_all(producer, "t", [b"newer"])
            assert values(bus, "t") == [(5000, None, b"new"), (5001, None, b"newer")]
            clock.ahead_s += 61.0
            send_all(producer, "t", [b"newest"])
            assert values(bus, "t") == [(5002, None, b"newest")]

    def test_by_size(self, bus: EmbeddedBus, clock: SteppedClock) -> None:
        bus.admin().create([TopicSpec("t", retention_bytes=1000)])
        with bus.producer() as producer:
            for _ in range(30):
                clock.ahead_s += 11.0
                send_all(producer, "t", [bytes(100)] * 3)
        assert [offset for offset, _, _ in values(bus, "t")] == list(range(80, 90))

    def test_offsets_go_on_when_nothing_is_left(self, bus: EmbeddedBus) -> None:
        bus.admin().create([TopicSpec("t")])
        partition = TopicPartition("t", 0)
        with bus.producer() as producer, bus.consumer(["t"]) as consumer:
            send_all(producer, "t", [b"v"] * 7)
            bus.admin().delete_records({partition: 7})
            assert consumer.beginning_offsets() == consumer.end_offsets() == {partition: 7}
            assert consumer.poll(0.0) == []
            assert consumer.position(partition) == 7
            assert consumer.lag() == {partition: 0}
            assert send_all(producer, "t", [b"w"])[0].offset == 7
            assert [record.offset for record in consumer.poll(5.0)] == [7]

    def test_a_group_behind_the_first_record_goes_on_there(self, bus: EmbeddedBus) -> None:
        bus.admin().create([TopicSpec("t")])
        with bus.producer() as producer:
            send_all(producer, "t", [b"%d" % index for index in range(6)])
            with bus.consumer(["t"], group="g") as consumer:
                for record in collect(consumer, 6, ack=False)[:2]:
                    consumer.ack(record)
            bus.admin().delete_records({TopicPartition("t", 0): 4})
            with bus.consumer(["t"], group="g") as consumer:
                assert [record.offset for record in collect(consumer, 2)] == [4, 5]

    def test_compaction(self, bus: EmbeddedBus, clock: SteppedClock) -> None:
        bus.admin().create([TopicSpec("t", cleanup="compact")])
        day_s = 24 * 3600.0
        with bus.producer() as producer:
            for number in range(20):
                for key in (b"a", b"b", b"c"):
                    producer.send("t", b"%d" % number, key=key)
            producer.send("t", None, key=b"a")
            producer.send("t", b"keyless")
            producer.flush(10.0)
            clock.ahead_s += 11.0
            send_all(producer, "t", [b"x"], key=b"d")
            kept = values(bus, "t")
            assert kept == [
                (58, b"b", b"19"),
                (59, b"c", b"19"),
                (60, b"a", None),  # so that a reader who was away learns that the key is gone
                (61, None, b"keyless"),
                (62, b"d", b"x"),
            ]
            clock.ahead_s += day_s + 11.0
            for number in range(3):
                clock.ahead_s += 11.0
                send_all(producer, "t", [b"%d" % number], key=b"d")
            assert {key: value for _, key, value in values(bus, "t")} == {
                b"b": b"19",
                b"c": b"19",
                None: b"keyless",
                b"d": b"2",
            }

    def test_a_writer_keeps_to_settings_that_change(self, bus: EmbeddedBus, clock: SteppedClock) -> None:
        admin = bus.admin()
        admin.create([TopicSpec("t")])
        with bus.producer() as producer:

            def after(spec: TopicSpec) -> list[bytes | None]:
                """What is left when the settings changed and two more records came."""
                assert admin.alter([spec]) == ["t"]
                clock.ahead_s += 11.0
                for value in (b"x", b"y"):  # the writer looks after its file when it has written the first
                    send_all(producer, "t", [value], key=b"b")
                return [value for _, _, value in values(bus, "t")]

            send_all(producer, "t", [b"%d" % number for number in range(10)], key=b"a")
            assert after(TopicSpec("t", retention_bytes=8)) == [b"7", b"8", b"9", b"x", b"y"]
            assert after(TopicSpec("t", cleanup="compact")) == [b"9", b"x", b"y"]
            assert after(TopicSpec("t", cleanup="compact,delete", retention_ms=5_000)) == [b"x", b"y"]

    def test_a_reader_at_the_end_of_a_compacted_topic_has_no_lag(self, bus: EmbeddedBus, clock: SteppedClock) -> None:
        bus.admin().create([TopicSpec("t", cleanup="compact")])
        with bus.producer() as producer:
            long_ago = clock.time_ms() - 48 * 3_600_000
            producer.send("t", b"v", key=b"a").result(10.0)
            clock.ahead_s += 11.0
            producer.send("t", None, key=b"a", timestamp_ms=long_ago).result(10.0)
            producer.flush(10.0)
        with bus.consumer(["t"]) as consumer:
            consumer.poll(0.0)
            assert consumer.position(TopicPartition("t", 0)) == 2
            assert consumer.lag() == {TopicPartition("t", 0): 0}

    def test_the_write_ahead_log_stays_bounded(self, bus: EmbeddedBus, tmp_path: Path) -> None:
        bus.admin().create([TopicSpec("t")])
        sizes: list[int] = []
        with bus.producer() as producer, bus.consumer(["t"]) as consumer:
            for _ in range(20):
                send_all(producer, "t", [bytes(500_000)] * 10)
                assert len(collect(consumer, 10)) == 10
                sizes += [path.stat().st_size for path in (tmp_path / "log" / "topics").glob("*/*-wal")]
        assert max(sizes) < 2 * CHECKPOINT_BYTES


class TestTopics:
    """Topics that go while they are used."""

    def test_deleted_under_its_users(self, bus: EmbeddedBus, tmp_path: Path) -> None:
        admin = bus.admin()
        admin.create([TopicSpec("t", partitions=2)])
        with bus.producer() as producer, bus.consumer(["t"], group="g") as consumer:
            send_all(producer, "t", [b"v"] * 4)
            collect(consumer, 4)
            consumer.commit()
            admin.delete(["t"])
            assert list((tmp_path / "log" / "topics").iterdir()) == []
            with pytest.raises(UnknownTopicError):
                producer.send("t", b"v", partition=0).result(10.0)
            with pytest.raises(UnknownTopicError):
                producer.send("t", b"v", partition=1).result(10.0)
            with pytest.raises(UnknownTopicError):
                consumer.poll(0.0)
            assert admin.group_offsets("g") == {}
            admin.create([TopicSpec("t")])
            assert send_all(producer, "t", [b"again"])[0].offset == 0
        assert values(bus, "t") == [(0, None, b"again")]

    def test_names_that_differ_in_case_are_two(self, bus: EmbeddedBus, tmp_path: Path) -> None:
        bus.admin().create([TopicSpec("T"), TopicSpec("t"), TopicSpec("x" * 249)])
        with bus.producer() as producer:
            for topic in ("T", "t"):
                send_all(producer, topic, [topic.encode()])
        assert values(bus, "T") == [(0, None, b"T")]
        assert values(bus, "t") == [(0, None, b"t")]
        assert len({path.parent.name.lower() for path in (tmp_path / "log" / "topics").glob("*/*.db")}) == 3


class TestGroups:
    """Members that hang, and where their successors go on."""

    def test_static_member_that_does_not_return_is_replaced_at_last(self, bus: EmbeddedBus, tmp_path: Path) -> None:
        bus.admin().create([TopicSpec("t", partitions=2)])
        with EmbeddedBus(tmp_path / "log", session_s=3.0) as other_bus:
            first = bus.consumer(["t"], group="g", member="a")
            second = other_bus.consumer(["t"], group="g", member="b")
            poll_until([first, second], lambda: len(first.assignment()) == len(second.assignment()) == 1)
            first.close()
            poll_until([second], lambda: len(second.assignment()) == 2)
            first = bus.consumer(["t"], group="g", member="a")
            poll_until([first, second], lambda: len(first.assignment()) == len(second.assignment()) == 1)

    def test_idle_consumer_sleeps(self, tmp_path: Path) -> None:
        clock = SteppedClock(frozen=True)
        with EmbeddedBus(tmp_path / "log", clock=clock) as bus:
            bus.admin().create([TopicSpec("t", partitions=8)])
            with bus.consumer(["t"], group="g") as consumer:
                assert consumer.poll(10.0) == []
        assert sum(clock.sleeps) == pytest.approx(10.0)
        assert len(clock.sleeps) < 520


class TestDamage:
    """Files that are damaged, disks that are full."""

    def test_damaged_partition_is_named(self, bus: EmbeddedBus, tmp_path: Path) -> None:
        bus.admin().create([TopicSpec("bad"), TopicSpec("good")])
        (path,) = (tmp_path / "log" / "topics").glob("*-bad/0000.db")
        path.write_bytes(b"this is no database, and longer than the header of one" * 100)
        with bus.producer() as producer:
            error = producer.send("bad", b"v").exception(10.0)
            assert isinstance(error, BusError)
            assert str(path) in str(error)
            assert not error.retriable
            send_all(producer, "good", [b"v"])
        with pytest.raises(BusError, match=re.escape(str(path))):
            bus.consumer(["bad"])
        bus.admin().delete(["bad"])
        assert list(bus.admin().topics()) == ["good"]

    @pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="looks at Linux' list of open files")
    def test_a_reader_that_cannot_be_opened_leaves_no_file_open(self, bus: EmbeddedBus, tmp_path: Path) -> None:
        bus.admin().create([TopicSpec("good", partitions=3), TopicSpec("worse")])
        (path,) = (tmp_path / "log" / "topics").glob("*-worse/0000.db")
        path.write_bytes(b"this is no database, and longer than the header of one" * 100)
        with pytest.raises(BusError) as caught:
            bus.consumer(["good", "worse"])
        opened = [os.path.realpath(link) for link in Path("/proc/self/fd").iterdir()]
        assert [name for name in opened if name.startswith(str(tmp_path / "log" / "topics"))] == []
        assert str(path) in str(caught.value)  # it is alive until here, and so is what it came from

    def test_damaged_catalogue_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "log").mkdir()
        (tmp_path / "log" / "catalogue.db").write_bytes(b"no catalogue either" * 100)
        with EmbeddedBus(tmp_path / "log") as bus, pytest.raises(BusError, match=r"catalogue\.db is damaged"):
            bus.ping(1.0)

    def test_full_disk_fails_the_record_and_no_other(self, bus: EmbeddedBus, monkeypatch: pytest.MonkeyPatch) -> None:
        bus.admin().create([TopicSpec("t", max_record_bytes=2_000_000)])
        connect = sqlite3.connect

        def connect_small(*arguments: Any, **settings: Any) -> sqlite3.Connection:
            connection: sqlite3.Connection = connect(*arguments, **settings)
            connection.execute("PRAGMA max_page_count = 60")  # SQLite then says what it says on a full disk
            return connection

        monkeypatch.setattr(sqlite3, "connect", connect_small)
        with bus.producer() as producer:
            send_all(producer, "t", [b"fits"])
            error = producer.send("t", bytes(1_000_000)).exception(10.0)
            assert isinstance(error, StoreFullError)
            assert error.retriable
            send_all(producer, "t", [b"fits, too"])
        monkeypatch.undo()
        with bus.producer() as producer:
            send_all(producer, "t", [bytes(1_000_000)])
        assert [offset for offset, _, _ in values(bus, "t")] == [0, 1, 2]


WRITER = """
import sys
from pathlib import Path
from distrl.connectors.embedded import EmbeddedBus

folder, name, count = sys.argv[1:]
with EmbeddedBus(Path(folder), in_flight_records=50) as bus, bus.producer() as producer:
    def say(number, future):
        position = future.result()
        print(number, position.partition, position.offset, flush=True)
    for number in range(int(count)):
        value = f"{name}-{number}".encode()
        future = producer.send("t", value, key=name.encode())
        future.add_done_callback(lambda future, number=number: say(number, future))
    producer.flush(60.0)
"""


class TestProcesses:
    """Several processes write one log; some are killed."""

    def start(self, stack: contextlib.ExitStack, folder: Path, name: str, count: int) -> subprocess.Popen[str]:
        packages = str(Path(distrl.__file__).parents[1])
        process = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-c", WRITER, str(folder), name, str(count)],
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": packages},
            )
        )
        stack.callback(process.kill)
        return process

    def test_what_was_acknowledged_survives_a_kill(self, tmp_path: Path) -> None:
        folder = tmp_path / "log"
        with EmbeddedBus(folder) as bus:
            bus.admin().create([TopicSpec("t", partitions=2)])
            acknowledged: dict[str, set[tuple[int, int, bytes]]] = {}
            with contextlib.ExitStack() as stack:
                killed = {name: self.start(stack, folder, name, 1_000_000) for name in ("killed-0", "killed-1")}
                whole = self.start(stack, folder, "whole", 2000)
                for name, process in killed.items():
                    assert process.stdout is not None
                    lines = [process.stdout.readline() for _ in range(300)]
                    process.send_signal(signal.SIGKILL)
                    lines += process.stdout.readlines()
                    acknowledged[name] = {
                        (int(partition), int(offset), f"{name}-{number}".encode())
                        for number, partition, offset in (line.split() for line in lines if line.endswith("\n"))
                    }
                output, _ = whole.communicate(timeout=60.0)
                assert whole.returncode == 0
                assert len(output.splitlines()) == 2000
            records: list[Record] = []
            with bus.consumer(["t"]) as consumer:
                while any(consumer.lag().values()):
                    records += consumer.poll(0.0, 5000)
            read = {(record.partition, record.offset, record.value) for record in records}
            for name, expected in acknowledged.items():
                assert len(expected) >= 300
                assert expected <= read, name
            for partition in range(2):
                offsets = [record.offset for record in records if record.partition == partition]
                assert offsets == list(range(len(offsets)))
            for name in ("whole", *acknowledged):
                numbers = [int((r.value or b"").rpartition(b"-")[2]) for r in records if r.key == name.encode()]
                assert numbers == list(range(len(numbers)))
                assert len(numbers) >= len(acknowledged.get(name, ()))
            # Whoever was killed in the middle of a transaction left nothing that holds up the next writer.
            with bus.producer() as producer:
                for partition in range(2):
                    send_all(producer, "t", [b"after"], partition=partition)
        for path in folder.rglob("*.db"):
            with contextlib.closing(sqlite3.connect(path)) as connection:
                assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]

    def test_many_open_a_new_log_at_once(self, tmp_path: Path) -> None:
        def open_and_create(index: int) -> list[str]:
            with EmbeddedBus(tmp_path / "log") as bus:
                made = bus.admin().create([TopicSpec("t", partitions=3)])
                with bus.producer() as producer:
                    send_all(producer, "t", [b"%d" % index])
                return made

        with ThreadPoolExecutor(8) as pool:
            made = list(pool.map(open_and_create, range(16)))
        assert [name for names in made for name in names] == ["t"]
        with EmbeddedBus(tmp_path / "log") as bus, bus.consumer(["t"]) as consumer:
            assert {record.value for record in collect(consumer, 16)} == {b"%d" % index for index in range(16)}
        assert list((tmp_path / "log").rglob("*.new*")) == []


class SetClock(SystemClock):
    """The machine's clocks; a test sets the wall clock forward or back."""

    def __init__(self) -> None:
        self.set_forward_s = 0.0

    def time_ms(self) -> int:
        return super().time_ms() + round(self.set_forward_s * 1000)


@pytest.mark.parametrize("jump_s", [7 * 3600.0, -7 * 3600.0])
def test_a_wall_clock_that_is_set_expels_nobody(tmp_path: Path, jump_s: float) -> None:
    clock = SetClock()
    with (
        structlog.testing.capture_logs() as lines,
        EmbeddedBus(tmp_path / "log", session_s=30.0, clock=clock) as bus,
    ):
        bus.admin().create([TopicSpec("t", partitions=4)])
        with bus.consumer(["t"], group="g", member="one") as one:
            poll_until([one], lambda: len(one.assignment()) == 4)
            clock.set_forward_s = jump_s
            with bus.consumer(["t"], group="g", member="two"):  # who joins looks for members whose session ran out
                assert len(one.assignment()) == 4
        assert bus.admin().groups("g") == ["g"]
    assert [line["event"] for line in lines if line["log_level"] == "warning"] == []
