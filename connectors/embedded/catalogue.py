"""The catalogue of the embedded log: its topics, groups, members, who owns which partition, and committed offsets.

One small file beside the partitions. Used by the producer (topics), by ``group`` and by ``admin``; each of them opens a
``Catalogue`` of its own, because a connection does not see its own writes in ``data_version``.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from distrl.connectors.embedded.database import Database, Synchronous, create
from distrl.connectors.embedded.partition import Partition
from distrl.core.contracts.bus import ALTERABLE, TopicPartition, TopicSpec
from distrl.core.errors import BusError, BusUnavailableError, TopicMismatchError, UnknownTopicError

SCHEMA = """
CREATE TABLE topics (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    partitions INTEGER NOT NULL,
    replication INTEGER NOT NULL,
    cleanup TEXT NOT NULL,
    retention_ms INTEGER,
    retention_bytes INTEGER,
    max_record_bytes INTEGER NOT NULL
);
CREATE TABLE groups (
    name TEXT PRIMARY KEY,
    generation INTEGER NOT NULL
);
CREATE TABLE members (
    incarnation TEXT PRIMARY KEY,
    group_name TEXT NOT NULL,
    static_name TEXT,
    joined INTEGER NOT NULL,
    topics TEXT NOT NULL,
    session_ms INTEGER NOT NULL,
    heartbeat_ms INTEGER NOT NULL,
    UNIQUE (group_name, static_name)
);
CREATE TABLE claims (
    group_name TEXT NOT NULL,
    topic TEXT NOT NULL,
    partition INTEGER NOT NULL,
    incarnation TEXT NOT NULL,
    PRIMARY KEY (group_name, topic, partition)
);
CREATE TABLE offsets (
    group_name TEXT NOT NULL,
    topic TEXT NOT NULL,
    partition INTEGER NOT NULL,
    position INTEGER NOT NULL,
    PRIMARY KEY (group_name, topic, partition)
);
"""

TOPIC_PATTERN = re.compile(r"[a-zA-Z0-9._-]{1,249}")
"""Kafka's rule, so that a run can be copied there; with the number in front no name can leave its folder."""

