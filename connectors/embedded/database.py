"""One SQLite file of the embedded log: how it is opened, locked and checkpointed, and what its errors mean.

Used by every other module of the embedded log. Any number of processes and threads may open one file; a
``Database`` is one connection with a lock around it.
"""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from distrl.core.errors import BusError, BusUnavailableError, DistrlError, StoreFullError

Synchronous = Literal["NORMAL", "FULL"]

CHECKPOINT_BYTES = 16_000_000
"""A write-ahead log larger than this is moved into its file and truncated."""

CHECKPOINT_WAIT_MS = 100
"""How long a checkpoint waits for readers to step aside before it is put off."""

SURPLUS_BYTES = 16_000_000
"""What a file may hold unused before it gives some back; or a quarter of it, if that is more: so much is soon used again."""

RECLAIM_PAGES = 256
RECLAIM_S = 0.05
"""Pages that one transaction gives back, which holds up writers for a millisecond or so, and how long that goes on at a time."""

BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}
DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT}


FULL_BYTES = 1_000_000
"""SQLite calls some failures of a full disk an I/O error; with less than this free they are taken for what they are."""


def _free_bytes(path: Path) -> int:
    try:
        return shutil.disk_usage(path.parent).free
    except OSError:  # not even the folder answers: not a full disk
        return FULL_BYTES


