"""A number over time in bounded memory. Used by ``core.runtime.history`` for every curve of a report."""

from __future__ import annotations

from array import array
from collections.abc import Iterator


class Series:
    """Points (time, value); when ``limit`` is reached, neighbours are merged into their mean.

    Memory is bounded by ``limit`` points however long a run is, and the shape of the curve stays: every point then
    stands for the same number of values.
    """

    def __init__(self, limit: int = 512) -> None:
        if limit < 2 or limit % 2:
            raise ValueError("limit must be even and at least 2")
        self._limit = limit
        self._times = array("d")
        self._values = array("d")
        self._per_point = 1
        self._pending: list[tuple[float, float]] = []

    def add(self, time_ms: float, value: float) -> None:
        """``time_ms``: milliseconds since the epoch; should not go back."""
        self._pending.append((time_ms, value))
        if len(self._pending) < self._per_point:
            return
        self._append(self._pending)
        self._pending = []
        if len(self._times) >= self._limit:
            self._halve()

    def points(self) -> list[tuple[float, float]]:
        """All points, oldest first; the last may stand for fewer values."""
        return list(self)

    def __iter__(self) -> Iterator[tuple[float, float]]:
        yield from zip(self._times, self._values, strict=True)
        if self._pending:
            yield _mean(self._pending)

    def __len__(self) -> int:
        return len(self._times) + bool(self._pending)

    def _append(self, pending: list[tuple[float, float]]) -> None:
        time_ms, value = _mean(pending)
        self._times.append(time_ms)
        self._values.append(value)

    def _halve(self) -> None:
        old = list(zip(self._times, self._values, strict=True))
        self._times, self._values = array("d"), array("d")
        for left, right in zip(old[::2], old[1::2], strict=True):
            self._append([left, right])
        self._per_point *= 2


def _mean(points: list[tuple[float, float]]) -> tuple[float, float]:
    return sum(time for time, _ in points) / len(points), sum(value for _, value in points) / len(points)
