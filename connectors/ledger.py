"""What a device itself knows of its episodes, outside the log: a loss can be proved by comparing the two.

One file a device, one JSON line an entry: ``started`` when an episode is reset, ``finished`` once its collector has it in
durable storage. A line torn by a crash is skipped by the reader and closed off by the next writer.
"""

from __future__ import annotations

import errno
import json
import os
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Literal

from distrl.core.errors import DeviceError, StoreFullError

PREFIX = "ledger-"
REMEMBERED = 10_000
"""Finished episodes a device that are recognised when they are reported again."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """All entries of a folder of ledgers."""

    started: set[str] = field(default_factory=set)
    """Ids of episodes that were begun."""
    finished: set[str] = field(default_factory=set)
    """Ids of episodes whose trajectory is durable."""


class LedgerFile:
    """The ledger of one device. Not safe for use by several threads.

    ``append`` raises ``StoreFullError`` when the disk is full and ``DeviceError`` when the file cannot be written.
    """

    def __init__(self, directory: Path, device_id: str) -> None:
        self.path = directory / f"{PREFIX}{device_id}.jsonl"
        self._device = device_id
        self._file: FileIO | None = None
        self._finished: dict[str, None] = {}
        """The latest finished ids, oldest first: an outbox offers no older one again."""

    def append(self, entry: Literal["started", "finished"], episode: str, *, time_ms: int, outcome: str = "") -> None:
        """Add a line. A ``finished`` one is forced to the disk, and only the first of an episode is written."""
        line: dict[str, str | int] = {"entry": entry, "episode": episode, "device": self._device, "time_ms": time_ms}
        if outcome:
            line["outcome"] = outcome
        try:
            file = self._file or self._open()
            if entry == "started":
                _write(file, line)
            elif episode not in self._finished:
                _write(file, line)
                os.fsync(file.fileno())
                self._remember(episode)
        except OSError as error:
            self.close()
            kind = StoreFullError if error.errno == errno.ENOSPC else DeviceError
            raise kind(f"cannot write the ledger {self.path}: {error.strerror}") from error

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _open(self) -> FileIO:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._finished.clear()
        torn = False
        if self.path.exists():
            with self.path.open("rb") as lines:
                for line in lines:
                    torn = not line.endswith(b"\n")
                    if (entry := _parse(line)) is not None and entry[0] == "finished":
                        self._remember(entry[1])
        # Unbuffered: what a failed write leaves behind in a buffer would come out later.
        self._file = FileIO(self.path, "ab")
        if torn:
            self._file.write(b"\n")
        return self._file

    def _remember(self, episode: str) -> None:
        self._finished[episode] = None
        if len(self._finished) > REMEMBERED:
            del self._finished[next(iter(self._finished))]


def read_ledger(directory: Path) -> Ledger:
    """The entries of every ledger in ``directory`` and below."""
    whole = Ledger()
    for path in sorted(directory.rglob(f"{PREFIX}*.jsonl")):
        with path.open("rb") as lines:
            for line in lines:
                if (entry := _parse(line)) is not None:
                    (whole.finished if entry[0] == "finished" else whole.started).add(entry[1])
    return whole


def _write(file: FileIO, line: dict[str, str | int]) -> None:
    data = json.dumps(line).encode() + b"\n"
    if file.write(data) != len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _parse(line: bytes) -> tuple[str, str] | None:
    """The kind of entry and the episode's id; ``None`` for a line torn by a crash in the middle of a write."""
    try:
        entry = json.loads(line)
        return str(entry["entry"]), str(entry["episode"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
