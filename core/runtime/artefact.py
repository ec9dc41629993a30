"""Screenshots and UI trees on their way: into the store or the event, and back. The runtime makes one for each node.

``StoredArtefacts`` implements ``core.contracts.role.Artefacts``: large artefacts are content-addressed below the run's prefix, so a
repeated screen is stored once; small ones ride inside the event. What is retriable is retried.
"""

from __future__ import annotations

import hashlib
import io
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import structlog
from tenacity import RetryCallState, Retrying, retry_if_exception, wait_exponential

from distrl.core.contracts.clock import Clock
from distrl.core.contracts.events import Blob, ObservationRecord, Trajectory
from distrl.core.contracts.observation import Observation, Screenshot
from distrl.core.contracts.store import BlobStore
from distrl.core.errors import (
    BlobCorruptError,
    DeviceError,
    InvalidEventError,
    MissingPackageError,
    is_retriable,
)
from distrl.core.runtime.blob import blob_ref, inline_blob, inline_bytes, stored_blob

log = structlog.get_logger(__name__)
RAW = "image/x-rgb"
PNG = "image/png"
JSON = "application/json"
REMEMBERED_INLINE_BYTES = 4096
"""Blobs that ride inside events are remembered with their bytes: up to this size each."""

RENEW_SECONDS = 900.0
"""Longest time for which an artefact that was put is taken to be fresh, see ``renewal_s``."""

CORRUPT_READS = 7
"""How often an object is read whose bytes are wrong, within about six seconds; then it is taken for spoiled where it lies."""

T = TypeVar("T")


def renewal_s(grace_hours: float) -> float:
    """How long an artefact that was put need not be put again: an eighth of the grace age of collecting garbage at most, so
    that seven eighths are left for the episode that refers to it to end and reach the log."""
    return min(RENEW_SECONDS, grace_hours * 3600 / 8)


@dataclass(frozen=True, slots=True)
class _Put:
    """What became of an artefact that was put away, and when (monotonic seconds)."""

    blob: Blob
    at: float


