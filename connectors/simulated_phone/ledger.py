"""What the phone itself knows of its episodes, outside the log: a loss can be proved by comparing the two.

One file a device, one JSON line an entry: ``started`` when an episode is reset, ``finished`` once its collector has it in
durable storage. A line torn by a crash is skipped by the reader and closed off by the next writer.
"""

from __future__ import annotations

import errno
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from distrl.core.errors import DeviceError, StoreFullError

PREFIX = "ledger-"


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
        self._file: BinaryIO | None = None
        self._finished: set[str] | None = None

    def append(self, entry: str, episode: str, *, time_ms: int, outcome: str = "") -> None:
        """Add a line; a ``finished`` one is forced to the disk, and only the first of an episode is kept."""
        try:
            file = self._open()
            if self._finished is not None and entry == "finished" and episode in self._finished:
                return
            line = {"entry": entry, "episode": episode, "device": self._device, "time_ms": time_ms}
            if outcome:
                line["outcome"] = outcome
            file.write(json.dumps(line).encode() + b"\n")
            file.flush()
            if entry == "finished":
                os.fsync(file.fileno())
                if self._finished is not None:
                    self._finished.add(episode)
        except OSError as error:
            kind = StoreFullError if error.errno == errno.ENOSPC else DeviceError
            raise kind(f"cannot write the ledger {self.path}: {error.strerror}") from error

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> BinaryIO:
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("ab+")
            self._file.seek(0)
            data = self._file.read()
            self._finished = _parse(data).finished
            if data and not data.endswith(b"\n"):
                self._file.write(b"\n")
        return self._file


def read_ledger(directory: Path) -> Ledger:
    """The entries of every ledger in ``directory`` and below."""
    whole = Ledger()
    for path in sorted(directory.rglob(f"{PREFIX}*.jsonl")):
        part = _parse(path.read_bytes())
        whole.started.update(part.started)
        whole.finished.update(part.finished)
    return whole


def _parse(data: bytes) -> Ledger:
    ledger = Ledger()
    for line in data.split(b"\n"):
        try:
            entry = json.loads(line)
            kind, episode = entry["entry"], entry["episode"]
        except (ValueError, KeyError, TypeError):
            continue  # empty, or torn by a crash in the middle of a write
        (ledger.finished if kind == "finished" else ledger.started).add(episode)
    return ledger
