"""The prioritized replay buffer: whole trajectories, bounded in number and bytes. Used by learners; one thread.

Sampling probability is proportional to ``priority ** alpha`` (arXiv 2410.14803, DPER). What the staleness policy withholds stays
until room is needed but is not sampled. Who leaves first: the withheld, then the lowest priority
among those sampled at least once, then the oldest.
"""

from __future__ import annotations

import heapq
import math
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from distrl.core.contracts.events import ObservationRecord, Trajectory
from distrl.core.contracts.role import Experience
from distrl.core.contracts.staleness import StalenessPolicy
from distrl.plugins.builtin.learner.sum_tree import SumTree

LARGEST_WEIGHT = 1e150
"""What a priority's power counts at most: sums of them stay finite, however many there are."""
STEP_BYTES = 512
"""What a step weighs in memory besides its texts and inline artefacts; an estimate."""


@dataclass(slots=True)
class Entry:
    """One trajectory in the buffer."""

    experience: Experience
    slot: int
    arrival: int
    """Counts arrivals, from 0: the order of age."""
    size: int
    """Bytes, estimated."""
    priority: float
    prioritized: bool = False
    """Whether a priority event has named it; until then it carries the highest so far."""
    samples: int = 0
    sampled_version: int = 0
    """The learner's version when it was last sampled, rescanned or taken in."""
    withheld: bool = False


@dataclass(frozen=True, slots=True)
class Sample:
    """One draw."""

    experience: Experience
    weight: float
    """Importance-sampling weight ``(N * P) ** -beta``, over the largest of the draw: in (0, 1]."""


