"""Every place that writes, on a disk that is really full: it says so, keeps what it had, and goes on when there is space again."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from distrl.connectors.embedded import EmbeddedBus
from distrl.connectors.folder import FolderStore
from distrl.core.codec import Codec
from distrl.core.config import parse_config
from distrl.core.contracts.bus import TopicPartition, TopicSpec
from distrl.core.contracts.clock import SystemClock
from distrl.core.contracts.events import Trajectory
from distrl.core.errors import StoreFullError
from distrl.core.runtime.activity import Activity
from distrl.core.runtime.checkpoint import Checkpoints, Covered
from distrl.core.runtime.collector import CollectorLoop
from distrl.core.runtime.outbox import Outbox
from distrl.testing import make_trajectory

MIB = 1 << 20
COVERED = Covered(1, 1, 1, {TopicPartition("t", 0): 1}, {})


class Disk:
    """A small disk of its own that a test fills and frees."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._filler = path / "filler"

    def fill(self, *, leave: int = 0) -> None:
        """Take all space but about so many bytes."""
        with suppress(OSError), self._filler.open("wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
        if leave:
            with self._filler.open("r+b") as file:
                file.truncate(self._filler.stat().st_size - leave)

    def free(self) -> None:
        self._filler.unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    path = tmp_path / "disk"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(path)], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"this user may not mount a small disk: {mounted.stderr.strip()}")
    try:
        yield Disk(path)
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def test_the_embedded_log(disk: Disk) -> None:
    with EmbeddedBus(disk.path / "log", delivery_s=1.0) as bus:
        bus.admin().create([TopicSpec("t", max_record_bytes=2 * MIB)])
        with bus.producer() as producer, bus.consumer(["t"], group="g") as consumer:
            producer.send("t", b"before").result(10.0)
            [record] = read(consumer, 1)
            disk.fill()
            failure = producer.send("t", bytes(MIB)).exception(30.0)
            assert isinstance(failure, StoreFullError)
            assert (failure.retriable, failure.exit_code) == (True, 3)
            consumer.ack(record)
            with suppress(StoreFullError):  # a commit may still fit into what is there
                consumer.commit()
            disk.free()
            producer.send("t", b"after").result(10.0)
            [later] = read(consumer, 1)
            assert (later.value, later.offset) == (b"after", record.offset + 1)
            consumer.ack(later)
            consumer.commit()
            assert consumer.committed(TopicPartition("t", 0)) == later.offset + 1
    with EmbeddedBus(disk.path / "log") as bus, bus.consumer(["t"]) as consumer:
        assert [record.value for record in read(consumer, 2)] == [b"before", b"after"]


def test_a_log_that_is_opened(disk: Disk) -> None:
    with EmbeddedBus(disk.path / "log") as bus:
        bus.admin().create([TopicSpec("t")])
    disk.fill()
    with EmbeddedBus(disk.path / "log") as bus, pytest.raises(StoreFullError):
        bus.admin().create([TopicSpec(f"t{number}") for number in range(50)])
    disk.free()
    with EmbeddedBus(disk.path / "log") as bus:
        assert list(bus.admin().topics()) == ["t"]
        assert bus.admin().create([TopicSpec("u")]) == ["u"]


def test_the_outbox(disk: Disk) -> None:
    with closing(Outbox(disk.path / "outbox.sqlite")) as outbox:
        outbox.put([("a", b"1")])
        disk.fill()
        with pytest.raises(StoreFullError):
            outbox.put([("b", bytes(MIB)), ("c", bytes(MIB))])
        assert [entry.trajectory_id for entry in outbox.entries()] == ["a"]
        disk.free()
        outbox.put([("b", bytes(MIB)), ("c", bytes(MIB))])
        outbox.remove(["a"])
    with closing(Outbox(disk.path / "outbox.sqlite")) as outbox:
        assert [entry.trajectory_id for entry in outbox.entries()] == ["b", "c"]


def test_a_full_disk_does_not_keep_an_outbox_from_getting_empty(disk: Disk) -> None:
    with closing(Outbox(disk.path / "outbox.sqlite")) as outbox:
        outbox.put([(str(number), bytes(MIB)) for number in range(2)])
        disk.fill(leave=200_000)
        outbox.remove(["0", "1"])
        assert len(outbox) == 0


