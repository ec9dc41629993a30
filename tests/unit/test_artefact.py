"""Screenshots and UI trees into a folder store or the event and back: once, verified, from memory, with patience."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from distrl.connectors.folder import FolderStore
from distrl.core.contracts.events import Blob
from distrl.core.contracts.observation import Observation, Screenshot
from distrl.core.contracts.store import BlobRef
from distrl.core.errors import (
    BlobCorruptError,
    BlobNotFoundError,
    DeviceError,
    InvalidEventError,
    InvalidKeyError,
    StoreError,
    StoreUnavailableError,
)
from distrl.core.runtime.artefact import CORRUPT_READS, StoredArtefacts, png
from distrl.core.runtime.blob import blob_ref, inline_blob, inline_bytes, stored_blob
from distrl.plugins.builtin.image import rgb
from distrl.plugins.testkit.context import ManualClock

WIDTH, HEIGHT = 60, 40


class CountingStore(FolderStore):
    """A folder that counts what is asked of it and fails as often as it is told to."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.puts = 0
        self.gets = 0
        self.failures: list[StoreError] = []
        self.on_call: Callable[[], None] = lambda: None

    def put_content(self, prefix: str, data: bytes, *, media_type: str) -> BlobRef:
        self.puts += 1
        self._maybe_fail()
        return super().put_content(prefix, data, media_type=media_type)

    def get(self, ref: BlobRef) -> bytes:
        self.gets += 1
        self._maybe_fail()
        return super().get(ref)

    def _maybe_fail(self) -> None:
        self.on_call()
        if self.failures:
            raise self.failures.pop(0)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(tmp_path: Path) -> CountingStore:
    return CountingStore(tmp_path / "store")


def make(store: FolderStore, clock: ManualClock, **changes: object) -> StoredArtefacts:
    arguments: dict[str, object] = {
        "prefix": "run/artefacts",
        "inline_bytes": 0,
        "cache_bytes": 1_000_000,
        "clock": clock,
        **changes,
    }
    return StoredArtefacts(store, **arguments)  # type: ignore[arg-type]


def screen(seed: int = 0) -> Screenshot:
    """A raw screen of noise."""
    pixels = np.random.default_rng(seed).integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
    return Screenshot(WIDTH, HEIGHT, pixels.tobytes(), "image/x-rgb")


def look(seed: int = 0, tree: str | None = '{"text": "Größe"}') -> Observation:
    return Observation(123, screen(seed), tree)


def test_an_observation_comes_back_pixel_by_pixel(store: CountingStore, clock: ManualClock) -> None:
    seen = look()
    record = make(store, clock).record(seen)
    assert (record.time_ms, record.width, record.height) == (123, WIDTH, HEIGHT)
    assert record.screenshot is not None
    assert record.ui_tree is not None
    assert (record.screenshot.media_type, record.ui_tree.media_type) == ("image/png", "application/json")
    assert record.screenshot.inline is None
    assert record.screenshot.key == f"run/artefacts/{record.screenshot.sha256}"
    back = make(store, clock).observation(record)
    assert back.ui_tree == seen.ui_tree
    assert back.screenshot is not None
    assert seen.screenshot is not None
    assert np.array_equal(rgb(back.screenshot), rgb(seen.screenshot))
    with Image.open(io.BytesIO(back.screenshot.data)) as image:
        assert (image.format, image.size, image.mode) == ("PNG", (WIDTH, HEIGHT), "RGB")


def test_what_is_not_seen_is_not_recorded(store: CountingStore, clock: ManualClock) -> None:
    artefacts = make(store, clock)
    record = artefacts.record(Observation(1, None, None))
    assert (record.screenshot, record.ui_tree, record.width, record.height) == (None, None, 0, 0)
    assert artefacts.observation(record) == Observation(1, None, None)
    assert store.puts == 0


def test_a_compressed_screenshot_is_kept_as_it_is(store: CountingStore, clock: ManualClock) -> None:
    file = png(screen())
    record = make(store, clock).record(Observation(1, Screenshot(WIDTH, HEIGHT, file, "image/jpeg")))
    assert record.screenshot is not None
    assert record.screenshot.media_type == "image/jpeg"
    assert store.get(blob_ref(record.screenshot)) == file


def test_small_artefacts_ride_inside_the_event(store: CountingStore, clock: ManualClock) -> None:
    artefacts = make(store, clock, inline_bytes=20)
    record = artefacts.record(look(tree="x" * 20))
    assert record.ui_tree == Blob("application/json", 20, hashlib.sha256(b"x" * 20).hexdigest(), inline=b"x" * 20)
    assert record.screenshot is not None
    assert record.screenshot.inline is None
    assert artefacts.record(look(tree="x" * 21)).ui_tree != record.ui_tree
    checked_in = artefacts.put(b"x" * 20, "application/json", inline=False)
    assert (checked_in.inline, checked_in.sha256) == (None, record.ui_tree.sha256)
    assert artefacts.read(checked_in) == artefacts.read(record.ui_tree)


