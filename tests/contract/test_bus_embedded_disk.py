"""What the embedded log takes on disk stays bounded: retention gives space back, write-ahead logs are cut."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from distrl.connectors.embedded import EmbeddedBus, database
from distrl.connectors.embedded.partition import Entry, Partition
from distrl.core.contracts.bus import TopicPartition, TopicSpec

NAME = TopicPartition("t", 0)


@pytest.fixture
def partition(tmp_path: Path) -> Iterator[Partition]:
    Partition.create(tmp_path / "p.db", compact=False)
    partition = Partition(NAME, tmp_path / "p.db", synchronous="NORMAL", wait_s=5.0)
    yield partition
    partition.close()


def taken(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def append(partition: Partition, count: int, *, size: int = 100_000, time_ms: int = 0) -> None:
    partition.append([Entry(time_ms, b"k", None, os.urandom(size)) for _ in range(count)])


@pytest.mark.parametrize("spec", [TopicSpec("t", retention_ms=1000), TopicSpec("t", retention_bytes=600_000)])
def test_retention_gives_the_disk_back(partition: Partition, tmp_path: Path, spec: TopicSpec) -> None:
    for _ in range(8):
        append(partition, 100)
    full = taken(tmp_path)
    assert full > 80_000_000
    append(partition, 5, time_ms=10_000)
    for _ in range(40):  # some at a time, so that nobody waits for it
        partition.tend(spec, now_ms=10_500)
    assert taken(tmp_path) < database.SURPLUS_BYTES + database.CHECKPOINT_BYTES + 2_000_000
    records, end = partition.read(0, 1000, 100_000_000)
    assert [record.offset for record in records] == list(range(800, 805))
    assert end == 805


def test_a_file_in_use_stays_as_large_as_what_it_holds_at_most(partition: Partition, tmp_path: Path) -> None:
    spec = TopicSpec("t", retention_bytes=2_000_000)
    sizes = []
    for _ in range(60):
        append(partition, 20)
        partition.tend(spec, now_ms=0)
        sizes.append(taken(tmp_path))
    assert max(sizes) < database.SURPLUS_BYTES + database.CHECKPOINT_BYTES + 8_000_000
    assert max(sizes[30:]) <= 1.2 * max(sizes[:30])


def test_a_compacted_topic_stays_as_large_as_its_keys(tmp_path: Path) -> None:
    Partition.create(tmp_path / "p.db", compact=True)
    partition = Partition(NAME, tmp_path / "p.db", synchronous="NORMAL", wait_s=5.0)
    for _ in range(60):
        partition.append([Entry(0, b"%d" % number, None, bytes(50_000)) for number in range(20)])
        partition.tend(TopicSpec("t", cleanup="compact"), now_ms=0)
    assert len(partition.read(0, 1000, 100_000_000)[0]) == 20
    partition.close()
    assert taken(tmp_path) < 10_000_000


def test_readers_and_writers_go_on_while_space_is_given_back(tmp_path: Path) -> None:
    path = tmp_path / "p.db"
    Partition.create(path, compact=False)
    stop = threading.Event()
    seen: list[int] = []
    failures: list[BaseException] = []

    def read() -> None:
        partition = Partition(NAME, path, synchronous="NORMAL", wait_s=10.0)
        position = 0
        try:
            while not stop.is_set() or position < partition.end():
                records, end = partition.read(max(position, partition.begin()), 100, 10_000_000)
                seen.extend(record.offset for record in records)
                position = records[-1].offset + 1 if records else end or position
        except BaseException as error:
            failures.append(error)
        finally:
            partition.close()

    def tend() -> None:
        partition = Partition(NAME, path, synchronous="NORMAL", wait_s=10.0)
        try:
            while not stop.is_set():
                partition.tend(TopicSpec("t", retention_bytes=5_000_000), now_ms=0)
                time.sleep(0.05)
        except BaseException as error:
            failures.append(error)
        finally:
            partition.close()

    threads = [threading.Thread(target=target) for target in (read, read, tend)]
    writer = Partition(NAME, path, synchronous="NORMAL", wait_s=10.0)
    append(writer, 400)  # what retention starts with
    for thread in threads:
        thread.start()
    for _ in range(100):
        append(writer, 5)
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert max(seen) == writer.end() - 1 == 899
    writer.close()


def test_the_catalogue_s_write_ahead_log_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "CHECKPOINT_BYTES", 200_000)
    wal = tmp_path / "catalogue.db-wal"
    with EmbeddedBus(tmp_path, session_s=1.0) as bus:
        bus.admin().create([TopicSpec("t")])
        with bus.producer() as producer, bus.consumer(["t"], group="g") as consumer:
            largest = 0
            while largest < 400_000 or wal.stat().st_size > 200_000:  # the test's own time limit bounds it
                producer.send("t", b"x").result(10.0)
                for record in consumer.poll(1.0):
                    consumer.ack(record)
                consumer.commit()
                largest = max(largest, wal.stat().st_size)
            for _ in range(3):
                consumer.commit()
        assert bus.admin().group_offsets("g")[NAME] > 0
