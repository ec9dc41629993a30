"""What the runtime hands to a plugin's factory, for tests: a clock that the test moves, artefacts in memory, a context."""

from __future__ import annotations

import hashlib
import json
import random
import threading
from pathlib import Path

from distrl.core.contracts.clock import Clock
from distrl.core.contracts.events import Blob, ObservationRecord
from distrl.core.contracts.observation import Observation, Screenshot
from distrl.core.contracts.role import RoleContext
from distrl.core.errors import BlobCorruptError, BlobNotFoundError
from distrl.plugins.testkit.sample import NODE, RUN, START_MS, make_observation_record


class ManualClock:
    """A clock that stands still until the test, or something that sleeps, moves it. Safe for use by several threads.

    ``sleep`` and ``wait`` return at once and move it by what they were to wait.
    """

    def __init__(self, time_ms: int = START_MS) -> None:
        self._start_ms = time_ms
        self._seconds = 0.0
        self.set_forward_s = 0.0
        """By how many seconds the wall clock was set, forwards or back; its monotonic time knows nothing of it."""
        self._lock = threading.Lock()

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        if seconds < 0:
            raise ValueError("time does not go back")
        with self._lock:
            self._seconds += seconds

    def time_ms(self) -> int:
        return self._start_ms + round((self.monotonic() + self.set_forward_s) * 1000)

    def monotonic(self) -> float:
        with self._lock:
            return self._seconds

    def sleep(self, seconds: float) -> None:
        self.advance(max(seconds, 0.0))

    def wait(self, event: threading.Event, seconds: float) -> bool:
        if not event.is_set():
            self.advance(max(seconds, 0.0))
        return event.is_set()


class MemoryArtefacts:
    """Artefacts kept in a dictionary. With ``inline`` they ride inside the events, as small ones do in a run."""

    def __init__(self, *, inline: bool = False) -> None:
        self._inline = inline
        self._kept: dict[str, bytes] = {}

    def record(self, observation: Observation) -> ObservationRecord:
        record = make_observation_record(observation)
        if self._inline:
            return record
        return ObservationRecord(
            record.time_ms, record.width, record.height, self._put(record.screenshot), self._put(record.ui_tree)
        )

    def read(self, blob: Blob) -> bytes:
        """The bytes, verified. Raises ``BlobNotFoundError`` or ``BlobCorruptError``."""
        data = blob.inline if blob.inline is not None else self._kept.get(blob.key)
        if data is None:
            raise BlobNotFoundError(f"no object {blob.key!r} in memory")
        if len(data) != blob.size or hashlib.sha256(data).hexdigest() != blob.sha256:
            raise BlobCorruptError(f"object {blob.key!r} is not what its reference promises")
        return data

    def observation(self, record: ObservationRecord) -> Observation:
        screen, tree = record.screenshot, record.ui_tree
        return Observation(
            record.time_ms,
            Screenshot(record.width, record.height, self.read(screen), screen.media_type) if screen else None,
            self.read(tree).decode() if tree else None,
        )

    def _put(self, blob: Blob | None) -> Blob | None:
        if blob is None or blob.inline is None:
            return blob
        key = f"artefacts/{blob.sha256}"
        self._kept[key] = blob.inline
        return Blob(blob.media_type, blob.size, blob.sha256, "memory", key)


def make_context(
    work_dir: Path, *, seed: int = 0, clock: Clock | None = None, artefacts: MemoryArtefacts | None = None
) -> RoleContext:
    """A context as the runtime makes it. The default clock is a ``ManualClock``; what waits for threads of its own needs
    ``SystemClock()``."""
    return RoleContext(
        run=RUN,
        node=NODE,
        seed=seed,
        clock=clock or ManualClock(),
        random=random.Random(json.dumps([seed, NODE])),
        artefacts=artefacts or MemoryArtefacts(),
        work_dir=work_dir,
    )
