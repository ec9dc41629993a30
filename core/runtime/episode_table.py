"""What is known of every trajectory, joined by its id in whatever order the topics are read. Used by ``core.runtime.history``.

One row a trajectory in flat arrays (some 150 bytes), so that a million episodes fit in a supervisor's memory.
The counters are kept as rows change: asking for them costs nothing.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b

from distrl.core.contracts.events import Origin, Trajectory

ORIGINS: tuple[Origin, ...] = ("policy", "demonstration", "imported")
_SEEN, _ABORTED, _TEST, _JUDGED, _INGESTED, _REFUSED = 1, 2, 4, 8, 16, 32
_UNKNOWN = -1


@dataclass(slots=True)
class Count:
    """Distinct trajectories. ``evaluated`` and ``ingested`` count only those that were collected (seen, not aborted)."""

    collected: int = 0
    aborted: int = 0
    evaluated: int = 0
    ingested: int = 0


@dataclass(frozen=True, slots=True)
class EpisodeRow:
    """One judged episode of the policy."""

    ended_ms: int
    kind: str
    success: float


class EpisodeTable:
    """Rows by trajectory id. The first trajectory and the first verdict of an id count, as everywhere."""

    def __init__(self) -> None:
        self._rows: dict[bytes, int] = {}
        self._flags = array("B")
        self._origin = array("B")
        self._kind = array("H")
        self._version = array("q")
        self._ended = array("q")
        self._success = array("d")
        self._ingested_at = array("q")
        self._kinds: list[str] = []
        self.by_origin: dict[Origin, Count] = {origin: Count() for origin in ORIGINS}
        self.staleness: Counter[int] = Counter()
        """Versions that ingested trajectories of the policy lagged, with how many did."""

    # --- what the topics say ----------------------------------------------------------------------

    def trajectory(self, event: Trajectory) -> bool:
        """Returns whether it is new."""
        row = self._row(event.trajectory_id)
        if self._flags[row] & _SEEN:
            return False
        self._flags[row] |= (
            _SEEN | (_ABORTED if event.outcome == "aborted" else 0) | (_TEST if event.split == "test" else 0)
        )
        self._origin[row] = ORIGINS.index(event.origin)
        self._kind[row] = self._kind_number(event.task_kind)
        self._version[row] = event.version
        self._ended[row] = event.ended_ms
        count = self.by_origin[event.origin]
        if event.outcome == "aborted":
            count.aborted += 1
            return True
        count.collected += 1
        count.evaluated += bool(self._flags[row] & _JUDGED)
        count.ingested += bool(self._flags[row] & _INGESTED)
        self._count_staleness(row)
        return True

    def verdict(self, trajectory_id: str, success: float) -> bool:
        """Returns whether it is the first."""
        row = self._row(trajectory_id)
        if self._flags[row] & _JUDGED:
            return False
        self._flags[row] |= _JUDGED
        self._success[row] = success
        if self._is_collected(row):
            self._count(row).evaluated += 1
        return True

    def ingested(self, trajectory_id: str, version: int, *, refused: bool) -> bool:
        """The learner has it (or refused it) while ``version`` was its newest. Returns whether it is the first word of it."""
        row = self._row(trajectory_id)
        if self._flags[row] & _INGESTED:
            return False
        self._flags[row] |= _INGESTED | (_REFUSED if refused else 0)
        self._ingested_at[row] = version
        if self._is_collected(row):
            self._count(row).ingested += 1
            self._count_staleness(row)
        return True

    # --- what readers ask -------------------------------------------------------------------------

    @property
    def total(self) -> Count:
        """Over all origins."""
        counts = self.by_origin.values()
        return Count(
            collected=sum(count.collected for count in counts),
            aborted=sum(count.aborted for count in counts),
            evaluated=sum(count.evaluated for count in counts),
            ingested=sum(count.ingested for count in counts),
        )

    @property
    def kinds(self) -> list[str]:
        """Kinds of task, in order of appearance."""
        return list(self._kinds)

    def kind(self, trajectory_id: str) -> str | None:
        """The task's kind if this is a collected training episode of the policy, else ``None``."""
        row = self._rows.get(_digest(trajectory_id))
        return self._kinds[self._kind[row]] if row is not None and self._trains(row) else None

    def unfinished(self, trajectory_id: str) -> bool:
        """Whether it is collected and not ingested: the run is not done with it."""
        row = self._rows.get(_digest(trajectory_id))
        return row is not None and self._is_collected(row) and not self._flags[row] & _INGESTED

    def success(self, trajectory_id: str) -> float | None:
        """The verdict, if there is one."""
        row = self._rows.get(_digest(trajectory_id))
        return None if row is None or math.isnan(self._success[row]) else self._success[row]

    def judged(self) -> list[EpisodeRow]:
        """The policy's judged training episodes in the order in which they ended: the same whichever partition is read first."""
        rows = [row for row in range(len(self._flags)) if self._trains(row) and self._flags[row] & _JUDGED]
        rows.sort(key=lambda row: (self._ended[row], row))
        return [EpisodeRow(self._ended[row], self._kinds[self._kind[row]], self._success[row]) for row in rows]

    def ends(self) -> Iterator[int]:
        """When the policy's collected episodes ended, in order; milliseconds since the epoch."""
        return iter(sorted(self._ended[row] for row in range(len(self._flags)) if self._trains(row)))

    # --- inside -----------------------------------------------------------------------------------

    def _row(self, trajectory_id: str) -> int:
        digest = _digest(trajectory_id)
        row = self._rows.get(digest)
        if row is None:
            row = self._rows[digest] = len(self._flags)
            for column, empty in (
                (self._flags, 0),
                (self._origin, 0),
                (self._kind, 0),
                (self._version, _UNKNOWN),
                (self._ended, 0),
                (self._ingested_at, _UNKNOWN),
            ):
                column.append(empty)
            self._success.append(math.nan)
        return row

    def _kind_number(self, kind: str) -> int:
        if kind not in self._kinds:
            if len(self._kinds) >= 1000:
                kind = "(others)"  # kinds come from events: a broken source must not blow up every chart
                if kind in self._kinds:
                    return self._kinds.index(kind)
            self._kinds.append(kind)
        return self._kinds.index(kind)

    def _count(self, row: int) -> Count:
        return self.by_origin[ORIGINS[self._origin[row]]]

    def _is_collected(self, row: int) -> bool:
        return self._flags[row] & (_SEEN | _ABORTED) == _SEEN

    def _trains(self, row: int) -> bool:
        return self._flags[row] & (_SEEN | _ABORTED | _TEST) == _SEEN and self._origin[row] == 0

    def _count_staleness(self, row: int) -> None:
        if self._trains(row) and self._flags[row] & (_INGESTED | _REFUSED) == _INGESTED:
            self.staleness[max(self._ingested_at[row] - self._version[row], 0)] += 1


def _digest(trajectory_id: str) -> bytes:
    return blake2b(trajectory_id.encode(), digest_size=12).digest()
