"""References that an event or a manifest makes up: none leads out of the bucket, costs memory, or ends a node."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from distrl.connectors.folder import FolderStore
from distrl.core.contracts.clock import SystemClock
from distrl.core.contracts.events import Blob, Envelope, WeightsUpdate
from distrl.core.errors import BlobCorruptError, BlobNotFoundError, InvalidKeyError, StoreError
from distrl.core.runtime.artefact import StoredArtefacts
from distrl.core.runtime.checkpoint import Checkpoints, Covered
from distrl.core.runtime.weights import fetch_weights

SECRET = b"of another folder"
SHA = hashlib.sha256(SECRET).hexdigest()
KEYS = [
    "../secret",
    "run/../../secret",
    "/etc/passwd",
    "run//secret",
    "./secret",
    "run/./secret",
    "..",
    "run/..",
    "run\\..\\secret",
    "run/\0secret",
    "run/\nsecret",
    "x" * 1025,
    "run/" + "x" * 256,
]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FolderStore]:
    (tmp_path / "secret").write_bytes(SECRET)
    with FolderStore(tmp_path / "store") as store:
        store.put("run/artefacts/a", b"a", media_type="text/plain")
        outside = tmp_path / "store" / "secret"  # beside the bucket
        outside.write_bytes(SECRET)
        yield store


def references(store: FolderStore) -> list[Blob]:
    true = Blob("text/plain", len(SECRET), SHA, store.bucket, "")
    return [
        *(replace(true, key=key) for key in KEYS),
        replace(true, bucket="another", key="run/artefacts/a"),
        replace(true, bucket="../" + store.bucket, key="run/artefacts/a"),
        replace(true, bucket="..", key="secret"),
    ]


def test_an_artefact_leads_nowhere_else(store: FolderStore) -> None:
    artefacts = StoredArtefacts(
        store, prefix="run/artefacts", inline_bytes=0, cache_bytes=1_000_000, clock=SystemClock()
    )
    for blob in references(store):
        with pytest.raises(InvalidKeyError):
            artefacts.read(blob)


def test_weights_lead_nowhere_else(store: FolderStore, tmp_path: Path) -> None:
    for blob in references(store):
        update = WeightsUpdate(Envelope("e", "run", "n", 1), "p", 1, 1, 0, blob)
        with pytest.raises(InvalidKeyError):
            fetch_weights(store, update, tmp_path / "weights")
    assert not (tmp_path / "weights").exists()


@pytest.mark.parametrize("size", [0, 2, 10**12, 2**62])
def test_a_size_that_is_made_up_costs_no_memory(store: FolderStore, tmp_path: Path, size: int) -> None:
    ref = replace(store.put("run/artefacts/b", b"b", media_type="text/plain"), size=size)
    with pytest.raises(BlobCorruptError):
        store.get(ref)
    with pytest.raises(BlobCorruptError):
        store.get_file(ref, tmp_path / "copy")


def test_a_manifest_names_only_files_of_its_checkpoint(store: FolderStore, tmp_path: Path) -> None:
    checkpoints = Checkpoints(store, "run", kept=2)
    covered = Covered(epoch=1, version=0, ingested=0, positions={}, buffer={})
    number = checkpoints.save(covered, lambda folder: (folder / "file").write_bytes(b"1") and None, tmp_path / "work")
    [stat] = store.list(f"run/checkpoints/{number:014d}/manifest/")
    path = tmp_path / "store" / store.bucket / stat.key
    honest = json.loads(path.read_bytes())
    other = store.put("other/weights/1", b"2", media_type="text/plain")
    hostile = [
        {"file": {**asdict(other)}},
        {"file": {**honest["files"]["file"], "key": "../../secret", "size": len(SECRET), "sha256": SHA}},
        {"../file": honest["files"]["file"]},
        {".": honest["files"]["file"]},
        {"file": {**honest["files"]["file"], "bucket": "another"}},
    ]
    for files in hostile:
        store.delete(next(iter(store.list(f"run/checkpoints/{number:014d}/manifest/"))).key)
        data = json.dumps({**honest, "files": files}).encode()
        store.put_content(f"run/checkpoints/{number:014d}/manifest", data, media_type="application/json")
        assert checkpoints.newest(tmp_path / "restored") is None, files
    restored = tmp_path / "restored"
    assert not restored.exists() or not list(restored.iterdir())


def test_what_is_wrong_with_a_reference_is_no_reason_to_try_again() -> None:
    assert not any(error.retriable for error in (InvalidKeyError, BlobCorruptError, BlobNotFoundError))
    assert issubclass(InvalidKeyError, StoreError)
