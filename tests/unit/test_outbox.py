"""The collector's outbox keeps finished episodes over a crash and sends each until the log has it."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path

import pytest

from distrl.core.contracts.bus import RecordPosition
from distrl.core.contracts.clock import SystemClock
from distrl.core.errors import BusUnavailableError, RecordTooLargeError, StoreError, StoreFullError
from distrl.core.runtime.outbox import Outbox, OutboxSender, kept_episodes


@pytest.fixture
def outbox(tmp_path: Path) -> Iterator[Outbox]:
    box = Outbox(tmp_path / "outbox.sqlite")
    yield box
    box.close()


def test_entries_keep_their_order_and_state(outbox: Outbox) -> None:
    outbox.put([("a", b"1"), ("b", b"2")], done=[7])
    outbox.put([("a", b"other"), ("c", b"3")])
    assert [(entry.trajectory_id, entry.value) for entry in outbox.entries()] == [("a", b"1"), ("b", b"2"), ("c", b"3")]
    outbox.confirm(["b"])
    assert [entry.trajectory_id for entry in outbox.entries(confirmed=True)] == ["b"]
    assert [entry.trajectory_id for entry in outbox.entries(confirmed=False)] == ["a", "c"]
    outbox.remove(["a", "unknown"])
    assert len(outbox) == 2
    assert outbox.done() == {7}


def test_what_was_put_outlives_a_killed_process(tmp_path: Path) -> None:
    path = tmp_path / "outbox.sqlite"
    script = (
        "import sys, time, pathlib\n"
        "from distrl.core.runtime.outbox import Outbox\n"
        "box = Outbox(pathlib.Path(sys.argv[1]))\n"
        "for number in range(1000):\n"
        "    box.put([(str(number), b'x' * 500)])\n"
        "    print(number, flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    acknowledged = [int(process.stdout.readline()) for _ in range(25)]
    os.kill(process.pid, signal.SIGKILL)
    acknowledged += [int(line) for line in process.stdout.read().split()]
    process.wait()
    process.stdout.close()
    box = Outbox(path)
    kept = {entry.trajectory_id for entry in box.entries(limit=2000)}
    box.close()
    assert {str(number) for number in acknowledged} <= kept


def test_it_tells_when_its_first_episode_began(outbox: Outbox) -> None:
    assert outbox.oldest_ms() is None
    outbox.put([("a", b"1")], began_ms=2000)
    outbox.put([("b", b"2")], began_ms=1000)
    assert outbox.oldest_ms() == 1000
    outbox.remove(["b"])
    assert outbox.oldest_ms() == 2000


def test_another_process_reads_it_without_changing_it(tmp_path: Path, outbox: Outbox) -> None:
    outbox.put([("a", b"1"), ("b", b"2")])
    assert list(kept_episodes(tmp_path / "outbox.sqlite")) == [b"1", b"2"]
    (tmp_path / "damaged").write_bytes(b"x" * 5000)
    for path in (tmp_path / "damaged", tmp_path / "missing"):
        with pytest.raises(StoreError, match=path.name):
            list(kept_episodes(path))


def test_an_outbox_of_an_earlier_release_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "outbox.sqlite"
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(
            "CREATE TABLE episode (position INTEGER PRIMARY KEY, trajectory_id TEXT UNIQUE NOT NULL,"
            " value BLOB NOT NULL, confirmed INTEGER NOT NULL DEFAULT 0)"
        )
        db.execute("INSERT INTO episode (trajectory_id, value) VALUES ('a', x'31')")
    with closing(Outbox(path)) as outbox:
        outbox.put([("b", b"2")], began_ms=5)
        assert [entry.value for entry in outbox.entries()] == [b"1", b"2"]
        assert outbox.oldest_ms() == 0  # when the first began is not known


def test_the_disk_gets_back_what_an_outage_had_taken(tmp_path: Path, outbox: Outbox) -> None:
    for number in range(40):
        outbox.put([(str(number), bytes(500_000))])
    taken = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert taken > 20_000_000
    outbox.remove([str(number) for number in range(39)])
    assert len(outbox) == 1
    outbox.remove(["39"])
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 1_000_000


def test_a_file_that_is_no_outbox_is_named(tmp_path: Path) -> None:
    path = tmp_path / "outbox.sqlite"
    path.write_bytes(b"not a database, and long enough to be taken for one" * 100)
    with pytest.raises(StoreError, match=r"outbox\.sqlite"):
        Outbox(path)


def test_a_full_disk_has_its_own_error(tmp_path: Path) -> None:
    box = Outbox(tmp_path / "outbox.sqlite")
    # SQLite's own bound on the file's size answers SQLITE_FULL, as a full disk does.
    box._db.execute("PRAGMA max_page_count = 12")
    box.put([("first", b"x")])
    with pytest.raises(StoreFullError):
        box.put([(str(number), b"x" * 4000) for number in range(100)])
    assert box.entries()
    box.close()


class Log:
    """The far end of a sender: refuses, fails or takes, as told."""

    def __init__(self) -> None:
        self.taken: list[str] = []
        self.refusals: list[Exception] = []
        self.failures: list[Exception] = []
        self.lock = threading.Lock()

    def send(self, identity: str, value: bytes) -> Future[RecordPosition]:
        with self.lock:
            if self.refusals:
                raise self.refusals.pop(0)
            future: Future[RecordPosition] = Future()
            if self.failures:
                future.set_exception(self.failures.pop(0))
            else:
                self.taken.append(identity)
                future.set_result(RecordPosition("t", 0, len(self.taken)))
            return future


def sender(outbox: Outbox, log: Log, delivered: list[str]) -> OutboxSender:
    return OutboxSender(outbox, log.send, SystemClock(), delivered=delivered.extend, retry_s=0.01, retry_most_s=0.05)


def test_only_confirmed_entries_are_sent_and_then_removed(outbox: Outbox) -> None:
    log, delivered = Log(), list[str]()
    outbox.put([("a", b"1"), ("b", b"2")])
    outbox.confirm(["a"])
    work = sender(outbox, log, delivered)
    work.notify()
    assert not work.drain(0.3)
    assert log.taken == ["a"]
    assert delivered == ["a"]
    outbox.confirm(["b"])
    assert work.drain(10.0)
    work.close()
    assert log.taken == ["a", "b"]


def test_a_log_that_is_away_loses_nothing(outbox: Outbox) -> None:
    log, delivered = Log(), list[str]()
    log.refusals = [BusUnavailableError("away"), BusUnavailableError("away")]
    log.failures = [BusUnavailableError("lost"), BusUnavailableError("lost")]
    outbox.put([(str(number), b"x") for number in range(20)])
    outbox.confirm([str(number) for number in range(20)])
    work = sender(outbox, log, delivered)
    assert work.drain(20.0)
    work.close()
    assert sorted(delivered, key=int) == [str(number) for number in range(20)]
    assert set(log.taken) == set(delivered)


def test_an_error_that_no_retry_mends_is_shown(outbox: Outbox) -> None:
    log = Log()
    log.refusals = [RecordTooLargeError("too large")]
    outbox.put([("a", b"1")])
    outbox.confirm(["a"])
    work = sender(outbox, log, [])
    assert not work.drain(5.0)
    assert isinstance(work.failure, RecordTooLargeError)
    work.close()
    assert len(outbox) == 1


def test_the_file_is_in_wal_mode_and_synchronous(tmp_path: Path) -> None:
    box = Outbox(tmp_path / "o.sqlite")
    assert box._db.execute("PRAGMA synchronous").fetchone()[0] == 2
    assert box._db.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
    box.close()
    with sqlite3.connect(tmp_path / "o.sqlite") as db:
        assert db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
    db.close()