def test_bytes_inside_an_event_are_verified(store: CountingStore, clock: ManualClock) -> None:
    blob = inline_blob(b"content", "text/plain")
    artefacts = make(store, clock)
    assert artefacts.read(blob) == b"content"
    for wrong in (replace(blob, inline=b"contenT"), replace(blob, inline=b"cont"), replace(blob, size=8)):
        with pytest.raises(BlobCorruptError):
            artefacts.read(wrong)


def test_the_same_screen_is_put_once_by_a_node(store: CountingStore, clock: ManualClock) -> None:
    artefacts = make(store, clock)
    first = artefacts.record(look())
    for _ in range(5):
        assert artefacts.record(look()) == first
    assert store.puts == 2  # a screenshot and a tree
    artefacts.record(look(seed=1))
    assert store.puts == 3
    assert make(store, clock).record(look()) == first
    assert len(list(store.list())) == 3


def test_a_screen_put_long_ago_is_renewed(store: CountingStore, clock: ManualClock) -> None:
    artefacts = make(store, clock, renew_s=100.0)
    record = artefacts.record(look(tree=None))
    clock.advance(99)
    assert artefacts.record(look(tree=None)) == record
    assert store.puts == 1
    clock.advance(2)
    assert artefacts.record(look(tree=None)) == record
    assert store.puts == 2
    clock.advance(99)
    artefacts.record(look(tree=None))
    assert store.puts == 2


def test_what_is_remembered_is_bounded(store: CountingStore, clock: ManualClock) -> None:
    artefacts = make(store, clock, remembered=2)
    for seed in (0, 1, 0, 2, 0):  # 0 was used lately, 1 is let go
        artefacts.record(look(seed, tree=None))
    assert store.puts == 3
    artefacts.record(look(1, tree=None))
    assert store.puts == 4


def test_one_media_type_is_not_taken_for_another(store: CountingStore, clock: ManualClock) -> None:
    artefacts = make(store, clock)
    assert artefacts.put(b"same", "text/plain").media_type == "text/plain"
    assert artefacts.put(b"same", "application/json").media_type == "application/json"
    wide = Screenshot(6, 2, bytes(36), "image/x-rgb")
    tall = Screenshot(2, 6, bytes(36), "image/x-rgb")
    assert artefacts.record(Observation(1, wide)).screenshot != artefacts.record(Observation(1, tall)).screenshot


def test_what_was_read_lately_comes_from_memory(store: CountingStore, clock: ManualClock) -> None:
    artefacts = make(store, clock, cache_bytes=250)
    blobs = [artefacts.put(bytes([number]) * 100, "text/plain") for number in range(3)]
    for blob in (blobs[0], blobs[1], blobs[0]):
        assert artefacts.read(blob) == bytes([blobs.index(blob)]) * 100
    assert store.gets == 2
    artefacts.read(blobs[2])  # 300 bytes: the one read longest ago goes
    artefacts.read(blobs[0])
    assert store.gets == 3
    artefacts.read(blobs[1])
    assert store.gets == 4
    with pytest.raises(BlobCorruptError):
        artefacts.read(replace(blobs[1], size=99))


def test_what_is_larger_than_the_memory_is_not_kept(store: CountingStore, clock: ManualClock) -> None:
    artefacts = make(store, clock, cache_bytes=50)
    small, large = artefacts.put(b"s" * 50, "text/plain"), artefacts.put(b"l" * 51, "text/plain")
    for blob in (small, large, large, small):
        artefacts.read(blob)
    assert store.gets == 3


