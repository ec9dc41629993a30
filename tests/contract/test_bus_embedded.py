"""The embedded log keeps the bus contract, and what it alone promises: see the classes below."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from bus_suite import BusContract, Stall

from distrl.core.config import BusConfig


class TestEmbeddedBus(BusContract):
    """The contract."""

    @pytest.fixture
    def bus_config(self, tmp_path: Path) -> BusConfig:
        return BusConfig(kind="embedded", path=tmp_path / "log", session_seconds=1.5)

    @pytest.fixture
    def missing_config(self, tmp_path: Path) -> BusConfig:
        (tmp_path / "file").write_text("in the way of a folder")
        return BusConfig(kind="embedded", path=tmp_path / "file" / "log")

    @pytest.fixture
    def stall(self, bus_config: BusConfig) -> Stall:
        """Another process that keeps every partition's write lock."""

        @contextlib.contextmanager
        def stalled() -> Iterator[None]:
            with contextlib.ExitStack() as stack:
                for path in bus_config.path.glob("topics/*/*.db"):
                    connection = stack.enter_context(contextlib.closing(sqlite3.connect(path, isolation_level=None)))
                    connection.execute("BEGIN IMMEDIATE")
                yield

        return stalled