def translate(error: sqlite3.Error, path: Path) -> DistrlError:
    """What an error of SQLite on ``path`` means to the callers of a bus."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF  # the low byte is the primary code
    if code in BUSY:
        return BusUnavailableError(f"log file {path} stayed locked by another process: {error}")
    if code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR and _free_bytes(path) < FULL_BYTES):
        return StoreFullError(f"no space is left for log file {path}: free some or move [bus] path to another disk")
    if code in DAMAGED:
        return BusError(f"log file {path} is damaged ({error}): restore it from a copy, or delete its topic")
    if code == sqlite3.SQLITE_CANTOPEN:
        return BusUnavailableError(f"log file {path} cannot be opened: check that its folder exists and is yours")
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
        return BusError(f"log file {path} cannot be written ({error}): check its permissions")
    return BusError(f"log file {path}: {error}")


def create(path: Path, schema: str, *, journal: Literal["WAL", "DELETE"] = "WAL") -> None:
    """Make the file at ``path`` with ``schema`` unless there is one.

    It appears under its name only when it is complete: several processes may make the same one at the same time, and none
    sees a file without its tables or in another journal mode.
    """
    if path.exists():
        return
    draft = path.with_name(f"{path.name}.{uuid.uuid4().hex}.new")
    try:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(draft, isolation_level=None)) as connection:
                connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # before all else: see ``reclaim``
                connection.execute(f"PRAGMA journal_mode = {journal}")
                connection.executescript(schema)
            with suppress(FileExistsError):
                os.link(draft, path)
        finally:
            draft.unlink(missing_ok=True)
    except sqlite3.Error as error:
        raise translate(error, path) from error
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise StoreFullError(f"no space is left for log file {path}") from error
        raise BusUnavailableError(f"log file {path} cannot be made: {error.strerror or error}") from error


class Database:
    """One connection to a file that exists. Safe for use by several threads, which then take turns.

    ``wait_s`` is how long a statement waits for a lock that another process holds, before it fails with
    ``BusUnavailableError``.
    """

    def __init__(self, path: Path, *, synchronous: Synchronous, wait_s: float) -> None:
        self.path = path
        self._wal = path.with_name(path.name + "-wal")
        self._lock = threading.RLock()
        self._wait_ms = max(1, round(wait_s * 1000))
        try:
            self._connection = sqlite3.connect(
                f"{path.absolute().as_uri()}?mode=rw",
                uri=True,
                timeout=wait_s,
                isolation_level=None,  # transactions are opened by hand: see ``transaction``
                check_same_thread=False,
            )
        except sqlite3.Error as error:
            raise translate(error, path) from error
        try:
            self.execute(f"PRAGMA synchronous = {synchronous}")
            # Some builds overwrite what is removed with zeros: retention would write all that it lets go of once more.
            self.execute("PRAGMA secure_delete = OFF")
            # Checkpoints are made on a schedule, with the write lock held: see ``checkpoint_if_large``.
            self.execute("PRAGMA wal_autocheckpoint = 0")
            self.row("SELECT 1 FROM sqlite_schema LIMIT 1")  # the first look at the file: damaged ones fail here
        except BaseException:
            self._connection.close()
            raise

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> sqlite3.Cursor:
        """Run one statement that gives no rows."""
        try:
            with self._lock:
                return self._connection.execute(sql, parameters)
        except sqlite3.Error as error:
            raise translate(error, self.path) from error

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows of one query."""
        try:
            with self._lock:
                return self._connection.execute(sql, parameters).fetchall()
        except sqlite3.Error as error:
            raise translate(error, self.path) from error

    def row(self, sql: str, parameters: Sequence[Any] = ()) -> tuple[Any, ...] | None:
        """The first row of a query that has at most one."""
        found = self.rows(sql, parameters)
        return found[0] if found else None

    @contextmanager
    def cursor(self, sql: str, parameters: Sequence[Any] = ()) -> Iterator[sqlite3.Cursor]:
        """A query whose rows are read one by one and need not all be read. Keeps other threads out meanwhile."""
        try:
            with self._lock, closing(self._connection.execute(sql, parameters)) as cursor:
                yield cursor
        except sqlite3.Error as error:
            raise translate(error, self.path) from error

    def execute_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run one statement for each of ``rows``; inside a transaction."""
        try:
            with self._lock:
                self._connection.executemany(sql, rows)
        except sqlite3.Error as error:
            raise translate(error, self.path) from error

    @contextmanager
    def transaction(self, kind: Literal["IMMEDIATE", "DEFERRED"] = "IMMEDIATE") -> Iterator[None]:
        """All or nothing. ``IMMEDIATE`` takes the file's write lock at once; ``DEFERRED`` is a stable view to read."""
        with self._lock:
            self.execute(f"BEGIN {kind}")
            try:
                yield
                self.execute("COMMIT")
            except BaseException:
                # A full disk may have rolled back already; nothing else is left to do about a failing rollback.
                with suppress(sqlite3.Error):
                    if self._connection.in_transaction:
                        self._connection.execute("ROLLBACK")
                raise

    def data_version(self) -> int:
        """A number that changes when another connection has written: the cheap way to watch a file."""
        return self._pragma("data_version")

    def checkpoint_if_large(self) -> bool:
        """Move a large write-ahead log into its file; returns whether there is none left to move.

        Only ever with TRUNCATE, which keeps writers out meanwhile: the automatic checkpoint cannot shorten a log
        that readers keep in use, and it would grow without bound.
        """
        try:
            if self._wal.stat().st_size < CHECKPOINT_BYTES:
                return True
        except FileNotFoundError:
            return True
        with self._lock:
            return self._checkpoint()

    def _checkpoint(self) -> bool:
        self.execute(f"PRAGMA busy_timeout = {CHECKPOINT_WAIT_MS}")
        try:
            row = self.row("PRAGMA wal_checkpoint(TRUNCATE)")
        finally:
            self.execute(f"PRAGMA busy_timeout = {self._wait_ms}")
        return row is not None and row[0] == 0

    def reclaim(self) -> None:
        """Give the disk back what retention has left unused in the file, if it is much, and no longer than a moment at a time."""
        with self._lock:
            free, pages, page = (self._pragma(name) for name in ("freelist_count", "page_count", "page_size"))
            surplus = free - max(SURPLUS_BYTES // page, pages // 4)
            if surplus <= 0:
                return
            until = time.monotonic() + RECLAIM_S
            try:
                while surplus > 0 and time.monotonic() < until:
                    # Each page is a row, and only ``executescript`` goes through rows without columns.
                    self._connection.executescript(f"PRAGMA incremental_vacuum({RECLAIM_PAGES})")
                    surplus -= RECLAIM_PAGES
            except sqlite3.Error as error:
                raise translate(error, self.path) from error
            self._checkpoint()  # the file itself is cut by this

    def _pragma(self, name: str) -> int:
        row = self.row(f"PRAGMA {name}")
        assert row is not None
        value: int = row[0]
        return value

    def close(self) -> None:
        """Release the file. Idempotent."""
        with self._lock:
            self._connection.close()
