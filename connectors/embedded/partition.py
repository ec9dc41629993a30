"""One partition of the embedded log: a SQLite file with a row a record. Written by producers, read by consumers.

The offset is the row id, so reading in order is reading the table in order. Offsets come from ``meta``, not from the
rows, so they go on growing when retention has removed them all.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from distrl.connectors.embedded.database import Database, Synchronous, create
from distrl.core.contracts.bus import Headers, Record, TopicPartition, TopicSpec
from distrl.core.errors import BusError, UnknownTopicError

SCHEMA = """
CREATE TABLE records (
    position INTEGER PRIMARY KEY,
    timestamp_ms INTEGER NOT NULL,
    key BLOB,
    headers BLOB,
    value BLOB
);
CREATE TABLE meta (
    next_position INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    compacted INTEGER NOT NULL,
    removed INTEGER NOT NULL
);
INSERT INTO meta VALUES (0, 0, 0, 0);
"""

KEY_INDEX = "CREATE INDEX IF NOT EXISTS records_key ON records (key, position) WHERE key IS NOT NULL;"

SIZE = "ifnull(length(key), 0) + ifnull(length(value), 0) + ifnull(length(headers), 0)"

CHUNK = 2000
"""Records that one transaction of housekeeping removes at most, so that writers and readers wait little."""

TOMBSTONE_MS = 24 * 3_600_000
"""How long a tombstone stays, so that a reader who was away learns of it (Kafka's delete.retention.ms)."""


class Entry(NamedTuple):
    """A record to be written."""

    timestamp_ms: int
    key: bytes | None
    headers: bytes | None
    value: bytes | None

    def size(self) -> int:
        """Bytes, as the bounds of a topic count them."""
        return len(self.key or b"") + len(self.headers or b"") + len(self.value or b"")


def pack_headers(headers: Headers) -> bytes | None:
    """Headers as bytes: for each its name and value, each behind its length (big-endian, 4 bytes)."""
    if not headers:
        return None
    parts: list[bytes] = []
    for name, value in headers:
        encoded = name.encode()
        parts += (struct.pack(">I", len(encoded)), encoded, struct.pack(">I", len(value)), value)
    return b"".join(parts)


def unpack_headers(data: bytes | None) -> Headers:
    """The inverse of ``pack_headers``. Raises ``BusError`` for bytes that it did not write."""
    if data is None:
        return ()
    parts: list[bytes] = []
    at = 0
    try:
        while at < len(data):
            (length,) = struct.unpack_from(">I", data, at)
            at += 4 + length
            parts.append(data[at - length : at])
        if at != len(data):
            raise ValueError("the last one is cut off")
        return tuple((name.decode(), value) for name, value in zip(parts[::2], parts[1::2], strict=True))
    except (struct.error, ValueError) as error:
        raise BusError(f"a record's headers are damaged: {error}") from error


class Partition:
    """One connection to the file of ``name``. See ``Database`` for threads and waiting."""

    def __init__(self, name: TopicPartition, path: Path, *, synchronous: Synchronous, wait_s: float) -> None:
        self.name = name
        self._database = Database(path, synchronous=synchronous, wait_s=wait_s)

    @staticmethod
    def create(path: Path, *, compact: bool) -> None:
        """Make the file of a partition unless there is one."""
        create(path, SCHEMA + KEY_INDEX if compact else SCHEMA)

    def index_keys(self) -> None:
        """Make compaction quick in a file that was made without it."""
        self._database.execute(KEY_INDEX)

    # --- writing ----------------------------------------------------------------------------------

    def append(self, entries: Sequence[Entry], permit: Callable[[], None] | None = None) -> int:
        """Write ``entries`` behind each other, all or none, and return the first one's offset.

        ``permit`` is called while the write lock is held and may raise to forbid the write. Raises ``UnknownTopicError``
        when the topic has been deleted.
        """
        database = self._database
        with database.transaction():
            if permit is not None:
                permit()
            first = self._live()
            database.execute_many(
                "INSERT INTO records (position, timestamp_ms, key, headers, value) VALUES (?, ?, ?, ?, ?)",
                [(first + index, *entry) for index, entry in enumerate(entries)],
            )
            database.execute(
                "UPDATE meta SET next_position = ?, bytes = bytes + ?",
                (first + len(entries), sum(entry.size() for entry in entries)),
            )
        return first

    def _live(self) -> int:
        """The next offset; raises if the topic is deleted."""
        row = self._database.row("SELECT next_position, removed FROM meta")
        assert row is not None
        position: int
        position, removed = row
        if removed:
            raise UnknownTopicError(f"topic {self.name.topic!r} has been deleted")
        return position

    def remove(self) -> None:
        """Let no one write here again; a reader that looks is told."""
        with self._database.transaction():
            self._database.execute("UPDATE meta SET removed = 1")

    # --- reading ----------------------------------------------------------------------------------

    def version(self) -> int:
        """Changes when someone else has written."""
        return self._database.data_version()

    def read(self, position: int, max_records: int, max_bytes: int) -> tuple[list[Record], int | None]:
        """Records from ``position`` on: at most ``max_records``, and no more once they exceed ``max_bytes``.

        With them the end of the partition if they reach it, else ``None``. The end may lie beyond the last record,
        where retention or compaction has removed some.
        """
        topic, partition = self.name
        records: list[Record] = []
        # One view for both queries: a record that is written in between must not fall behind the end.
        with self._database.transaction("DEFERRED"):
            with self._database.cursor(
                "SELECT position, timestamp_ms, key, headers, value FROM records WHERE position >= ? "
                "ORDER BY position LIMIT ?",
                (position, max_records),
            ) as rows:
                for offset, timestamp_ms, key, headers, value in rows:
                    records.append(Record(topic, partition, offset, timestamp_ms, key, value, unpack_headers(headers)))
                    max_bytes -= len(value or b"")
                    if max_bytes <= 0:
                        return records, None
            if len(records) == max_records:
                return records, None
            return records, self._live()

    def begin(self) -> int:
        """The first offset still held; the end if there is none."""
        row = self._database.row("SELECT ifnull((SELECT min(position) FROM records), next_position) FROM meta")
        assert row is not None
        first: int = row[0]
        return first

    def end(self) -> int:
        """The offset that the next record will get."""
        return self._live()

    def at_time(self, time_ms: int) -> int:
        """The first offset whose record is not older than ``time_ms``; the end if there is none."""
        with self._database.transaction("DEFERRED"):
            row = self._database.row(
                "SELECT position FROM records WHERE timestamp_ms >= ? ORDER BY position LIMIT 1", (time_ms,)
            )
            return self._live() if row is None else int(row[0])

    # --- housekeeping -----------------------------------------------------------------------------

    def tend(self, spec: TopicSpec, now_ms: int) -> None:
        """Remove what retention or compaction lets go of. Writers call it now and then."""
        if "compact" in spec.cleanup:
            self._compact(now_ms)
        if "delete" in spec.cleanup:
            if spec.retention_ms is not None:
                self.trim(self.at_time(now_ms - spec.retention_ms))
            if spec.retention_bytes is not None:
                self._shrink(spec.retention_bytes)
        self._database.reclaim()
        self._database.checkpoint_if_large()

    def trim(self, before: int) -> None:
        """Remove all records below an offset, some at a time."""
        while True:
            with self._database.transaction():
                rows = self._database.rows(
                    f"SELECT position, {SIZE} FROM records WHERE position < ? ORDER BY position LIMIT ?",
                    (before, CHUNK),
                )
                if not rows:
                    return
                self._database.execute("DELETE FROM records WHERE position <= ?", (rows[-1][0],))
                self._database.execute("UPDATE meta SET bytes = bytes - ?", (sum(size for _, size in rows),))

    def _shrink(self, allowed: int) -> None:
        """Remove the oldest records until at most ``allowed`` bytes are held."""
        while True:
            row = self._database.row("SELECT bytes FROM meta")
            assert row is not None
            excess = row[0] - allowed
            if excess <= 0:
                return
            cut = 0
            for position, size in self._database.rows(
                f"SELECT position, {SIZE} FROM records ORDER BY position LIMIT ?", (CHUNK,)
            ):
                cut = position + 1
                excess -= size
                if excess <= 0:
                    break
            self.trim(cut)

    def _compact(self, now_ms: int) -> None:
        """Keep the newest record of each key (and all without a key), once enough has been written to be worth it."""
        row = self._database.row("SELECT next_position, compacted, (SELECT count(*) FROM records) FROM meta")
        assert row is not None
        end, compacted, held = row
        if end - compacted < max(held // 2, 1):
            return
        done = -1
        while True:
            with self._database.transaction():
                rows = self._database.rows(
                    f"""SELECT position, {SIZE} FROM records AS old
                    WHERE position > ? AND position < ? AND key IS NOT NULL AND (
                        EXISTS (SELECT 1 FROM records AS new WHERE new.key = old.key AND new.position > old.position)
                        OR (value IS NULL AND timestamp_ms < ?)
                    ) ORDER BY position LIMIT ?""",
                    (done, end, now_ms - TOMBSTONE_MS, CHUNK),
                )
                self._database.execute_many("DELETE FROM records WHERE position = ?", [(row[0],) for row in rows])
                self._database.execute("UPDATE meta SET bytes = bytes - ?", (sum(row[1] for row in rows),))
                if len(rows) < CHUNK:
                    self._database.execute("UPDATE meta SET compacted = max(compacted, ?)", (end,))
                    return
                done = rows[-1][0]

    def checkpoint_if_large(self) -> bool:
        """See ``Database``."""
        return self._database.checkpoint_if_large()

    def close(self) -> None:
        self._database.close()