def test_bytes_that_were_spoiled_on_the_way_are_read_again(
    store: CountingStore, clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artefacts = make(store, clock)
    blob = artefacts.put(b"content", "text/plain")
    path = tmp_path / "store" / store.bucket / blob.key
    path.write_bytes(b"contenT")
    waits: list[float] = []

    def wait(event: object, seconds: float) -> bool:
        waits.append(seconds)
        if len(waits) == 3:
            path.write_bytes(b"content")
        return False

    monkeypatch.setattr(clock, "wait", wait)
    assert artefacts.read(blob) == b"content"
    assert len(waits) == 3
    assert 3 < sum(0.1 * 2**number for number in range(CORRUPT_READS - 1)) < 10


def test_tampered_artefacts_are_noticed_and_not_kept(store: CountingStore, clock: ManualClock, tmp_path: Path) -> None:
    artefacts = make(store, clock)
    blob = artefacts.put(b"content", "text/plain")
    path = tmp_path / "store" / store.bucket / blob.key
    path.write_bytes(b"contenT")
    for _ in range(2):
        with pytest.raises(BlobCorruptError):
            artefacts.read(blob)
    path.write_bytes(b"content")
    assert artefacts.read(blob) == b"content"
    store.delete(blob.key)
    assert artefacts.read(blob) == b"content"
    with pytest.raises(BlobNotFoundError):
        make(store, clock).read(blob)


def test_what_is_retriable_is_tried_again(store: CountingStore, clock: ManualClock) -> None:
    artefacts = make(store, clock)
    store.failures = [StoreUnavailableError("away") for _ in range(4)]
    blob = artefacts.put(b"content", "text/plain")
    assert store.puts == 5
    assert clock.monotonic() == pytest.approx(0.1 + 0.2 + 0.4 + 0.8)
    store.failures = [StoreUnavailableError("away")]
    assert artefacts.read(blob) == b"content"


def test_patience_ends_with_the_last_error(store: CountingStore, clock: ManualClock) -> None:
    artefacts = make(store, clock, patience_s=30.0)
    store.failures = [StoreUnavailableError(f"away {number}") for number in range(1000)]
    with pytest.raises(StoreUnavailableError) as last:
        artefacts.put(b"content", "text/plain")
    assert last.value.message == f"away {store.puts - 1}"
    assert 20.0 < clock.monotonic() <= 30.0


def test_what_is_not_retriable_is_raised_at_once(store: CountingStore, clock: ManualClock) -> None:
    store.failures = [InvalidKeyError("no")]
    with pytest.raises(InvalidKeyError):
        make(store, clock).put(b"content", "text/plain")
    assert (store.puts, clock.monotonic()) == (1, 0.0)


def test_a_stop_ends_the_patience(store: CountingStore, clock: ManualClock) -> None:
    stop = threading.Event()
    artefacts = make(store, clock, stop=stop)
    store.failures = [StoreUnavailableError("away") for _ in range(1000)]

    def third_call_stops() -> None:
        if store.puts == 3:
            stop.set()

    store.on_call = third_call_stops
    with pytest.raises(StoreUnavailableError):
        artefacts.put(b"content", "text/plain")
    assert store.puts == 3
    store.failures, store.on_call = [], lambda: None
    assert artefacts.put(b"content", "text/plain").size == 7  # a stopping node still puts away what it has


def test_a_failed_put_is_not_remembered(store: CountingStore, clock: ManualClock) -> None:
    artefacts = make(store, clock)
    store.failures = [InvalidKeyError("no")]
    with pytest.raises(InvalidKeyError):
        artefacts.record(look(tree=None))
    blob = artefacts.record(look(tree=None)).screenshot
    assert blob is not None
    assert store.stat(blob.key).size == blob.size


@pytest.mark.parametrize(
    "shot",
    [
        Screenshot(2, 2, bytes(11), "image/x-rgb"),
        Screenshot(2, 2, bytes(13), "image/x-rgb"),
        Screenshot(0, 2, b"", "image/x-rgb"),
        Screenshot(-2, -2, bytes(12), "image/x-rgb"),
    ],
)
def test_a_screen_of_another_size_is_the_devices_failure(
    store: CountingStore, clock: ManualClock, shot: Screenshot
) -> None:
    with pytest.raises(DeviceError, match="pixels"):
        make(store, clock).record(Observation(1, shot))


def test_a_tree_that_is_no_text_is_said(store: CountingStore, clock: ManualClock) -> None:
    artefacts = make(store, clock)
    with pytest.raises(DeviceError):
        artefacts.record(Observation(1, None, "\ud800"))
    record = artefacts.record(Observation(1, None, "{}"))
    with pytest.raises(InvalidEventError):
        artefacts.observation(replace(record, ui_tree=artefacts.put(b"\xff", "application/json")))


def test_threads_may_share_it(store: CountingStore, clock: ManualClock) -> None:
    artefacts = make(store, clock, cache_bytes=20_000, remembered=3)
    failed: list[BaseException] = []

    def work() -> None:
        try:
            for seed in [0, 1, 2, 3, 4] * 8:
                back = artefacts.observation(artefacts.record(look(seed))).screenshot
                assert back is not None
                assert np.array_equal(rgb(back), rgb(screen(seed)))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


def test_blobs_and_references_stand_for_each_other() -> None:
    ref = BlobRef("bucket", "run/key", 3, "a" * 64, "text/plain")
    assert blob_ref(stored_blob(ref)) == ref
    assert inline_bytes(stored_blob(ref)) is None
    assert inline_bytes(inline_blob(b"", "text/plain")) == b""
    with pytest.raises(InvalidEventError):
        blob_ref(inline_blob(b"abc", "text/plain"))


def test_pillow_is_needed_for_raw_screens_alone(tmp_path: Path) -> None:
    """Another process without Pillow: artefacts import, put and read trees, and name the extra for a raw screen."""
    code = """
import sys
sys.modules["PIL"] = None
from pathlib import Path
from distrl.connectors.folder import FolderStore
from distrl.core.contracts.clock import SystemClock
from distrl.core.contracts.observation import Observation, Screenshot
from distrl.core.errors import MissingPackageError
from distrl.core.runtime.artefact import StoredArtefacts
artefacts = StoredArtefacts(
    FolderStore(Path(sys.argv[1])), prefix="run", inline_bytes=0, cache_bytes=0, clock=SystemClock()
)
seen = Observation(1, None, "{}")
assert artefacts.observation(artefacts.record(seen)) == seen
try:
    artefacts.record(Observation(1, Screenshot(1, 1, bytes(3), "image/x-rgb")))
except MissingPackageError as error:
    assert "distrl[simulated]" in str(error)
else:
    raise SystemExit("a raw screen was packed without Pillow")
assert "numpy" not in sys.modules and "minio" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
