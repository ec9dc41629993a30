"""The collector's outbox: finished episodes on this machine's disk until the log has acknowledged them.

A SQLite file of the node's own, synchronous: an episode that was put here outlives the process, the broker's
outage and both together. ``OutboxSender`` empties it from a thread of its own, so a log that is away never
holds up a device.
"""

from __future__ import annotations

import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from distrl.core.contracts.bus import RecordPosition
from distrl.core.contracts.clock import Clock
from distrl.core.errors import DistrlError, StoreError, StoreFullError
from distrl.core.runtime.disk import FULL_BYTES

log = structlog.get_logger(__name__)
SHRINK_BYTES = 4_000_000
"""An outbox that is empty gives space back to the disk once this much of its file is unused."""
LOOK_S = 30.0
"""The sender is told of what comes in; this often it looks all the same."""


@dataclass(frozen=True, slots=True)
class OutboxEntry:
    """One finished episode, framed and ready to send."""

    trajectory_id: str
    value: bytes
    confirmed: bool
    """Whether its device was told."""


def outbox_path(work_dir: Path) -> Path:
    """Where a node with this folder keeps its outbox."""
    return work_dir / "outbox.sqlite"


class Outbox:
    """Entries in the order in which they were put. Safe for use by several threads."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._lock = threading.Lock()
        try:
            self._db = sqlite3.connect(path, check_same_thread=False, timeout=30.0, isolation_level=None)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            # Some builds overwrite what is removed with zeros: that takes space, which a full disk does not have.
            self._db.execute("PRAGMA secure_delete=OFF")
            self._db.execute(f"PRAGMA journal_size_limit={SHRINK_BYTES}")
            self._db.execute(
                "CREATE TABLE IF NOT EXISTS episode (position INTEGER PRIMARY KEY, trajectory_id TEXT UNIQUE NOT NULL,"
                " value BLOB NOT NULL, confirmed INTEGER NOT NULL DEFAULT 0)"
            )
            self._db.execute("CREATE TABLE IF NOT EXISTS done (number INTEGER PRIMARY KEY)")
            if "began_ms" not in [row[1] for row in self._db.execute("PRAGMA table_info(episode)")]:
                # 0: of an outbox that did not know it yet; when those episodes began is not known.
                self._db.execute("ALTER TABLE episode ADD COLUMN began_ms INTEGER NOT NULL DEFAULT 0")
        except sqlite3.Error as error:
            raise self._translated(error) from error

    def put(self, entries: Sequence[tuple[str, bytes]], *, done: Sequence[int] = (), began_ms: int = 0) -> None:
        """Keep (trajectory id, framed event) pairs, and note which numbered demonstrations they complete: all or none,
        durable on return. An entry already there is left as it is. ``began_ms``: when the first of the episodes began."""
        with self._lock:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                self._db.executemany(
                    "INSERT OR IGNORE INTO episode (trajectory_id, value, began_ms) VALUES (?, ?, ?)",
                    [(identity, value, began_ms) for identity, value in entries],
                )
                self._db.executemany("INSERT OR IGNORE INTO done (number) VALUES (?)", [(number,) for number in done])
                self._db.execute("COMMIT")
            except sqlite3.Error as error:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise self._translated(error) from error

    def confirm(self, trajectory_ids: Sequence[str]) -> None:
        """Note that the devices were told."""
        self._run_many("UPDATE episode SET confirmed = 1 WHERE trajectory_id = ?", trajectory_ids)

    def remove(self, trajectory_ids: Sequence[str]) -> None:
        """Let go of what the log has acknowledged. Once nothing is left, the disk gets back what an outage had taken."""
        self._run_many("DELETE FROM episode WHERE trajectory_id = ?", trajectory_ids)
        if len(self) == 0:
            self._shrink()

    def entries(self, *, confirmed: bool | None = None, limit: int = 1000) -> list[OutboxEntry]:
        """The oldest entries, all or only those whose device was (or was not) told."""
        where = "" if confirmed is None else f"WHERE confirmed = {int(confirmed)}"
        rows = self._select(
            f"SELECT trajectory_id, value, confirmed FROM episode {where} ORDER BY position LIMIT ?", limit
        )
        if not all(isinstance(row[0], str) and isinstance(row[1], bytes) for row in rows):
            raise StoreError(f"the outbox {self._path.name} is damaged: it holds a row that is no episode")
        return [OutboxEntry(row[0], row[1], bool(row[2])) for row in rows]

    def oldest_ms(self) -> int | None:
        """When the first of the episodes kept here began (milliseconds since the epoch); ``None`` while there is none."""
        value = self._select("SELECT MIN(began_ms) FROM episode")[0][0]
        return None if value is None else int(value)

    def done(self) -> set[int]:
        """Numbers of the demonstrations that were completed, in this start or an earlier one."""
        return {int(row[0]) for row in self._select("SELECT number FROM done")}

    def __len__(self) -> int:
        return int(self._select("SELECT COUNT(*) FROM episode")[0][0])

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def _shrink(self) -> None:
        with self._lock:
            try:
                free, page = (
                    self._db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("freelist_count", "page_size")
                )
                if free * page > SHRINK_BYTES:
                    self._db.execute("VACUUM")
                    self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            except sqlite3.Error as error:  # on a full disk or while somebody looks on; the next time tries again
                log.warning("the outbox keeps its size", error=str(self._translated(error)))

    def _select(self, statement: str, *values: int) -> list[Any]:
        with self._lock:
            try:
                return self._db.execute(statement, values).fetchall()
            except sqlite3.Error as error:
                raise self._translated(error) from error

    def _run_many(self, statement: str, trajectory_ids: Sequence[str]) -> None:
        with self._lock:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                self._db.executemany(statement, [(identity,) for identity in trajectory_ids])
                self._db.execute("COMMIT")
            except sqlite3.Error as error:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise self._translated(error) from error

    def _translated(self, error: sqlite3.Error) -> DistrlError:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF  # the low byte is the primary code
        # SQLite calls some failures of a full disk an I/O error.
        full = code == sqlite3.SQLITE_IOERR and shutil.disk_usage(self._path.parent).free < FULL_BYTES
        if full or code == sqlite3.SQLITE_FULL:
            return StoreFullError(f"no space left for the outbox {self._path.name}: free some on its disk")
        return StoreError(f"the outbox {self._path.name} cannot be used: {error}")


def kept_episodes(path: Path) -> Iterator[bytes]:
    """The framed episodes of an outbox that another process may be using, whose file is not changed.

    Raises ``StoreError`` if it cannot be read.
    """
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=30.0)) as db:
            for row in db.execute("SELECT value FROM episode ORDER BY position"):
                yield row[0]
    except sqlite3.Error as error:
        raise StoreError(f"the outbox {path} cannot be read: {error}") from error


class OutboxSender:
    """Sends what is in an outbox, oldest first, until it is empty; removes what is acknowledged.

    Only entries whose device was told are sent, so a device's ledger never lacks what the log has.
    """

    def __init__(
        self,
        outbox: Outbox,
        send: Callable[[str, bytes], Future[RecordPosition]],
        clock: Clock,
        *,
        delivered: Callable[[Sequence[str]], None],
        retry_s: float = 0.5,
        retry_most_s: float = 10.0,
    ) -> None:
        self._outbox = outbox
        self._send = send
        self._clock = clock
        self._delivered = delivered
        self._retry = (retry_s, retry_most_s)
        self._wake = threading.Event()
        self._stop = threading.Event()
        self.failure: DistrlError | None = None
        """Why the sender gave up: an error that no retry can mend."""
        self._thread = threading.Thread(target=self._run, name="outbox", daemon=True)
        self._thread.start()

    def notify(self) -> None:
        """There is something new in the outbox."""
        self._wake.set()

    def drain(self, timeout_s: float) -> bool:
        """Wait until the outbox is empty; return whether it is. What stays is sent by the next start."""
        deadline = self._clock.monotonic() + timeout_s
        while len(self._outbox) and self.failure is None and self._clock.monotonic() < deadline:
            self._wake.set()
            self._clock.sleep(0.02)
        return len(self._outbox) == 0

    def close(self) -> None:
        self._stop.set()
        self._wake.set()
        self._thread.join(timeout=30.0)

    def _run(self) -> None:
        pause = self._retry[0]
        while not self._stop.is_set():
            self._clock.wait(self._wake, LOOK_S)
            self._wake.clear()
            try:
                while self._send_some():
                    pause = self._retry[0]
            except DistrlError as error:
                if not error.retriable:
                    self.failure = error
                    log.error("the outbox cannot be sent", error=str(error))
                    return
                log.warning("the log did not take finished episodes; they are kept", error=str(error), retry_s=pause)
                self._clock.wait(self._stop, pause)
                pause = min(pause * 2, self._retry[1])
                self._wake.set()

    def _send_some(self) -> bool:
        """Send up to a batch and wait for it; false when there is nothing to send."""
        entries = self._outbox.entries(confirmed=True, limit=200)
        if not entries or self._stop.is_set():
            return False
        futures: list[tuple[str, Future[RecordPosition]]] = []
        failure: DistrlError | None = None
        for entry in entries:
            try:
                futures.append((entry.trajectory_id, self._send(entry.trajectory_id, entry.value)))
            except DistrlError as error:
                failure = error
                break
        done: list[str] = []
        for identity, future in futures:
            try:
                future.result(timeout=300.0)
                done.append(identity)
            except DistrlError as error:
                failure = error
            except TimeoutError:
                log.warning("no word from the log about an episode; it will be sent again", trajectory=identity)
        if done:
            self._outbox.remove(done)
            self._delivered(done)
        if failure is not None:
            raise failure
        return True