COLUMNS = "name, partitions, replication, cleanup, retention_ms, retention_bytes, max_record_bytes"


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as it stands. A topic that is deleted and made again has another ``number``, hence other files."""

    number: int
    spec: TopicSpec

    def partitions(self) -> list[TopicPartition]:
        return [TopicPartition(self.spec.name, index) for index in range(self.spec.partitions)]


class Catalogue:
    """One connection to the catalogue of the log in ``folder``, which is made if it is missing."""

    def __init__(self, folder: Path, *, synchronous: Synchronous, wait_s: float) -> None:
        self.folder = folder
        self._synchronous: Synchronous = synchronous
        self._wait_s = wait_s
        path = folder / "catalogue.db"
        create(path, SCHEMA)
        self.database = Database(path, synchronous=synchronous, wait_s=wait_s)

    # --- topics -----------------------------------------------------------------------------------

    def topics(self) -> dict[str, Topic]:
        """Every topic, by name."""
        rows = self.database.rows(f"SELECT id, {COLUMNS} FROM topics ORDER BY name")
        return {row[1]: Topic(row[0], TopicSpec(*row[1:])) for row in rows}

    def topic(self, name: str) -> Topic:
        """Raises ``UnknownTopicError``."""
        row = self.database.row(f"SELECT id, {COLUMNS} FROM topics WHERE name = ?", (name,))
        if row is None:
            raise UnknownTopicError(f"topic {name!r} does not exist: `distrl topics apply` makes a run's topics")
        return Topic(row[0], TopicSpec(*row[1:]))

    def create_topics(self, specs: Sequence[TopicSpec]) -> list[str]:
        """Make those that are missing, all or none; see ``TopicAdmin.create``."""
        for spec in specs:
            if not TOPIC_PATTERN.fullmatch(spec.name) or spec.name in (".", ".."):
                raise BusError(f"topic name {spec.name!r}: use letters, digits, '.', '_' and '-', at most 249")
            if spec.partitions < 1:
                raise BusError(f"topic {spec.name!r}: {spec.partitions} partitions; it needs at least one")
        made: list[str] = []
        with self.database.transaction(), contextlib.ExitStack() as undo:
            existing = self.topics()
            for spec in specs:
                found = existing.get(spec.name)
                if found is not None:
                    if found.spec.partitions != spec.partitions:
                        raise TopicMismatchError(
                            f"topic {spec.name!r} has {found.spec.partitions} partitions, declared are {spec.partitions}: "
                            "records of a key would be torn apart, so use another run name or the old number"
                        )
                    continue
                number = self.database.execute(
                    f"INSERT INTO topics ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (
                        spec.name,
                        spec.partitions,
                        spec.replication,
                        spec.cleanup,
                        spec.retention_ms,
                        spec.retention_bytes,
                        spec.max_record_bytes,
                    ),
                ).lastrowid
                assert number is not None
                topic = Topic(number, spec)
                # Files first: a topic that others can see is whole. What bears the number already was left by someone
                # who did not come to an end, since no topic of this number was ever seen.
                folder = self.path(topic, 0).parent
                for left in folder.parent.glob(f"{number:06d}-*"):
                    shutil.rmtree(left, ignore_errors=True)
                undo.callback(shutil.rmtree, folder, ignore_errors=True)
                for index in range(spec.partitions):
                    Partition.create(self.path(topic, index), compact="compact" in spec.cleanup)
                existing[spec.name] = topic
                made.append(spec.name)
            undo.pop_all()
        return made

    def alter_topics(self, specs: Sequence[TopicSpec]) -> list[str]:
        """Change settings of topics that exist; see ``TopicAdmin.alter``. Writers take them over within seconds."""
        changed: list[str] = []
        columns = ", ".join(f"{column} = ?" for column in ALTERABLE)
        for spec in specs:
            wanted = [getattr(spec, column) for column in ALTERABLE]
            with self.database.transaction():
                found = self.topics().get(spec.name)
                if found is None or [getattr(found.spec, column) for column in ALTERABLE] == wanted:
                    continue
                if "compact" in spec.cleanup:
                    for index in range(found.spec.partitions):
                        with contextlib.closing(self.open(found, index)) as partition:
                            partition.index_keys()
                self.database.execute(f"UPDATE topics SET {columns} WHERE id = ?", (*wanted, found.number))
            changed.append(spec.name)
        return changed

    def delete_topics(self, names: Sequence[str]) -> None:
        """Remove topics with their records, claims and offsets; unknown names are ignored."""
        for name in names:
            try:
                topic = self.topic(name)
            except UnknownTopicError:
                continue
            for index in range(topic.spec.partitions):
                try:
                    partition = self.open(topic, index)
                except BusUnavailableError:
                    continue  # removed before, by someone who did not come to an end
                except BusError:
                    pass  # damaged: nothing can be written to it, and it is about to go
                else:
                    try:
                        partition.remove()  # from here on no writer adds to it
                    finally:
                        partition.close()
            with self.database.transaction():
                self.database.execute("DELETE FROM topics WHERE id = ?", (topic.number,))
                self.database.execute("DELETE FROM claims WHERE topic = ?", (name,))
                self.database.execute("DELETE FROM offsets WHERE topic = ?", (name,))
            folder = self.path(topic, 0).parent
            # A reader that has a file open may put a `-wal` beside it even now; what stays is swept when the name is used again.
            shutil.rmtree(folder, ignore_errors=True)

    def path(self, topic: Topic, index: int) -> Path:
        """The file of one partition. The number makes it unique where letter case makes no difference."""
        return self.folder / "topics" / f"{topic.number:06d}-{topic.spec.name[:200]}" / f"{index:04d}.db"

    def size(self, topic: Topic) -> int:
        """Bytes that the topic's files take on the disk, their write-ahead logs included."""
        total = 0
        with contextlib.suppress(FileNotFoundError):  # removed meanwhile
            for entry in os.scandir(self.path(topic, 0).parent):
                total += entry.stat().st_size
        return total

    def open(self, topic: Topic, index: int) -> Partition:
        """One more connection to a partition."""
        return Partition(
            TopicPartition(topic.spec.name, index),
            self.path(topic, index),
            synchronous=self._synchronous,
            wait_s=self._wait_s,
        )

    # --- groups -----------------------------------------------------------------------------------

    def groups(self, now_ms: int) -> set[str]:
        """Groups that have committed offsets or members whose session lasts at ``now_ms`` (``uptime_ms``)."""
        rows = self.database.rows("SELECT DISTINCT group_name FROM offsets")
        return {name for (name,) in rows} | self._inhabited(now_ms)

    def delete_groups(self, names: Sequence[str], now_ms: int) -> list[str]:
        """Remove groups with what they committed; returns those that have members, which stay."""
        with self.database.transaction():
            kept = self._inhabited(now_ms).intersection(names)
            for name in set(names) - kept:
                for table, column in (
                    ("groups", "name"),
                    *((t, "group_name") for t in ("members", "claims", "offsets")),
                ):
                    self.database.execute(f"DELETE FROM {table} WHERE {column} = ?", (name,))
        return sorted(kept)

    def _inhabited(self, now_ms: int) -> set[str]:
        # As ``group`` judges it: a heartbeat of the future means that the clock was set back.
        rows = self.database.rows(
            "SELECT DISTINCT group_name FROM members WHERE abs(? - heartbeat_ms) <= session_ms", (now_ms,)
        )
        return {name for (name,) in rows}

    def offsets(self, group: str) -> dict[TopicPartition, int]:
        """What ``group`` has committed."""
        rows = self.database.rows(
            "SELECT topic, partition, position FROM offsets WHERE group_name = ? ORDER BY topic, partition", (group,)
        )
        return {TopicPartition(topic, partition): position for topic, partition, position in rows}

    def close(self) -> None:
        self.database.close()