@pytest.mark.parametrize("where", ["work", "store"])
def test_a_checkpoint(disk: Disk, tmp_path: Path, where: str) -> None:
    store = FolderStore(disk.path / "store" if where == "store" else tmp_path / "store")
    work = disk.path / "work" if where == "work" else tmp_path / "work"
    checkpoints = Checkpoints(store, "run", kept=2)

    size = MIB

    def write(folder: Path) -> None:
        (folder / "a.safetensors").write_bytes(bytes(size))
        (folder / "b.json").write_bytes(b"{}")

    first = checkpoints.save(COVERED, write, work)
    size = 2 * MIB
    disk.fill(leave=100_000)
    with pytest.raises(StoreFullError):
        checkpoints.save(COVERED, write, work)
    newest = checkpoints.newest()
    assert newest is not None
    assert newest.number == first
    disk.free()
    second = checkpoints.save(COVERED, write, work)
    newest = checkpoints.newest(tmp_path / "back")
    assert newest is not None
    assert newest.number == second
    assert (tmp_path / "back" / "a.safetensors").read_bytes() == bytes(size)


def test_a_plugin_s_library_that_says_it_in_its_own_way(disk: Disk) -> None:
    checkpoints = Checkpoints(FolderStore(disk.path / "store"), "run", kept=2)

    def write(folder: Path) -> None:
        try:
            (folder / "state").write_bytes(bytes(MIB))
        except OSError:
            raise ValueError("some library's own words") from None

    disk.fill()
    (disk.path / "filler").rename(disk.path / "other")
    with pytest.raises(StoreFullError, match="make space"):
        checkpoints.save(COVERED, write, disk.path / "work")


def test_a_collector_waits_for_space_with_what_it_has_finished(disk: Disk) -> None:
    """The loop keeps an episode that has ended while the disk is full, once there is space again."""
    events = [make_trajectory(f"t-{number}") for number in range(30)]
    told: list[str] = []
    clock = SystemClock()
    with closing(Outbox(disk.path / "outbox.sqlite")) as outbox:
        loop = CollectorLoop.__new__(CollectorLoop)
        parts: dict[str, Any] = {
            "_outbox": outbox,
            "_numbers": {},
            "_begun": {},
            "_unobserved": {},
            "_open_demonstrations": [],
            "_started": 0,
            "_config": parse_config({}).collector,
            "_collector": SimpleNamespace(confirm=lambda item: told.append(item.trajectory_id)),
            "_pool": SimpleNamespace(release=lambda episode: None),
            "_sender": SimpleNamespace(notify=lambda: None),
            "_node": SimpleNamespace(
                writer=SimpleNamespace(frame=Codec().encode),
                config=parse_config({}),
                incarnation="i",
                stop=threading.Event(),
                clock=clock,
                activity=Activity(clock),
                view=SimpleNamespace(outbox_since_ms=0),
            ),
        }
        for name, part in parts.items():
            setattr(loop, name, part)
        disk.fill()
        kept: Future[None] = Future()
        waited = threading.Event()
        sleep = clock.sleep

        def sleep_and_tell(seconds: float) -> None:
            waited.set()
            sleep(min(seconds, 0.05))

        clock.sleep = sleep_and_tell  # type: ignore[method-assign]

        def keep() -> None:
            try:
                loop._keep(events)
                kept.set_result(None)
            except BaseException as error:
                kept.set_exception(error)

        thread = threading.Thread(target=keep)
        thread.start()
        assert waited.wait(30.0)
        assert (len(outbox), told) == (0, [])
        disk.free()
        kept.result(30.0)
        thread.join()
        assert [Codec().decode(entry.value, Trajectory).trajectory_id for entry in outbox.entries()] == told
        assert len(told) == 30


def read(consumer: Any, count: int) -> list[Any]:
    """The next ``count`` records."""
    found: list[Any] = []
    while len(found) < count:
        found += consumer.poll(1.0)
    return found
