"""One behaviour suite of the store contract, inherited by the tests of every implementation.

A subclass of ``StoreContract`` gives the fixtures ``open_store`` (makes a store; all that it makes hold the same objects, as
those of several nodes do), ``store_code`` (Python that makes one in another process) and ``corrupt`` (puts other bytes where an
object lies, behind the contract's back). Keys lie below ``base``, which is new for each test.
"""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
import threading
import time
import tracemalloc
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

import distrl
from distrl.core.contracts.store import BlobRef, BlobStore
from distrl.core.errors import (
    BlobCorruptError,
    BlobExistsError,
    BlobNotFoundError,
    InvalidKeyError,
    StoreError,
)

OpenStore = Callable[[], BlobStore]
Corrupt = Callable[[BlobRef, bytes], None]
MEDIA_TYPE = "application/octet-stream"
MIB = 1 << 20
PART_BYTES = 5 * MIB
"""Of uploads in parts, where a store has such: the smallest that S3 takes, so that tests reach it cheaply."""
LARGE_BYTES = 200 * MIB
MEMORY_BYTES = 48 * MIB
"""Far less than ``LARGE_BYTES``: what a stream may hold of it."""

HOSTILE_KEYS = [
    "",
    "/",
    ".",
    "..",
    "../x",
    "a/../../x",
    "a/..",
    "./a",
    "a/./b",
    "/etc/passwd",
    "a//b",
    "a/",
    "/a",
    "a\\b",
    "..\\x",
    "a\0b",
    "a\nb",
    "a\x7fb",
    "a\ud800b",
    "a\uffffb",
    "k" * 256,
    "ü" * 128,
    "k/" * 512 + "k",
]
ODD_KEYS = [
    "spa ce/in side",
    "plus+and%20percent%",
    "?query&a=b#fragment",
    "ünïcode/日本語/😀",
    "...",
    "..a/.b",
    "quote'\"<>&;:@=,$!*()",
    "~tilde`^{}[]|",
    "k" * 255,
    "/".join(["p" * 50] * 19),
]
SIZES = [0, 1, 65_536, PART_BYTES, PART_BYTES + 1, 12 * MIB]

CHILD = """
import sys
from distrl.core.errors import BlobExistsError
{store_code}
base, name = sys.argv[1:]
print("ready", flush=True)
sys.stdin.readline()
for number in range(25):
    try:
        store.put(f"{{base}}/{{number:02d}}", name.encode(), media_type="text/plain", if_absent=True)
        print(number, flush=True)
    except BlobExistsError:
        pass
"""


def noise(size: int, seed: int = 0) -> bytes:
    """Bytes that nothing can compress."""
    return random.Random(seed).randbytes(size)


def run_python(code: str, *arguments: str) -> subprocess.Popen[str]:
    """Another process that runs ``code`` with this checkout's package."""
    assert distrl.__file__ is not None
    source = str(Path(distrl.__file__).parent.parent)
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": source},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


