"""The store contract on the folder, and what only a folder can suffer."""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from store_suite import MEDIA_TYPE, MIB, Corrupt, OpenStore, StoreContract, noise, run_python

from distrl.connectors.folder import FolderStore
from distrl.core.contracts.store import BlobRef, Leftovers
from distrl.core.errors import (
    BlobExistsError,
    BlobNotFoundError,
    InvalidKeyError,
    StoreError,
    StoreFullError,
)

SOURCE_BYTES = 32 * MIB

WRITER = """
import sys
from pathlib import Path
{store_code}
for number in range(1_000_000):
    print(number, flush=True)
    store.put_file(f"torn/{{number % 3}}", Path(sys.argv[1]), media_type="image/png")
"""

REMOVER = """
import sys, threading
{store_code}
stop = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), stop.set())).start()
print("ready", flush=True)
removed = 0
while not stop.is_set():
    for stat in store.list("race/"):
        removed += store.delete_older(stat.key, 1_500_000_000_000)
print(removed, flush=True)
"""


class TestFolderStore(StoreContract):
    @pytest.fixture
    def open_store(self, tmp_path_factory: pytest.TempPathFactory) -> OpenStore:
        path = tmp_path_factory.mktemp("store")
        return lambda: FolderStore(path)

    @pytest.fixture
    def store_code(self, open_store: OpenStore) -> str:
        path = folder(open_store()).parent
        return f"from distrl.connectors.folder import FolderStore; from pathlib import Path; store = FolderStore(Path({str(path)!r}))"

    @pytest.fixture
    def corrupt(self, open_store: OpenStore) -> Corrupt:
        def put_other(ref: BlobRef, data: bytes) -> None:
            (folder(open_store()) / ref.key).write_bytes(data)

        return put_other

    # --- what only a folder can suffer ------------------------------------------------------------

    def test_a_killed_writer_leaves_nothing_half(self, open_store: OpenStore, store_code: str, tmp_path: Path) -> None:
        store = open_store()
        source = tmp_path / "source"
        source.write_bytes(noise(1 << 16) * (SOURCE_BYTES >> 16))
        digest = hashlib.sha256(source.read_bytes()).hexdigest()
        temporary = folder(store).parent / ".tmp"
        for _ in range(5):
            child = run_python(WRITER.format(store_code=store_code), str(source))
            try:
                assert child.stdout is not None
                for _ in range(4):
                    child.stdout.readline()
                kept = set(temporary.iterdir())
                while child.poll() is None and not any(half(path) for path in set(temporary.iterdir()) - kept):
                    time.sleep(0.001)  # the test's own time limit bounds it
            finally:
                child.kill()
                child.communicate()
            found = list(store.list())
            assert found
            for stat in found:
                ref = BlobRef(store.bucket, stat.key, SOURCE_BYTES, digest, "image/png")
                with store.open(ref) as stream:
                    while stream.read(MIB):
                        pass
        assert {stat.key for stat in store.list()} == {"torn/0", "torn/1", "torn/2"}
        assert any(half(path) for path in temporary.iterdir())  # some kill did leave one, out of sight

    def test_what_dead_writers_left_is_swept_and_a_living_one_is_not(self, open_store: OpenStore) -> None:
        open_store().put("k", b"1", media_type=MEDIA_TYPE)
        temporary = folder(open_store()).parent / ".tmp"
        (temporary / "dead").write_bytes(b"half")
        os.utime(temporary / "dead", (1_000_000_000, 1_000_000_000))
        (temporary / "alive").write_bytes(b"half")
        open_store().put("k", b"2", media_type=MEDIA_TYPE)
        assert [path.name for path in temporary.iterdir()] == ["alive"]

    def test_what_dead_writers_left_is_told_and_removed(self, open_store: OpenStore) -> None:
        store = open_store()
        store.put("k", b"1", media_type=MEDIA_TYPE)
        now = store.time_ms()
        temporary = folder(store).parent / ".tmp"
        (temporary / "dead").write_bytes(b"half")
        os.utime(temporary / "dead", (1_000_000_000, 1_000_000_000))
        (temporary / "alive").write_bytes(b"half")
        assert store.leftovers("any/", now, remove=False) == Leftovers(1, 4)
        assert store.leftovers("any/", now, remove=True) == Leftovers(1, 4)
        assert [path.name for path in temporary.iterdir()] == ["alive"]

    def test_no_renewal_falls_between_the_look_and_the_removal(self, open_store: OpenStore, store_code: str) -> None:
        """One process ages and removes an object as fast as it can, another puts it again: a put that has returned holds."""
        store = open_store()
        child = run_python(REMOVER.format(store_code=store_code))
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            ref = store.put_content("race", b"content", media_type=MEDIA_TYPE)
            child.stdout.readline()
            for _ in range(3000):
                with contextlib.suppress(FileNotFoundError):
                    os.utime(folder(store) / ref.key, (1_000_000_000, 1_000_000_000))
                store.put_content("race", b"content", media_type=MEDIA_TYPE)
                assert store.get(ref) == b"content"
        finally:
            child.stdin.close()
            removed = int(child.stdout.read())
            child.wait()
            child.stdout.close()
        assert removed > 0

    def test_a_full_disk_is_said_and_leaves_nothing(self, tiny_disk: Path, tmp_path: Path) -> None:
        store = FolderStore(tiny_disk)
        kept = store.put("kept", b"1", media_type=MEDIA_TYPE)
        (tmp_path / "big").write_bytes(noise(4 * MIB))
        with pytest.raises(StoreFullError) as full:
            store.put("k", noise(4 * MIB), media_type=MEDIA_TYPE)
        assert full.value.retriable
        with pytest.raises(StoreFullError):
            store.put_content("c", noise(4 * MIB), media_type=MEDIA_TYPE)
        with pytest.raises(StoreFullError):
            store.put_file("f", tmp_path / "big", media_type=MEDIA_TYPE)
        large = FolderStore(tmp_path / "elsewhere").put("k", noise(4 * MIB), media_type=MEDIA_TYPE)
        with pytest.raises(StoreFullError):
            FolderStore(tmp_path / "elsewhere").get_file(large, tiny_disk / "copy")
        assert [stat.key for stat in store.list()] == ["kept"]
        assert list((tiny_disk / ".tmp").iterdir()) == []
        assert store.get(kept) == b"1"
        assert store.put("k", noise(MIB // 4), media_type=MEDIA_TYPE).size == MIB // 4

    def test_a_read_only_disk_is_said(self, tiny_disk: Path) -> None:
        store = FolderStore(tiny_disk)
        ref = store.put("kept", b"1", media_type=MEDIA_TYPE)
        subprocess.run(["mount", "-o", "remount,ro", str(tiny_disk)], check=True)
        for call in (
            lambda: store.put("k", b"1", media_type=MEDIA_TYPE),
            lambda: store.delete("kept"),
            lambda: store.ping(),
        ):
            with pytest.raises(StoreError, match="permissions") as refused:
                call()
            assert not refused.value.retriable
        assert store.get(ref) == b"1"

    def test_links_do_not_lead_out(self, open_store: OpenStore, tmp_path: Path) -> None:
        store = open_store()
        store.ping()
        (tmp_path / "secret").write_bytes(b"secret")
        (folder(store) / "out").symlink_to(tmp_path)
        (folder(store) / "file").symlink_to(tmp_path / "secret")
        digest = hashlib.sha256(b"secret").hexdigest()
        for key in ("out/secret", "file"):
            with pytest.raises(InvalidKeyError):
                store.get(BlobRef(store.bucket, key, 6, digest, MEDIA_TYPE))
        for call in (
            lambda: store.put("out/new", b"1", media_type=MEDIA_TYPE),
            lambda: store.stat("out/secret"),
            lambda: store.delete("out/secret"),
            lambda: list(store.list("out/")),
        ):
            with pytest.raises(InvalidKeyError):
                call()
        assert list(store.list()) == []
        store.put("file", b"ours", media_type=MEDIA_TYPE)  # takes the link's place, not the file's behind it
        assert sorted(path.name for path in tmp_path.iterdir()) == ["secret"]
        assert (tmp_path / "secret").read_bytes() == b"secret"

    def test_an_object_is_no_folder_of_others(self, open_store: OpenStore) -> None:
        store = open_store()
        store.put("a", b"1", media_type=MEDIA_TYPE)
        store.put("b/c", b"1", media_type=MEDIA_TYPE)
        for key in ("a/b", "a/b/c", "b"):
            for if_absent in (False, True):
                with pytest.raises((InvalidKeyError, BlobExistsError)):
                    store.put(key, b"2", media_type=MEDIA_TYPE, if_absent=if_absent)
        for key in ("a/b", "b"):
            with pytest.raises(BlobNotFoundError):
                store.get(BlobRef(store.bucket, key, 1, hashlib.sha256(b"1").hexdigest(), MEDIA_TYPE))
            with pytest.raises(BlobNotFoundError):
                store.stat(key)
        assert [stat.key for stat in store.list()] == ["a", "b/c"]

    def test_foreign_files_are_not_listed(self, open_store: OpenStore) -> None:
        store = open_store()
        store.put("k", b"1", media_type=MEDIA_TYPE)
        (folder(store) / "back\\slash").write_bytes(b"1")
        os.mkfifo(folder(store) / "pipe")
        assert [stat.key for stat in store.list()] == ["k"]
        with pytest.raises(StoreError):  # and no read waits for a writer that never comes
            store.get(BlobRef(store.bucket, "pipe", 1, "0" * 64, MEDIA_TYPE))

    def test_emptied_folders_go_while_others_write_into_them(self, open_store: OpenStore) -> None:
        def work(number: int) -> None:
            store = open_store()
            for _ in range(100):
                ref = store.put(f"deep/er/{number}", b"1", media_type=MEDIA_TYPE)
                assert store.get(ref) == b"1"
                store.delete(ref.key)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))
        assert list(folder(open_store()).iterdir()) == []

    def test_objects_may_be_forced_to_the_disk(self, tmp_path: Path) -> None:
        store = FolderStore(tmp_path, synchronous=True)
        assert store.get(store.put("a/b", b"1", media_type=MEDIA_TYPE)) == b"1"

    @pytest.mark.parametrize("bucket", ["", "..", ".tmp", "a/b", "UPPER", "x" * 64])
    def test_a_bucket_is_a_name(self, tmp_path: Path, bucket: str) -> None:
        with pytest.raises(InvalidKeyError):
            FolderStore(tmp_path, bucket)

    def test_buckets_of_one_folder_are_apart(self, tmp_path: Path) -> None:
        ref = FolderStore(tmp_path, "one").put("k", b"1", media_type=MEDIA_TYPE)
        assert list(FolderStore(tmp_path, "two").list()) == []
        with pytest.raises(InvalidKeyError):
            FolderStore(tmp_path, "two").get(ref)

    @pytest.fixture
    def tiny_disk(self, tmp_path: Path) -> Iterator[Path]:
        """A file system of one mebibyte."""
        path = tmp_path / "disk"
        path.mkdir()
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(path)], capture_output=True, text=True, check=False
        )
        if mounted.returncode != 0:
            pytest.skip(f"this user may not mount a small disk: {mounted.stderr.strip()}")
        try:
            yield path
        finally:
            subprocess.run(["umount", "-l", str(path)], check=True)


def half(path: Path) -> bool:
    """Whether a temporary file is there with something, and not all, in it."""
    with contextlib.suppress(FileNotFoundError):
        return 0 < path.stat().st_size < SOURCE_BYTES
    return False


def folder(store: object) -> Path:
    """Where the objects of a folder store lie."""
    assert isinstance(store, FolderStore)
    return store._root
