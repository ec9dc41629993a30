"""Which records are tried again, and when: the one place that tells a record's own trouble from the world's. Used by ``EventReader``.

A record whose handling failed with what may pass (``DistrlError.retriable``) is held here, in memory: it is not acknowledged, so the
group's commit stays below it and a restart brings it again. Others go on meanwhile, but for those of its key, which wait behind it.

Whose fault is it? A record is *blamed* when it fails again after others have succeeded; only then its patience runs, and after
``attempts`` tries and ``patience_s`` seconds it goes to the dead letters. When several fail and none succeeds, the world is away: nobody
is blamed, one record at a time is tried as a probe, and the first success sets all free. A world that stays away for
``outage_s`` seconds ends the node with the error; nothing is lost by that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass

from distrl.core.contracts.bus import Record, TopicPartition
from distrl.core.contracts.clock import Clock
from distrl.core.errors import DistrlError

HELD_RECORDS = 1_000
HELD_BYTES = 64_000_000
"""What is held at most, give or take the records of one poll; then the partitions concerned are paused."""
BACK_OFF_S = 0.5
BACK_OFF_MOST_S = 10.0
"""Wait before the second try, doubled with each further one, and the longest."""

_Place = tuple[str, int, int]
_Lane = tuple[str, int, bytes | int]
"""Records of one key in one partition; a record without key has a lane of its own."""


@dataclass(slots=True, eq=False)
class _Held:
    record: Record
    since: int
    """Counts arrivals here: the order among those that are due."""
    tries: int = 0
    """Tries that failed."""
    blamed: int = 0
    """Of these, tries that failed while others succeeded."""
    blamed_s: float = 0.0
    """Seconds before those tries: how much of the patience is used up."""
    failed_at: float = 0.0
    successes: int = 0
    """Successes of others until the last failure."""
    due: float = 0.0
    out: bool = False
    """Handed out to be tried, and not yet known to have failed."""


class Retries:
    """Records of one consumer that are to be tried again. Used from one thread."""

    def __init__(
        self,
        clock: Clock,
        *,
        attempts: int,
        patience_s: float,
        outage_s: float,
        max_records: int = HELD_RECORDS,
        max_bytes: int = HELD_BYTES,
    ) -> None:
        self._clock = clock
        self._attempts = attempts
        self._patience = patience_s
        self._outage_s = outage_s
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._held: dict[_Place, _Held] = {}
        self._lanes: dict[_Lane, deque[_Held]] = {}
        self._bytes = 0
        self._arrivals = 0
        self._successes = 0
        self._suspects: set[_Place] = set()
        """Who has failed since the last success and is not blamed."""
        self._since: float | None = None
        """When the first of them failed."""
        self._misses = 0
        self._probe_at = 0.0
        self._fresh_turn = False
        """Whether the next probe is a new record: two that are held may both be bad while the world is well."""

    def __len__(self) -> int:
        return len(self._held)

    @property
    def outage(self) -> bool:
        """Whether it looks as if nothing can be handled now."""
        return len(self._suspects) > 1

    # --- what happens to records ------------------------------------------------------------------

    def admits(self, record: Record) -> bool:
        """Whether a record that the log delivered is to be handled now. If not, it is held already (delivered again after a
        rebalance), or it waits here from now on behind one of its key."""
        if _place(record) in self._held:
            return False
        lane = self._lanes.get(_lane(record))
        if lane is None:
            return True
        lane.append(self._add(record))
        return False

    def put_off(self, record: Record) -> None:
        """Hold a record that was not tried, because others of its batch showed that the world is away."""
        held = self._known(record)
        held.out = False

    def failed(self, record: Record, error: DistrlError) -> int:
        """A try failed with what may pass. Returns 0 if the record is held to be tried again, else how often it was tried: it belongs in
        the dead letters. Raises ``error`` if nothing has succeeded for the bound of an outage."""
        now = self._clock.monotonic()
        held = self._known(record)
        place = _place(record)
        held.tries += 1
        others_succeeded = held.successes != self._successes
        if held.tries > 1 and (others_succeeded or (held.blamed and not self._suspects)):
            held.blamed += 1
            held.blamed_s += now - held.failed_at
        held.failed_at, held.successes = now, self._successes
        if held.blamed and held.blamed + 1 >= self._attempts and held.blamed_s >= self._patience:
            self._remove(held)
            return held.tries
        held.out = False
        held.due = now + _back_off(held.tries)
        if not held.blamed:
            self._suspects.add(place)
            if self._since is None:
                self._since = now
            self._misses += 1
            self._probe_at = now + _back_off(self._misses)
            if now - self._since >= self._outage_s:
                raise error
        return 0

    def succeeded(self) -> None:
        """The work that may fail so was done for some record: whoever fails now fails by itself."""
        if self.outage:
            now = self._clock.monotonic()
            for held in self._held.values():
                if not held.blamed:
                    held.due = now
        self._successes += 1
        self._suspects.clear()
        self._since = None
        self._misses = 0

    # --- what to try now --------------------------------------------------------------------------

    def take(self, limit: int) -> list[Record]:
        """Up to ``limit`` held records to be tried now. Those of the last call that have not failed since are done."""
        for held in [held for held in self._held.values() if held.out]:
            self._remove(held)
        now = self._clock.monotonic()
        if self.outage:
            if now < self._probe_at:
                return []
            self._fresh_turn = not self._fresh_turn and not self._full
            limit = 0 if self._fresh_turn else 1
        due = sorted((lane[0] for lane in self._lanes.values() if lane[0].due <= now), key=lambda h: (h.due, h.since))
        for held in due[:limit]:
            held.out = True
        return [held.record for held in due[:limit]]

    def room(self, limit: int) -> int:
        """How many new records, of ``limit`` at most, may be handled now besides those that ``take`` gave."""
        if not self.outage:
            return limit
        return min(limit, 1) if self._fresh_turn and self._clock.monotonic() >= self._probe_at else 0

    def wait_s(self) -> float:
        """Seconds until there may be something to try; infinite if nothing is held."""
        if not self._held:
            return float("inf")
        at = self._probe_at if self.outage else min(lane[0].due for lane in self._lanes.values())
        return max(at - self._clock.monotonic(), 0.0)

    def crowded(self) -> set[TopicPartition]:
        """Partitions from which no more should be read now."""
        return {held.record.topic_partition for held in self._held.values()} if self._full else set()

    # --- where they are on the log ----------------------------------------------------------------

    def keep(self, partitions: Collection[TopicPartition]) -> None:
        """Only these are ours now; whoever has the others reads their records again."""
        for held in [held for held in self._held.values() if held.record.topic_partition not in partitions]:
            self._remove(held)

    def oldest(self) -> dict[TopicPartition, int]:
        """Per partition, the lowest offset that is held."""
        offsets: dict[TopicPartition, int] = {}
        for held in self._held.values():
            partition = held.record.topic_partition
            offsets[partition] = min(offsets.get(partition, held.record.offset), held.record.offset)
        return offsets

    def tries(self, record: Record) -> int:
        """How often a held record has failed; 0 for one that is not held."""
        held = self._held.get(_place(record))
        return 0 if held is None else held.tries

    # --- inside -----------------------------------------------------------------------------------

    @property
    def _full(self) -> bool:
        return len(self._held) >= self._max_records or self._bytes >= self._max_bytes

    def _known(self, record: Record) -> _Held:
        held = self._held.get(_place(record))
        if held is None:
            held = self._add(record)
            lane = self._lanes.setdefault(_lane(record), deque())
            # What came later of its key may wait already.
            lane.insert(sum(other.record.offset < record.offset for other in lane), held)
        return held

    def _add(self, record: Record) -> _Held:
        self._arrivals += 1
        held = self._held[_place(record)] = _Held(record, self._arrivals, due=self._clock.monotonic())
        self._bytes += _size(record)
        return held

    def _remove(self, held: _Held) -> None:
        place, lane = _place(held.record), _lane(held.record)
        del self._held[place]
        self._bytes -= _size(held.record)
        self._suspects.discard(place)
        if not self._suspects:
            self._since = None
        self._lanes[lane].remove(held)
        if not self._lanes[lane]:
            del self._lanes[lane]


def _place(record: Record) -> _Place:
    return record.topic, record.partition, record.offset


def _lane(record: Record) -> _Lane:
    return record.topic, record.partition, record.offset if record.key is None else record.key


def _size(record: Record) -> int:
    return len(record.key or b"") + len(record.value or b"")


def _back_off(times: int) -> float:
    return float(min(BACK_OFF_S * 2 ** min(times - 1, 10), BACK_OFF_MOST_S))