class ReplayBuffer:
    """See the module."""

    def __init__(
        self, staleness: StalenessPolicy, *, max_trajectories: int, max_bytes: int, alpha: float, beta: float = 0.0
    ) -> None:
        self._staleness = staleness
        self._max_trajectories = max_trajectories
        self._max_bytes = max_bytes
        self._alpha = alpha
        self._beta = beta
        # One slot more than the bound: a newcomer is in before the leaver is chosen.
        self._tree = SumTree(max_trajectories + 1)
        self._free = list(range(max_trajectories + 1))
        self._entries: dict[str, Entry] = {}
        self._by_slot: dict[int, str] = {}
        self._arrivals = 0
        self._newest = 0
        self._highest = 1.0
        self._bytes = 0
        self._evicted: dict[str, str] = {}
        self.evicted_by: dict[str, int] = {"stale": 0, "priority": 0, "oldest": 0}
        """Departures by reason, since the start."""
        self.withheld_total = 0
        """Trajectories that became too old before they were sampled once, since the start: work that was in vain."""

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, trajectory_id: str) -> bool:
        return trajectory_id in self._entries

    @property
    def ids(self) -> list[str]:
        return list(self._entries)

    @property
    def bytes(self) -> int:
        return self._bytes

    @property
    def withheld(self) -> int:
        """Trajectories in the buffer that are too old to sample."""
        return sum(entry.withheld for entry in self._entries.values())

    @property
    def sampleable(self) -> int:
        """Trajectories that may be drawn."""
        return sum(self._tree[entry.slot] > 0.0 for entry in self._entries.values())

    def add(self, experience: Experience) -> None:
        """Take a trajectory in, at the highest priority so far; others leave if there is no room. One that is larger
        than the whole buffer leaves at once, as the oldest."""
        identity = experience.trajectory.trajectory_id
        if identity in self._entries:
            raise ValueError(f"trajectory {identity} is in the buffer already")
        size = trajectory_bytes(experience.trajectory)
        if size > self._max_bytes:
            self._left(identity, "oldest")
            return
        slot = heapq.heappop(self._free)
        entry = Entry(
            experience,
            slot,
            self._arrivals,
            trajectory_bytes(experience.trajectory),
            self._highest,
            sampled_version=self._newest,
        )
        self._arrivals += 1
        self._entries[identity] = entry
        self._by_slot[slot] = identity
        self._bytes += entry.size
        self._judge_age(entry)
        self._weigh(entry)
        while len(self._entries) > self._max_trajectories or self._bytes > self._max_bytes:
            self._evict_one()

    def prioritize(self, trajectory_id: str, priority: float) -> bool:
        """Set a priority; returns whether the trajectory is here. Raises ``ValueError`` for one that is negative or not
        finite."""
        if not (math.isfinite(priority) and priority >= 0.0):
            raise ValueError(f"priority {priority} of {trajectory_id} is negative or not finite")
        entry = self._entries.get(trajectory_id)
        if entry is None:
            return False
        entry.priority = priority
        entry.prioritized = True
        self._highest = max(self._highest, priority)
        self._weigh(entry)
        return True

    def advance(self, newest: int) -> None:
        """The learner's newest version is now this: what has become too old is withheld from now on."""
        self._newest = newest
        for entry in self._entries.values():
            if not entry.withheld and self._judge_age(entry):
                self._weigh(entry)

    def sample(self, count: int, source: random.Random) -> list[Sample]:
        """Draw ``count`` trajectories, each with its probability (the total is cut into ``count`` equal parts and one is drawn in
        each, which leaves the expectation as it is and makes repeats rare). Empty if nothing may be drawn."""
        total = self._tree.total
        if total <= 0.0 or count < 1:
            return []
        candidates = self.sampleable
        drawn: list[tuple[Entry, float]] = []
        for part in range(count):
            mass = min((part + source.random()) / count * total, math.nextafter(total, 0.0))
            slot = self._tree.find(mass)
            entry = self._entries[self._by_slot[slot]]
            entry.samples += 1
            entry.sampled_version = self._newest
            share = max(candidates * self._tree[slot] / total, sys.float_info.min)
            drawn.append((entry, share**-self._beta))
        largest = max(weight for _, weight in drawn)
        return [Sample(entry.experience, weight / largest) for entry, weight in drawn]

    def neglected(self, count: int, versions: int) -> list[Experience]:
        """Up to ``count`` that may be sampled and were not for ``versions`` versions, the longest first. They count as
        looked at from now on."""
        waiting = [
            entry
            for entry in self._entries.values()
            if not entry.withheld
            and entry.experience.trajectory.steps
            and self._newest - entry.sampled_version >= versions
        ]
        chosen = heapq.nsmallest(count, waiting, key=lambda entry: (entry.sampled_version, entry.arrival))
        for entry in chosen:
            entry.sampled_version = self._newest
        return [entry.experience for entry in chosen]

    def evictions(self) -> dict[str, str]:
        """Who has left since the last call, with the reason."""
        evicted, self._evicted = self._evicted, {}
        return evicted

    # --- state ----------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """All but the trajectories, as JSON values."""
        return {
            "arrivals": self._arrivals,
            "newest": self._newest,
            "highest": self._highest,
            "evicted_by": self.evicted_by,
            "withheld_total": self.withheld_total,
            "entries": {
                identity: [
                    entry.slot,
                    entry.arrival,
                    entry.priority,
                    entry.prioritized,
                    entry.samples,
                    entry.sampled_version,
                    entry.withheld,
                ]
                for identity, entry in self._entries.items()
            },
        }

    def restore(self, state: dict[str, Any], experiences: Sequence[Experience]) -> None:
        """Take over a state, into an empty buffer, with the trajectories it names; those that can no longer be had are left out."""
        if self._entries:
            raise ValueError("a state is restored into an empty buffer")
        self._arrivals = int(state["arrivals"])
        self._newest = int(state["newest"])
        self._highest = float(state["highest"])
        self.evicted_by = {reason: int(count) for reason, count in state["evicted_by"].items()}
        self.withheld_total = int(state["withheld_total"])
        by_id = {experience.trajectory.trajectory_id: experience for experience in experiences}
        # A buffer that was made smaller since takes the newest that fit, in slots of its own numbering.
        newest = sorted(state["entries"].items(), key=lambda item: int(item[1][1]))[-self._max_trajectories :]
        fits = all(int(row[0]) <= self._max_trajectories for _, row in newest)
        kept = {identity: row if fits else [index, *row[1:]] for index, (identity, row) in enumerate(newest)}
        for identity, (slot, arrival, priority, prioritized, samples, sampled_version, withheld) in kept.items():
            experience = by_id.get(identity)
            if experience is None:
                continue
            size = trajectory_bytes(experience.trajectory)
            entry = Entry(experience, slot, arrival, size, priority, prioritized, samples, sampled_version, withheld)
            self._entries[identity] = entry
            self._by_slot[slot] = identity
            self._bytes += size
            self._weigh(entry)
        self._free = sorted(set(range(self._max_trajectories + 1)) - self._by_slot.keys())
        while len(self._entries) > self._max_trajectories or self._bytes > self._max_bytes:
            self._evict_one()

    # --- inside ---------------------------------------------------------------------------------

    def _judge_age(self, entry: Entry) -> bool:
        """Note whether an entry is too old to be sampled, and return it."""
        entry.withheld = self._staleness.withheld(version=entry.experience.trajectory.version, newest=self._newest)
        self.withheld_total += entry.withheld and entry.samples == 0
        return entry.withheld

    def _weigh(self, entry: Entry) -> None:
        usable = entry.experience.trajectory.steps and not entry.withheld
        self._tree[entry.slot] = _power(entry.priority, self._alpha) if usable and entry.priority > 0.0 else 0.0

    def _evict_one(self) -> None:
        def first(entries: list[tuple[str, Entry]]) -> str:
            return min(entries, key=lambda item: item[1].arrival)[0]

        everyone = list(self._entries.items())
        withheld = [item for item in everyone if item[1].withheld]
        sampled = [item for item in everyone if item[1].samples > 0]
        if withheld:
            leaver, reason = first(withheld), "stale"
        elif sampled:
            leaver, reason = min(sampled, key=lambda item: (item[1].priority, item[1].arrival))[0], "priority"
        else:
            leaver, reason = first(everyone), "oldest"
        entry = self._entries.pop(leaver)
        self._tree[entry.slot] = 0.0
        del self._by_slot[entry.slot]
        heapq.heappush(self._free, entry.slot)
        self._bytes -= entry.size
        self._left(leaver, reason)

    def _left(self, identity: str, reason: str) -> None:
        self._evicted[identity] = reason
        self.evicted_by[reason] += 1


def _power(priority: float, alpha: float) -> float:
    try:
        return min(math.pow(priority, alpha), LARGEST_WEIGHT)
    except OverflowError:
        return LARGEST_WEIGHT


def trajectory_bytes(trajectory: Trajectory) -> int:
    """What a trajectory weighs in memory: inline artefacts, texts, and an allowance a step; an estimate."""

    def inline(record: ObservationRecord | None) -> int:
        if record is None:
            return 0
        blobs = (record.screenshot, record.ui_tree)
        return sum(len(blob.inline) for blob in blobs if blob is not None and blob.inline is not None)

    size = STEP_BYTES + len(trajectory.goal) + len(trajectory.checks) + inline(trajectory.final_observation)
    for step in trajectory.steps:
        size += STEP_BYTES + len(step.action) + 64 * len(step.action_tokens) + inline(step.observation)
    return size
