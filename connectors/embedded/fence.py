"""Fences of the embedded log: of all producers with one fence's name, only the newest may write.

A fence is a small file that holds an epoch. Who takes the fence raises the epoch; who writes under it keeps a shared lock
on the file from looking at the epoch until its records are committed. Raising waits for these locks, so when
``take`` returns no older holder can add a record any more. Used by ``producer``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from distrl.connectors.embedded.database import Database, Synchronous, create
from distrl.core.errors import FencedError

SCHEMA = "CREATE TABLE fence (name TEXT NOT NULL, epoch INTEGER NOT NULL);"


class Fence:
    """The holder's side of the fence ``name``, which it takes when it is made."""

    def __init__(self, folder: Path, name: str, *, synchronous: Synchronous, wait_s: float) -> None:
        self.name = name
        # The digest keeps any name inside the folder. No write-ahead log: there, readers would not hold up a writer.
        path = folder / "fences" / f"{hashlib.sha256(name.encode()).hexdigest()}.db"
        create(path, SCHEMA, journal="DELETE")
        self._database = Database(path, synchronous=synchronous, wait_s=wait_s)
        try:
            with self._database.transaction():
                row = self._database.row("SELECT epoch FROM fence")
                if row is None:
                    self._database.execute("INSERT INTO fence VALUES (?, 1)", (name,))
                else:
                    self._database.execute("UPDATE fence SET epoch = epoch + 1")
                self.epoch: int = 1 if row is None else row[0] + 1
        except BaseException:
            self._database.close()
            raise

    @contextmanager
    def held(self) -> Iterator[None]:
        """Within, no one can take the fence. Raises ``FencedError`` if someone has."""
        with self._database.transaction("DEFERRED"):
            row = self._database.row("SELECT epoch FROM fence")
            if row is None or row[0] != self.epoch:
                raise FencedError(
                    f"another producer holds the fence {self.name!r} now: this one was replaced and must stop"
                )
            yield

    def close(self) -> None:
        self._database.close()