class StoredArtefacts:
    """``Artefacts`` over a ``BlobStore``. Safe for use by several threads."""

    def __init__(
        self,
        store: BlobStore,
        *,
        prefix: str,
        inline_bytes: int,
        cache_bytes: int,
        clock: Clock,
        stop: threading.Event | None = None,
        patience_s: float = 60.0,
        remembered: int = 4096,
        renew_s: float = RENEW_SECONDS,
    ) -> None:
        """``prefix``: of the keys, as ``<run>/artefacts``. ``inline_bytes``: artefacts up to this size ride inside the event.
        ``cache_bytes``: of artefacts kept in memory after a read. ``stop``: ends waiting between retries, which go on for
        ``patience_s`` seconds at most. ``remembered``: artefacts put lately that are not put again, for ``renew_s`` seconds each;
        then a put renews the object's age, so ``renew_s`` must stay far below the grace age of collecting garbage (``renewal_s``).
        """
        self._store = store
        self._prefix = prefix
        self._inline_bytes = inline_bytes
        self._cache_bytes = cache_bytes
        self._clock = clock
        self._stop = stop or threading.Event()
        self._patience = patience_s
        self._remembered = remembered
        self._renew = renew_s
        self._lock = threading.Lock()
        self._cache: OrderedDict[str, bytes] = OrderedDict()
        self._cached_bytes = 0
        self._lately: OrderedDict[bytes, _Put] = OrderedDict()

    # --- putting away -----------------------------------------------------------------------------

    def record(self, observation: Observation) -> ObservationRecord:
        """Put an observation's artefacts away and return what goes on the event.

        A raw screenshot becomes a PNG file. Raises ``DeviceError`` for a raw one that has not the size it says and for a
        tree that is no text, and the store's last error once patience or the node's time is over.
        """
        screenshot, tree = observation.screenshot, observation.ui_tree
        return ObservationRecord(
            time_ms=observation.time_ms,
            width=0 if screenshot is None else screenshot.width,
            height=0 if screenshot is None else screenshot.height,
            screenshot=None if screenshot is None else self._put_screenshot(screenshot),
            ui_tree=None if tree is None else self.put(_utf8(tree), JSON),
        )

    def put(self, data: bytes, media_type: str, *, inline: bool = True) -> Blob:
        """Put one artefact away: inside the returned blob if it is small (and ``inline``), else in the store."""
        if inline and len(data) <= self._inline_bytes:
            return inline_blob(data, media_type)
        return self._once(_identity(media_type, data), lambda: self._store_blob(data, media_type))

    def check_in(self, trajectory: Trajectory) -> Trajectory:
        """The same trajectory with all its artefacts in the store: for an event that is too large with them inside."""

        def blob(inside: Blob | None) -> Blob | None:
            if inside is None or inside.inline is None:
                return inside
            return self.put(inside.inline, inside.media_type, inline=False)

        def look(record: ObservationRecord) -> ObservationRecord:
            return replace(record, screenshot=blob(record.screenshot), ui_tree=blob(record.ui_tree))

        final = trajectory.final_observation
        return replace(
            trajectory,
            steps=tuple(replace(step, observation=look(step.observation)) for step in trajectory.steps),
            final_observation=None if final is None else look(final),
        )

    def _put_screenshot(self, screenshot: Screenshot) -> Blob:
        if screenshot.media_type != RAW:
            return self.put(screenshot.data, screenshot.media_type)
        identity = _identity(f"{RAW} {screenshot.width}x{screenshot.height}", screenshot.data)
        return self._once(identity, lambda: self._put_png(png(screenshot)))

    def _put_png(self, data: bytes) -> Blob:
        return inline_blob(data, PNG) if len(data) <= self._inline_bytes else self._store_blob(data, PNG)

    def _store_blob(self, data: bytes, media_type: str) -> Blob:
        return stored_blob(
            self._retried(lambda: self._store.put_content(self._prefix, data, media_type=media_type), "put an artefact")
        )

    def _once(self, identity: bytes, put: Callable[[], Blob]) -> Blob:
        """What ``put`` returned for this artefact lately, or returns now."""
        now = self._clock.monotonic()
        with self._lock:
            known = self._lately.get(identity)
            if known is not None and now - known.at < self._renew:
                self._lately.move_to_end(identity)
                return known.blob
        blob = put()
        if blob.inline is not None and len(blob.inline) > REMEMBERED_INLINE_BYTES:
            return blob
        with self._lock:
            self._lately[identity] = _Put(blob, now)  # the time before the put: the object is at least that fresh
            self._lately.move_to_end(identity)
            while len(self._lately) > self._remembered:
                self._lately.popitem(last=False)
        return blob

    # --- reading ----------------------------------------------------------------------------------

    def read(self, blob: Blob) -> bytes:
        """The artefact's bytes, verified, from memory if it was read lately. Raises ``BlobCorruptError``, ``BlobNotFoundError``,
        and the store's last error once patience or the node's time is over."""
        inside = inline_bytes(blob)
        if inside is not None:
            return inside
        ref = blob_ref(blob)
        with self._lock:
            cached = self._cache.get(ref.sha256)
            if cached is not None:
                self._cache.move_to_end(ref.sha256)
        if cached is None:
            cached = self._retried(lambda: self._store.get(ref), "read an artefact")
            self._keep(ref.sha256, cached)
        elif len(cached) != ref.size:
            raise BlobCorruptError(f"{ref.key}: {len(cached)} bytes where {ref.size} were promised")
        return cached

    def observation(self, record: ObservationRecord) -> Observation:
        """The observation that a record stands for; a screenshot comes as it was stored, mostly a PNG file.
        Raises what ``read`` raises, and ``InvalidEventError`` for a tree that is no text."""
        shot, tree = record.screenshot, record.ui_tree
        screenshot = None if shot is None else Screenshot(record.width, record.height, self.read(shot), shot.media_type)
        try:
            text = None if tree is None else self.read(tree).decode()
        except UnicodeDecodeError as error:
            raise InvalidEventError(f"a UI tree is not UTF-8: {error}") from error
        return Observation(record.time_ms, screenshot, text)

    def _keep(self, sha256: str, data: bytes) -> None:
        with self._lock:
            if len(data) > self._cache_bytes or sha256 in self._cache:
                return
            self._cache[sha256] = data
            self._cached_bytes += len(data)
            while self._cached_bytes > self._cache_bytes:
                _, oldest = self._cache.popitem(last=False)
                self._cached_bytes -= len(oldest)

    # --- retries ----------------------------------------------------------------------------------

    def _retried(self, call: Callable[[], T], action: str) -> T:
        """``call``'s result, tried again with back-off while its error is retriable and there is time; then that error is raised."""
        started = self._clock.monotonic()

        def over(state: RetryCallState) -> bool:
            wait = state.upcoming_sleep
            return self._stop.is_set() or self._clock.monotonic() - started + wait > self._patience

        def sleep(seconds: float) -> None:
            self._clock.wait(self._stop, seconds)

        def say(state: RetryCallState) -> None:
            error = state.outcome.exception() if state.outcome is not None else None
            log.warning(f"could not {action}, trying again", error=str(error), attempt=state.attempt_number)

        corrupt = 0

        def helps(error: BaseException) -> bool:
            """Wrong bytes may be right the next time, if they were spoiled on the way; wrong ones at rest stay so."""
            nonlocal corrupt
            if isinstance(error, BlobCorruptError):
                corrupt += 1
                return corrupt < CORRUPT_READS
            return is_retriable(error)

        return Retrying(
            retry=retry_if_exception(helps),
            wait=wait_exponential(multiplier=0.1, max=5.0),  # 0.1, 0.2, 0.4, ... seconds
            stop=over,
            sleep=sleep,
            before_sleep=say,
            reraise=True,
        )(call)


def png(screenshot: Screenshot) -> bytes:
    """A raw screenshot as a PNG file, packed quickly rather than tightly.

    Raises ``DeviceError`` if there are more or fewer bytes than width and height say, ``MissingPackageError`` without Pillow.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingPackageError("screenshots are packed with Pillow: pip install 'distrl[simulated]'") from error
    size = (screenshot.width, screenshot.height)
    if screenshot.width < 1 or screenshot.height < 1 or len(screenshot.data) != size[0] * size[1] * 3:
        raise DeviceError(f"a raw screenshot of {size[0]} x {size[1]} pixels has {len(screenshot.data)} bytes")
    buffer = io.BytesIO()
    Image.frombytes("RGB", size, screenshot.data).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def _utf8(tree: str) -> bytes:
    try:
        return tree.encode()
    except UnicodeEncodeError as error:
        raise DeviceError(f"a UI tree holds what is no character: {error}") from error


def _identity(kind: str, data: bytes) -> bytes:
    digest = hashlib.sha256(kind.encode())
    digest.update(b"\0")
    digest.update(data)
    return digest.digest()
