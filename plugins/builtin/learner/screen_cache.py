"""Decoded screens in memory, by content: replay meets the same screen many times. Used by learners; one thread."""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol, runtime_checkable

from distrl.core.contracts.events import ObservationRecord
from distrl.core.contracts.observation import Observation, Screenshot
from distrl.core.contracts.role import Artefacts


@runtime_checkable
class ScreenReducer(Protocol):
    """A policy that can say how little of a screenshot it needs."""

    def reduce(self, screenshot: Screenshot) -> Screenshot:
        """All that the policy sees of it; idempotent."""


class ScreenCache:
    """Observations read through the artefacts, screens reduced by the policy if it can, the least recently used ones let go
    beyond ``max_bytes``."""

    def __init__(self, artefacts: Artefacts, policy: object, max_bytes: int) -> None:
        self._artefacts = artefacts
        self._reducer = policy if isinstance(policy, ScreenReducer) else None
        self._max_bytes = max_bytes
        self._bytes = 0
        self._kept: OrderedDict[str, Screenshot] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def observation(self, record: ObservationRecord) -> Observation:
        """The observation that a record stands for. A UI tree is left out where the screenshot is kept reduced: a policy that
        reduces screens looks at nothing else."""
        if self._reducer is None or record.screenshot is None:
            return self._artefacts.observation(record)
        digest = record.screenshot.sha256
        kept = self._kept.get(digest)
        if kept is not None:
            self._kept.move_to_end(digest)
            return Observation(record.time_ms, kept)
        seen = self._artefacts.observation(record).screenshot
        if seen is None:
            return Observation(record.time_ms, None)
        kept = self._reducer.reduce(seen)
        self._kept[digest] = kept
        self._bytes += len(kept.data)
        while self._bytes > self._max_bytes:
            _, gone = self._kept.popitem(last=False)
            self._bytes -= len(gone.data)
        return Observation(record.time_ms, kept)
