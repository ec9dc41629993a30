"""Weights in the store: how many stay, what happens to those that went, and that none goes that may still be fetched."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distrl.connectors.embedded import EmbeddedBus
from distrl.connectors.folder import FolderStore
from distrl.core.codec import Codec
from distrl.core.config import parse_config
from distrl.core.contracts.clock import SystemClock
from distrl.core.contracts.policy import TrainablePolicy
from distrl.core.contracts.store import BlobStat
from distrl.core.contracts.topic import run_topics
from distrl.core.errors import BlobNotFoundError, ConfigError, StoreUnavailableError
from distrl.core.runtime.activity import Activity
from distrl.core.runtime.event_writer import EventWriter
from distrl.core.runtime.weights import (
    WeightsFollower,
    WeightsPublisher,
    dispensable,
    fetch_weights,
    find_version,
    stored_version,
)

MINUTE_NS = 60_000_000_000


class Policy:
    """Saves its number."""

    base_model = ""
    number = 0

    def save(self, path: Path) -> None:
        path.write_text(str(self.number))


class Learner:
    """Publishes version after version, a minute apart by the store's clock."""

    def __init__(self, bus: EmbeddedBus, store: FolderStore, directory: Path, *, kept: int) -> None:
        self._policy = Policy()
        self._store = store
        clock = SystemClock()
        writer = EventWriter(
            bus.producer(),
            Codec(),
            run="run",
            node="learner",
            role="learner",
            clock=clock,
            activity=Activity(clock),
            stop=threading.Event(),
            patience_s=5.0,
        )
        self._publisher = WeightsPublisher(
            store,
            writer,
            run="run",
            policy="factored",
            epoch=1,
            options="{}",
            work_dir=directory,
            patience_s=1.0,
            kept=kept,
        )

    def publish(self, count: int) -> None:
        for _ in range(count):
            for stat in self._store.list("run/weights/"):
                path = self._store._root / stat.key
                modified = path.stat().st_mtime_ns - MINUTE_NS
                os.utime(path, ns=(modified, modified))
            self._publisher.publish(
                cast(TrainablePolicy, self._policy),
                self._policy.number,
                ingested=0,
                allowance=-1,
                live_collectors=1,
                max_lag=2,
            )
            self._policy.number += 1

    def stored(self) -> list[int | None]:
        return [stored_version(stat.key) for stat in self._store.list("run/weights/")]


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[EmbeddedBus]:
    with EmbeddedBus(tmp_path / "log") as bus:
        bus.admin().create(run_topics("run", partitions=1, replication=1, retention_ms=None, max_record_bytes=100_000))
        yield bus


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "store")


def test_the_newest_and_the_first_stay(bus: EmbeddedBus, store: FolderStore, tmp_path: Path) -> None:
    learner = Learner(bus, store, tmp_path, kept=4)
    learner.publish(10)
    assert learner.stored() == [0, 6, 7, 8, 9]


def test_all_stay_where_that_is_asked(bus: EmbeddedBus, store: FolderStore, tmp_path: Path) -> None:
    learner = Learner(bus, store, tmp_path, kept=0)
    learner.publish(10)
    assert learner.stored() == list(range(10))


def test_what_an_earlier_learner_left_goes_at_the_first_version(
    bus: EmbeddedBus, store: FolderStore, tmp_path: Path
) -> None:
    Learner(bus, store, tmp_path, kept=0).publish(30)
    later = Learner(bus, store, tmp_path, kept=20)
    later._policy.number = 30
    later.publish(1)
    assert later.stored() == [0, *range(11, 31)]


def test_what_may_still_be_fetched_stays(bus: EmbeddedBus, store: FolderStore, tmp_path: Path) -> None:
    learner = Learner(bus, store, tmp_path, kept=4)
    learner.publish(5)
    for stat in store.list("run/weights/"):
        os.utime(store._root / stat.key)  # as if all had been published within a second
    policy = learner._policy
    for _ in range(5):
        learner._publisher.publish(
            cast(TrainablePolicy, policy), policy.number, ingested=0, allowance=-1, live_collectors=1, max_lag=2
        )
        policy.number += 1
    assert learner.stored() == list(range(10))
    learner.publish(1)
    assert learner.stored() == [0, 7, 8, 9, 10]


def test_a_store_that_fails_to_tidy_stops_no_learner(
    bus: EmbeddedBus, store: FolderStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = Learner(bus, store, tmp_path, kept=4)
    learner.publish(4)

    def away(*_: Any, **__: Any) -> None:
        raise StoreUnavailableError("the store is away")

    with monkeypatch.context() as patch:
        patch.setattr(store, "delete", away)
        learner.publish(4)
    assert learner.stored() == list(range(8))
    learner.publish(1)
    assert learner.stored() == [0, 5, 6, 7, 8]


def test_a_version_that_went_is_said_with_those_that_are_there(
    bus: EmbeddedBus, store: FolderStore, tmp_path: Path
) -> None:
    Learner(bus, store, tmp_path, kept=4).publish(10)
    fetch_weights(store, find_version(bus, Codec(), "run", 0), tmp_path / "first")
    assert (tmp_path / "first").read_text() == "0"
    with pytest.raises(BlobNotFoundError, match=r"version 3 is no longer in the store .* there are 0, 6 to 9"):
        fetch_weights(store, find_version(bus, Codec(), "run", 3), tmp_path / "gone")
    assert not (tmp_path / "gone").exists()


def test_a_collector_takes_the_newest_in_place_of_one_that_went(
    bus: EmbeddedBus, store: FolderStore, tmp_path: Path
) -> None:
    learner = Learner(bus, store, tmp_path, kept=4)
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / ".cut-short.part").write_bytes(b"half")
    follower = WeightsFollower(bus, Codec(), store, "run", work_dir=tmp_path, clock=SystemClock())
    assert list((tmp_path / "weights").iterdir()) == []
    learner.publish(2)
    assert follower.poll()
    assert follower.update is not None
    assert follower.update.version == 1
    learner.publish(1)
    store.delete("run/weights/00000002-1.safetensors")
    assert not follower.poll()
    assert (follower.update.version, follower.path.read_text()) == (1, "1")
    learner.publish(1)
    assert follower.poll()  # at once: only what failed waits before it is tried again
    assert (follower.update.version, follower.path.read_text()) == (3, "3")
    follower.close()


@given(versions=st.sets(st.tuples(st.integers(0, 300), st.integers(1, 3)), max_size=60), kept=st.integers(0, 30))
def test_of_any_versions_the_newest_and_the_first_stay(versions: set[tuple[int, int]], kept: int) -> None:
    stats = [BlobStat(f"run/weights/{version:08d}-{epoch}.safetensors", 1, 0) for version, epoch in versions]
    gone = {stored_version(stat.key) for stat in dispensable(stats, kept=kept)}
    numbers = sorted({version for version, _ in versions})
    assert gone.isdisjoint(numbers[:1] + numbers[len(numbers) - kept :] if kept else numbers)
    if kept:
        assert len(set(numbers) - gone) == min(len(numbers), kept + 1) or len(numbers) <= kept


@pytest.mark.parametrize(
    ("kept", "max_lag", "fits"), [(0, 8, True), (10, 8, True), (9, 8, False), (2, 0, True), (1, 0, False)]
)
def test_a_collector_s_versions_must_be_kept(kept: int, max_lag: int, fits: bool) -> None:
    table = {"learner": {"weights_kept": kept, "max_lag": max_lag}}
    if fits:
        assert parse_config(table).learner.weights_kept == kept
    else:
        with pytest.raises(ConfigError, match="learner: weights_kept"):
            parse_config(table)