class StoreContract:
    """What every ``BlobStore`` does."""

    @pytest.fixture
    def store(self, open_store: OpenStore) -> BlobStore:
        return open_store()

    @pytest.fixture
    def base(self) -> str:
        return f"t-{uuid.uuid4().hex}"

    # --- round trips ------------------------------------------------------------------------------

    @pytest.mark.parametrize("size", SIZES)
    def test_bytes_come_back(self, store: BlobStore, base: str, tmp_path: Path, size: int) -> None:
        data = noise(size)
        ref = store.put(f"{base}/blob", data, media_type="image/png")
        assert ref == BlobRef(store.bucket, f"{base}/blob", size, hashlib.sha256(data).hexdigest(), "image/png")
        assert store.get(ref) == data
        with store.open(ref) as stream:
            assert stream.read() == data
            assert stream.read(1) == b""
        store.get_file(ref, tmp_path / "new" / "copy")
        assert (tmp_path / "new" / "copy").read_bytes() == data
        assert [path.name for path in (tmp_path / "new").iterdir()] == ["copy"]
        stat = store.stat(ref.key)
        assert (stat.key, stat.size) == (ref.key, size)

    @pytest.mark.parametrize("size", SIZES)
    @pytest.mark.parametrize("if_absent", [False, True])
    def test_a_file_comes_back(self, store: BlobStore, base: str, tmp_path: Path, size: int, if_absent: bool) -> None:
        data = noise(size, seed=1)
        (tmp_path / "source").write_bytes(data)
        ref = store.put_file(f"{base}/file", tmp_path / "source", media_type=MEDIA_TYPE, if_absent=if_absent)
        assert ref == BlobRef(store.bucket, f"{base}/file", size, hashlib.sha256(data).hexdigest(), MEDIA_TYPE)
        assert store.get(ref) == data

    def test_a_put_replaces(self, store: BlobStore, base: str) -> None:
        old = store.put(f"{base}/k", b"old content", media_type=MEDIA_TYPE)
        new = store.put(f"{base}/k", b"new", media_type=MEDIA_TYPE)
        assert store.get(new) == b"new"
        with pytest.raises(BlobCorruptError):
            store.get(old)

    @pytest.mark.parametrize("key", ODD_KEYS)
    def test_odd_keys_are_kept_as_they_are(self, store: BlobStore, base: str, key: str) -> None:
        name = f"{base[:6]}{uuid.uuid4().hex[:8]}/{key}"
        ref = store.put(name, key.encode(), media_type=MEDIA_TYPE)
        assert store.get(ref) == key.encode()
        assert store.stat(name).key == name
        assert [stat.key for stat in store.list(name)] == [name]
        assert store.get(store.put(f"{name[:-1]}_", b"2", media_type=MEDIA_TYPE, if_absent=True)) == b"2"
        content = store.put_content(name.rpartition("/")[0], b"3", media_type=MEDIA_TYPE)
        assert store.put_content(name.rpartition("/")[0], b"3", media_type=MEDIA_TYPE) == content
        store.delete(name)
        with pytest.raises(BlobNotFoundError):
            store.stat(name)

    def test_a_stream_is_read_in_any_steps(self, store: BlobStore, base: str) -> None:
        data = noise(3 * MIB + 17)
        ref = store.put(f"{base}/k", data, media_type=MEDIA_TYPE)
        steps = random.Random(0)
        with store.open(ref) as stream:
            parts = []
            while part := stream.read(steps.choice([1, 100, 70_000, 2 * MIB])):
                parts.append(part)
        assert b"".join(parts) == data

    def test_a_stream_may_be_left_early(self, store: BlobStore, base: str) -> None:
        ref = store.put(f"{base}/k", noise(4 * MIB), media_type=MEDIA_TYPE)
        for _ in range(40):  # more than any pool of connections
            with store.open(ref) as stream:
                assert len(stream.read(10)) == 10
        assert len(store.get(ref)) == 4 * MIB

    def test_several_threads_share_a_store(self, store: BlobStore, base: str) -> None:
        def work(number: int) -> bool:
            data = noise(50_000, seed=number)
            ref = store.put(f"{base}/{number}", data, media_type=MEDIA_TYPE)
            return store.get(ref) == data and store.stat(ref.key).size == len(data)

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(work, range(64)))
        assert len(list(store.list(base))) == 64

    # --- verification -----------------------------------------------------------------------------

    @pytest.mark.parametrize(
        "wrong",
        [
            pytest.param(lambda data: data[:-1] + bytes([data[-1] ^ 1]), id="last-byte"),
            pytest.param(lambda data: bytes([data[0] ^ 128]) + data[1:], id="first-byte"),
            pytest.param(lambda data: data[:-1], id="shorter"),
            pytest.param(lambda data: data + b"x", id="longer"),
            pytest.param(lambda data: b"", id="empty"),
        ],
    )
    def test_every_read_notices_other_bytes(
        self, store: BlobStore, base: str, corrupt: Corrupt, tmp_path: Path, wrong: Callable[[bytes], bytes]
    ) -> None:
        data = noise(2 * MIB)
        ref = store.put(f"{base}/k", data, media_type=MEDIA_TYPE)
        corrupt(ref, wrong(data))
        with pytest.raises(BlobCorruptError):
            store.get(ref)
        with pytest.raises(BlobCorruptError):
            store.get_file(ref, tmp_path / "copy")
        assert list(tmp_path.glob("*copy*")) == []
        assert list(tmp_path.glob(".*.part")) == []
        with pytest.raises(BlobCorruptError), store.open(ref) as stream:
            stream.read(ref.size)  # exactly its size: there is no later read that could notice
        with pytest.raises(BlobCorruptError), store.open(ref) as stream:
            list(iter(lambda: stream.read(100_000), b""))

    def test_a_stream_that_failed_keeps_failing(self, store: BlobStore, base: str, corrupt: Corrupt) -> None:
        data = noise(100)
        ref = store.put(f"{base}/k", data, media_type=MEDIA_TYPE)
        corrupt(ref, data[:-1] + b"?")
        with store.open(ref) as stream:
            for _ in range(3):
                with pytest.raises(BlobCorruptError):
                    stream.read()

    def test_an_empty_object_is_verified_too(self, store: BlobStore, base: str, corrupt: Corrupt) -> None:
        ref = store.put(f"{base}/k", b"", media_type=MEDIA_TYPE)
        corrupt(ref, b"not empty")
        with pytest.raises(BlobCorruptError):
            store.get(ref)
        with pytest.raises(BlobCorruptError):
            store.open(replace(ref, sha256="0" * 64))

    # --- what is not there, what is not ours ------------------------------------------------------

    def test_what_is_missing_is_said(self, store: BlobStore, base: str, tmp_path: Path) -> None:
        ref = BlobRef(store.bucket, f"{base}/none", 1, "0" * 64, MEDIA_TYPE)
        with pytest.raises(BlobNotFoundError):
            store.get(ref)
        with pytest.raises(BlobNotFoundError):
            store.open(ref)
        with pytest.raises(BlobNotFoundError):
            store.get_file(ref, tmp_path / "copy")
        with pytest.raises(BlobNotFoundError):
            store.stat(ref.key)
        assert list(store.list(base)) == []
        assert list(tmp_path.iterdir()) == []

    def test_another_bucket_is_refused(self, store: BlobStore, base: str, tmp_path: Path) -> None:
        ref = replace(store.put(f"{base}/k", b"1", media_type=MEDIA_TYPE), bucket="another")
        with pytest.raises(InvalidKeyError):
            store.get(ref)
        with pytest.raises(InvalidKeyError):
            store.open(ref)
        with pytest.raises(InvalidKeyError):
            store.get_file(ref, tmp_path / "copy")

    @pytest.mark.parametrize("key", HOSTILE_KEYS)
    def test_hostile_keys_are_refused_everywhere(self, store: BlobStore, tmp_path: Path, key: str) -> None:
        (tmp_path / "source").write_bytes(b"1")
        ref = BlobRef(store.bucket, key, 1, hashlib.sha256(b"1").hexdigest(), MEDIA_TYPE)
        calls: list[Callable[[], object]] = [
            lambda: store.put(key, b"1", media_type=MEDIA_TYPE),
            lambda: store.put(key, b"1", media_type=MEDIA_TYPE, if_absent=True),
            lambda: store.put_file(key, tmp_path / "source", media_type=MEDIA_TYPE),
            lambda: store.get(ref),
            lambda: store.open(ref),
            lambda: store.get_file(ref, tmp_path / "copy"),
            lambda: store.stat(key),
            lambda: store.delete(key),
            lambda: store.put_content(f"{key}/below", b"1", media_type=MEDIA_TYPE),
        ]
        for call in calls:
            with pytest.raises(InvalidKeyError):
                call()

    @pytest.mark.parametrize("prefix", ["/", "../", "../x", "a//", "./", "a\\", "a\0", "k" * 1025])
    def test_hostile_prefixes_are_refused(self, store: BlobStore, prefix: str) -> None:
        with pytest.raises(InvalidKeyError):
            list(store.list(prefix))

    def test_a_missing_local_file_is_said(self, store: BlobStore, base: str, tmp_path: Path) -> None:
        with pytest.raises(StoreError, match="none"):
            store.put_file(f"{base}/k", tmp_path / "none", media_type=MEDIA_TYPE)
        assert list(store.list(base)) == []

    def test_a_place_that_cannot_be_written_is_said(self, store: BlobStore, base: str, tmp_path: Path) -> None:
        ref = store.put(f"{base}/k", b"1", media_type=MEDIA_TYPE)
        (tmp_path / "file").touch()
        for path in (tmp_path, tmp_path / "file" / "below"):
            with pytest.raises(StoreError, match="cannot write") as refused:
                store.get_file(ref, path)
            assert not refused.value.retriable
        assert [path.name for path in tmp_path.iterdir()] == ["file"]

    def test_deleting_twice_is_once(self, store: BlobStore, base: str) -> None:
        kept = store.put(f"{base}/a/kept", b"1", media_type=MEDIA_TYPE)
        ref = store.put(f"{base}/a/b", b"2", media_type=MEDIA_TYPE)
        store.delete(ref.key)
        store.delete(ref.key)
        store.delete(f"{base}/a")  # a folder of objects is not one
        with pytest.raises(BlobNotFoundError):
            store.get(ref)
        assert store.get(kept) == b"1"

    # --- content addressing -----------------------------------------------------------------------

    def test_the_same_content_is_stored_once(self, store: BlobStore, base: str) -> None:
        data = noise(70_000)
        first = store.put_content(f"{base}/artefacts", data, media_type="image/png")
        assert first.key == f"{base}/artefacts/{hashlib.sha256(data).hexdigest()}"
        again = store.put_content(f"{base}/artefacts/", data, media_type="image/png")
        assert again == first
        store.put_content(f"{base}/artefacts", b"other", media_type="image/png")
        assert len(list(store.list(f"{base}/artefacts/"))) == 2
        assert store.get(first) == data

    def test_putting_content_again_renews_its_age(self, store: BlobStore, base: str) -> None:
        ref = store.put_content(base, b"content", media_type="image/png")
        other = store.put_content(base, b"left alone", media_type="image/png")
        before = store.stat(ref.key), store.stat(other.key)
        time.sleep(1.1)  # S3 tells times in seconds
        store.put_content(base, b"content", media_type="image/png")
        assert store.stat(ref.key).modified_ms > before[0].modified_ms
        assert store.stat(other.key) == before[1]
        assert store.get(ref) == b"content"

    # --- letting go of what is old ----------------------------------------------------------------

    def test_only_what_is_older_is_removed(self, store: BlobStore, base: str) -> None:
        ref = store.put(f"{base}/k", b"1", media_type=MEDIA_TYPE)
        modified = store.stat(ref.key).modified_ms
        assert not store.delete_older(ref.key, modified)
        assert store.get(ref) == b"1"
        assert store.delete_older(ref.key, modified + 1)
        assert list(store.list(f"{base}/")) == []
        assert not store.delete_older(ref.key, modified + 1)

    def test_what_was_renewed_or_put_again_stays(self, store: BlobStore, base: str) -> None:
        content = store.put_content(base, b"again", media_type=MEDIA_TYPE)
        other = store.put(f"{base}/other", b"1", media_type=MEDIA_TYPE)
        time.sleep(1.1)  # S3 tells times by the second
        before = store.time_ms() // 1000 * 1000
        store.put_content(base, b"again", media_type=MEDIA_TYPE)
        replaced = store.put(other.key, b"2", media_type=MEDIA_TYPE)
        assert not store.delete_older(content.key, before)
        assert not store.delete_older(other.key, before)
        assert (store.get(content), store.get(replaced)) == (b"again", b"2")

    def test_the_clock_is_the_store_s_own(self, store: BlobStore, base: str) -> None:
        store.put(f"{base}/before", b"1", media_type=MEDIA_TYPE)
        now = store.time_ms()
        store.put(f"{base}/after", b"1", media_type=MEDIA_TYPE)
        before, after = (store.stat(f"{base}/{name}").modified_ms for name in ("before", "after"))
        assert before - 1000 <= now <= after + 1000
        assert {stat.key for stat in store.list(base)} == {f"{base}/before", f"{base}/after"}

    def test_nothing_unfinished_is_nothing_left_over(self, store: BlobStore, base: str) -> None:
        store.put(f"{base}/k", b"1", media_type=MEDIA_TYPE)
        store.leftovers(f"{base}/", store.time_ms(), remove=True)
        assert [stat.key for stat in store.list(base)] == [f"{base}/k"]

    def test_content_of_the_wrong_size_is_put_right(self, store: BlobStore, base: str, corrupt: Corrupt) -> None:
        ref = store.put_content(base, b"content", media_type="image/png")
        corrupt(ref, b"cont")
        store.put_content(base, b"content", media_type="image/png")
        assert store.get(ref) == b"content"

    def test_renewing_disturbs_no_reader(self, open_store: OpenStore, base: str) -> None:
        data = noise(300_000)
        ref = open_store().put_content(base, data, media_type="image/png")
        stop = threading.Event()

        def renew() -> int:
            store, count = open_store(), 0
            while not stop.is_set():
                assert store.put_content(base, data, media_type="image/png") == ref
                count += 1
            return count

        with ThreadPoolExecutor(2) as pool:
            renewals = [pool.submit(renew) for _ in range(2)]
            try:
                reader = open_store()
                assert all(reader.get(ref) == data for _ in range(60))
            finally:
                stop.set()
            assert all(renewal.result() > 0 for renewal in renewals)

    # --- conditional puts -------------------------------------------------------------------------

    def test_an_existing_key_is_kept(self, store: BlobStore, base: str, tmp_path: Path) -> None:
        ref = store.put(f"{base}/k", b"first", media_type="image/png", if_absent=True)
        (tmp_path / "second").write_bytes(b"second")
        with pytest.raises(BlobExistsError):
            store.put(f"{base}/k", b"second", media_type=MEDIA_TYPE, if_absent=True)
        with pytest.raises(BlobExistsError):
            store.put_file(f"{base}/k", tmp_path / "second", media_type=MEDIA_TYPE, if_absent=True)
        assert store.get(ref) == b"first"
        store.delete(ref.key)
        assert store.get(store.put(f"{base}/k", b"third", media_type=MEDIA_TYPE, if_absent=True)) == b"third"

    def test_a_large_file_meets_an_existing_key(self, store: BlobStore, base: str, tmp_path: Path) -> None:
        ref = store.put(f"{base}/k", b"first", media_type=MEDIA_TYPE)
        (tmp_path / "second").write_bytes(noise(PART_BYTES + 1))
        with pytest.raises(BlobExistsError):
            store.put_file(f"{base}/k", tmp_path / "second", media_type=MEDIA_TYPE, if_absent=True)
        assert store.get(ref) == b"first"

    def test_of_many_threads_exactly_one_wins(self, open_store: OpenStore, base: str) -> None:
        stores = [open_store() for _ in range(6)]
        for number in range(10):
            start = threading.Barrier(len(stores))

            def attempt(index: int, key: str = f"{base}/{number}", start: threading.Barrier = start) -> BlobRef | None:
                start.wait(30)
                try:
                    return stores[index].put(key, b"from %d" % index, media_type=MEDIA_TYPE, if_absent=True)
                except BlobExistsError:
                    return None

            with ThreadPoolExecutor(len(stores)) as pool:
                winners = [ref for ref in pool.map(attempt, range(len(stores))) if ref is not None]
            assert len(winners) == 1
            assert stores[0].get(winners[0])  # it is the winner's content, hash and all

    def test_of_many_processes_exactly_one_wins(self, store: BlobStore, store_code: str, base: str) -> None:
        code = CHILD.format(store_code=store_code)
        children = {name: run_python(code, base, name) for name in ("a", "b", "c")}
        try:
            for child in children.values():
                assert child.stdout is not None
                assert child.stdout.readline() == "ready\n"
            won: dict[int, str] = {}
            for child in children.values():
                assert child.stdin is not None
                child.stdin.write("go\n")
                child.stdin.flush()
            for name, child in children.items():
                out, _ = child.communicate(timeout=60)
                assert child.returncode == 0
                for line in out.split():
                    assert won.setdefault(int(line), name) == name
        finally:
            for child in children.values():
                child.kill()
                child.communicate()
        assert sorted(won) == list(range(25))
        for number, name in won.items():
            sha256 = hashlib.sha256(name.encode()).hexdigest()
            ref = BlobRef(store.bucket, f"{base}/{number:02d}", 1, sha256, "text/plain")
            assert store.get(ref) == name.encode()

    # --- listing ----------------------------------------------------------------------------------

    def test_more_than_a_page_is_listed_in_key_order(self, store: BlobStore, base: str) -> None:
        keys = [f"{base}/run/artefacts/{hashlib.sha256(b'%d' % number).hexdigest()}" for number in range(1100)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda key: store.put(key, key.encode()[-7:], media_type=MEDIA_TYPE), keys))
        found = list(store.list(f"{base}/run/"))
        assert [stat.key for stat in found] == sorted(keys)
        assert {stat.size for stat in found} == {7}
        one = store.stat(keys[0])
        assert abs(next(stat for stat in found if stat.key == keys[0]).modified_ms - one.modified_ms) < 1000
        nine = [key for key in sorted(keys) if key.startswith(f"{base}/run/artefacts/9")]
        assert [stat.key for stat in store.list(f"{base}/run/artefacts/9")] == nine

    def test_more_than_a_page_of_folders_is_listed(self, store: BlobStore, base: str) -> None:
        keys = [f"{base}/{number:04d}{mark}k" for number in range(510) for mark in "-/"]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda key: store.put(key, b"1", media_type=MEDIA_TYPE), keys))
        assert [stat.key for stat in store.list(base)] == sorted(keys)

    def test_folders_come_in_key_order_too(self, store: BlobStore, base: str) -> None:
        names = ["run/a", "run/art/x", "run/art-1", "run-2/a", "run.x/b", "run0/c", "run!", "a b", "ü", "Z"]
        keys = [f"{base}/{name}" for name in names]
        for key in keys:
            store.put(key, b"1", media_type=MEDIA_TYPE)
        assert [stat.key for stat in store.list(f"{base}/")] == sorted(keys)
        assert [stat.key for stat in store.list(f"{base}/run")] == sorted(k for k in keys if "/run" in k)
        assert [stat.key for stat in store.list(f"{base}/run/")] == sorted(k for k in keys if "/run/" in k)
        assert [stat.key for stat in store.list(f"{base}/run/art")] == [f"{base}/run/art-1", f"{base}/run/art/x"]
        assert list(store.list(f"{base}/none/")) == []
        assert list(store.list(f"{base}/Z/")) == []
        assert set(keys) <= {stat.key for stat in store.list()}

    def test_objects_may_go_while_they_are_listed(self, store: BlobStore, base: str) -> None:
        for number in range(20):
            store.put(f"{base}/{number:02d}/k", b"1", media_type=MEDIA_TYPE)
        seen = []
        for stat in store.list(base):
            seen.append(stat.key)
            store.delete(stat.key)
        assert len(seen) == 20
        assert list(store.list(base)) == []

    # --- large objects ----------------------------------------------------------------------------

    @pytest.mark.parametrize("if_absent", [False, True])
    def test_a_large_object_is_never_whole_in_memory(
        self, store: BlobStore, base: str, tmp_path: Path, if_absent: bool
    ) -> None:
        source = tmp_path / "source"
        digest = hashlib.sha256()
        with source.open("wb") as file:
            for number in range(LARGE_BYTES // MIB):
                block = noise(1024, seed=number) * 1024
                digest.update(block)
                file.write(block)
        tracemalloc.start()
        try:
            ref = store.put_file(f"{base}/large", source, media_type=MEDIA_TYPE, if_absent=if_absent)
            _, put_peak = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            store.get_file(ref, tmp_path / "copy")
            _, get_peak = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            with store.open(ref) as stream:
                while stream.read(MIB):
                    pass
            _, open_peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert (ref.size, ref.sha256) == (LARGE_BYTES, digest.hexdigest())
        assert (tmp_path / "copy").stat().st_size == LARGE_BYTES
        source.unlink()
        (tmp_path / "copy").unlink()
        assert max(put_peak, get_peak, open_peak) < MEMORY_BYTES
        store.delete(ref.key)

    # --- the rest ---------------------------------------------------------------------------------

    def test_a_store_answers_and_closes(self, open_store: OpenStore, base: str) -> None:
        with open_store() as store:
            store.ping()
            assert list(store.list(base)) == []
        store.close()
