"""Checkpoints: whole or not there, verified, and bounded in number."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from distrl.connectors.folder import FolderStore
from distrl.core.contracts.bus import TopicPartition
from distrl.core.contracts.events import Envelope, Priority
from distrl.core.errors import BlobCorruptError
from distrl.core.runtime.checkpoint import Checkpoints, Covered

COVERED = Covered(
    epoch=2,
    version=7,
    ingested=40,
    positions={TopicPartition("distrl.run.trajectories", 1): 12},
    buffer={"a": ("distrl.run.trajectories", 1, 3)},
    seen=["a", "b"],
    artefacts=["run/artefacts/a"],
    priorities=[Priority(Envelope("p-1", "run", "", 1_700_000_000_000), "a", "dper", 0.25, version=6)],
)


def write(text: str) -> Callable[[Path], None]:
    def into(directory: Path) -> None:
        (directory / "weights.safetensors").write_bytes(text.encode() * 1000)
        (directory / "state.json").write_text(text)

    return into


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "store")


def test_the_newest_comes_back_as_it_was(store: FolderStore, tmp_path: Path) -> None:
    checkpoints = Checkpoints(store, "run", kept=2)
    assert checkpoints.newest() is None
    checkpoints.save(COVERED, write("one"), tmp_path / "work")
    number = checkpoints.save(COVERED, write("two"), tmp_path / "work")
    newest = Checkpoints(store, "run", kept=2).newest()
    assert newest is not None
    assert (newest.number, newest.covered) == (number, COVERED)
    checkpoints.fetch(newest, tmp_path / "back")
    assert (tmp_path / "back" / "state.json").read_text() == "two"
    assert (tmp_path / "back" / "weights.safetensors").read_bytes() == b"two" * 1000


def test_only_so_many_are_kept_and_runs_do_not_mix(store: FolderStore, tmp_path: Path) -> None:
    checkpoints = Checkpoints(store, "run", kept=2)
    for number in range(5):
        checkpoints.save(COVERED, write(str(number)), tmp_path / "work")
    folders = {stat.key.split("/")[2] for stat in store.list("run/checkpoints/")}
    assert len(folders) == 2
    assert Checkpoints(store, "other", kept=2).newest() is None


def test_one_cut_short_does_not_exist(store: FolderStore, tmp_path: Path) -> None:
    checkpoints = Checkpoints(store, "run", kept=3)
    first = checkpoints.save(COVERED, write("one"), tmp_path / "work")

    def dies(directory: Path) -> None:
        (directory / "state.json").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        checkpoints.save(COVERED, dies, tmp_path / "work")
    store.put("run/checkpoints/00000003000009/state.json", b"{}", media_type="application/json")
    newest = checkpoints.newest()
    assert newest is not None
    assert newest.number == first


def test_one_cut_short_takes_no_other_s_place(store: FolderStore, tmp_path: Path) -> None:
    checkpoints = Checkpoints(store, "run", kept=2)
    numbers = [checkpoints.save(COVERED, write("one"), tmp_path / "work") for _ in range(2)]
    store.put(f"run/checkpoints/{numbers[-1] + 1:014d}/state.json", b"{}", media_type="application/json")
    numbers.append(checkpoints.save(COVERED, write("two"), tmp_path / "work"))
    assert [checkpoint.number for checkpoint in checkpoints.kept()] == [numbers[2], numbers[1]]
    assert {int(stat.key.split("/")[2]) for stat in store.list("run/checkpoints/")} == {numbers[2], numbers[1]}


def test_one_of_an_earlier_release_comes_back(store: FolderStore, tmp_path: Path) -> None:
    checkpoints = Checkpoints(store, "run", kept=2)
    number = checkpoints.save(COVERED, write("one"), tmp_path / "work")
    [stat] = store.list(f"run/checkpoints/{number:014d}/manifest/")
    manifest = json.loads((tmp_path / "store" / store.bucket / stat.key).read_bytes())
    assert manifest.pop("artefacts") == ["run/artefacts/a"]
    assert manifest.pop("priorities") == [["a", "dper", 0.25, 6, 1_700_000_000_000, "p-1"]]
    store.delete(stat.key)
    store.put_content(stat.key.rpartition("/")[0], json.dumps(manifest).encode(), media_type="application/json")
    newest = checkpoints.newest()
    assert newest is not None
    assert newest.covered == replace(COVERED, artefacts=[], priorities=[])


def test_a_manifest_that_was_changed_is_passed_over(store: FolderStore, tmp_path: Path) -> None:
    checkpoints = Checkpoints(store, "run", kept=3)
    first = checkpoints.save(COVERED, write("one"), tmp_path / "work")
    second = checkpoints.save(COVERED, write("two"), tmp_path / "work")
    [manifest] = [stat.key for stat in store.list(f"run/checkpoints/{second:014d}/manifest/")]
    path = tmp_path / "store" / store.bucket / manifest
    path.write_bytes(path.read_bytes().replace(b'"epoch": 2', b'"epoch": 3'))
    newest = checkpoints.newest()
    assert newest is not None
    assert newest.number == first


def test_a_file_that_was_changed_is_refused(store: FolderStore, tmp_path: Path) -> None:
    checkpoints = Checkpoints(store, "run", kept=3)
    checkpoints.save(COVERED, write("one"), tmp_path / "work")
    newest = checkpoints.newest()
    assert newest is not None
    path = tmp_path / "store" / store.bucket / newest.files["state.json"].key
    path.write_text("two")
    with pytest.raises(BlobCorruptError):
        checkpoints.fetch(newest, tmp_path / "back")


def test_one_that_lost_a_file_is_passed_over(store: FolderStore, tmp_path: Path) -> None:
    checkpoints = Checkpoints(store, "run", kept=3)
    first = checkpoints.save(COVERED, write("one"), tmp_path / "work")
    checkpoints.save(COVERED, write("two"), tmp_path / "work")
    newest = checkpoints.newest()
    assert newest is not None
    store.delete(newest.files["weights.safetensors"].key)
    found = checkpoints.newest(tmp_path / "back")
    assert found is not None
    assert found.number == first
    assert (tmp_path / "back" / "state.json").read_text() == "one"


def test_a_replaced_learner_never_ranks_above_its_successor(store: FolderStore, tmp_path: Path) -> None:
    old, new = Checkpoints(store, "run", kept=2), Checkpoints(store, "run", kept=2)
    later = replace(COVERED, epoch=COVERED.epoch + 1)
    successor = new.save(later, write("successor"), tmp_path / "work")
    for _ in range(4):
        old.save(COVERED, write("replaced"), tmp_path / "work")
    newest = new.newest()
    assert newest is not None
    assert (newest.number, newest.covered.epoch) == (successor, later.epoch)
