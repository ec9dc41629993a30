"""The behaviour of the four roles: what a role plugin implements. The runtime (``core.runtime``) does all the rest:
it reads and writes the log, retries, sends dead letters, commits offsets, keeps checkpoints and heartbeats.

A plugin sees batches of events and returns results; it never touches the bus. Calls come from one thread.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from distrl.core.contracts.clock import Clock
from distrl.core.contracts.device import Device
from distrl.core.contracts.events import Blob, Feedback, ObservationRecord, Priority, Reward, Trajectory
from distrl.core.contracts.observation import Observation
from distrl.core.contracts.policy import Policy, TrainablePolicy
from distrl.core.contracts.staleness import StalenessPolicy
from distrl.core.contracts.task import TaskSource


class Artefacts(Protocol):
    """Screenshots and UI trees, in the store or inside events. Retries what is retriable."""

    def record(self, observation: Observation) -> ObservationRecord:
        """Put an observation's artefacts away (content-addressed) and return what goes on the event."""

    def read(self, blob: Blob) -> bytes:
        """The bytes of an artefact, verified; recently read ones come from memory."""

    def observation(self, record: ObservationRecord) -> Observation:
        """The observation that a record stands for."""


@dataclass(frozen=True, slots=True)
class RoleContext:
    """What the runtime hands to a plugin's factory, whatever its kind."""

    run: str
    node: str
    """Id of the node; ``evaluate`` and tests use one of their own."""
    seed: int
    """Of the run."""
    clock: Clock
    random: random.Random
    """Seeded from the run's seed and the node's id."""
    artefacts: Artefacts
    work_dir: Path
    """A folder of this node's own, for ledgers and temporary files; kept over restarts."""


# --- collector ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ticket:
    """Leave to start one episode, with the weights that act in it from its first step to its last."""

    episode: str
    """The trajectory's id."""
    seed: int
    """Of the task to draw."""
    policy: Policy | None
    """``None`` for a demonstrator, which needs none."""
    epoch: int
    version: int
    traceparent: str = ""


@dataclass(frozen=True, slots=True)
class CollectorParts:
    """What a collector works with besides its context: built by the runtime from the configuration."""

    devices: Sequence[Device]
    tasks: TaskSource
    horizon: int | None
    """Steps; ``None`` leaves it to the task."""


class Collector(Protocol):
    """Runs episodes on devices. The runtime's loop::

    while running:
        for trajectory in collector.advance(next_ticket):
            outbox.write(trajectory)        # durable
            collector.confirm(trajectory)   # the device is told (not for aborted ones)
    """

    @property
    def uses_weights(self) -> bool:
        """False for a demonstrator: it gets a fixed number of tickets and its node ends when all are done."""

    def advance(self, ticket: Callable[[], Ticket | None]) -> Sequence[Trajectory]:
        """Move the episodes in hand on, by about one action each, and return those that ended.

        Starts an episode on each idle device as long as ``ticket()`` gives one; ``None`` means not now. Waits for slow
        devices at most a second or so, then returns, possibly with nothing. A device's failure ends its
        episode as ``aborted`` with the error on it; it never raises for that.
        """

    def in_flight(self) -> int:
        """Episodes that have started and not yet been returned."""

    def confirm(self, trajectory: Trajectory) -> None:
        """The trajectory is durable: tell its device. After a restart also called for what was found in the outbox."""

    def close(self) -> Sequence[Trajectory]:
        """Release everything. Returns the episodes in hand as aborted trajectories."""


# --- evaluator ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a trajectory went."""

    success: float
    """From 0, failure, to 1, success."""
    reason: str = ""


class Evaluator(Protocol):
    """Judges trajectories. Stateless between batches, so that it scales by partitions."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str:
        """Changes whenever verdicts may change; it is part of the reward's id."""

    def evaluate(self, batch: Sequence[Trajectory]) -> Sequence[Verdict]:
        """One verdict a trajectory, in order. Aborted ones are never offered.

        May take minutes: it is made and called in a thread of its own. An error makes the runtime try the trajectories one by one; the
        one that fails goes to the dead letters, or is tried again later if the error is a retriable ``DistrlError``.
        """


# --- prioritizer --------------------------------------------------------------------------------


class Prioritizer(Protocol):
    """Says what should be sampled how often, from the numbers on the events alone; needs no network weights."""

    @property
    def name(self) -> str: ...

    def arrived(self, batch: Sequence[tuple[Trajectory, Reward]]) -> Sequence[float]:
        """The priority of new, judged trajectories, in order: finite and not negative."""

    def refreshed(self, batch: Sequence[Feedback]) -> Sequence[float | None]:
        """New priorities for trained or rescanned trajectories, in order; ``None`` leaves one as it is."""


# --- learner ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Experience:
    """A trajectory with the verdict that trains."""

    trajectory: Trajectory
    reward: Reward


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a learner lacks before its next update; both 0 when it can go on."""

    policy: int = 0
    """New trajectories of the policy."""
    demonstrations: int = 0
    """Demonstrations; while this is not 0 no episode of the policy is asked for."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """Fresh numbers of one trajectory; become a ``Feedback`` event."""

    trajectory_id: str
    mean_abs_td: float | None = None
    mean_ratio: float | None = None
    mean_entropy: float | None = None


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """What one call of ``Learner.update`` did."""

    publish: bool
    """Whether the weights changed enough to be a new version."""
    trained: Sequence[Numbers] = ()
    rescanned: Sequence[Numbers] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)


class Learner(Protocol):
    """Trains a policy. The runtime's loop::

    learner.use(staleness)
    learner.restore(...) or publish version 0
    while running:
        learner.ingest(new experiences); learner.prioritize(new priorities)
        if learner.wanted() == Wanted():
            result = learner.update()       # one step; bounded to seconds where possible
            if result.publish: publish(learner.policy, next version)
            send feedback; now and then save a checkpoint and commit offsets
    """

    @property
    def name(self) -> str: ...

    @property
    def policy(self) -> TrainablePolicy: ...

    @property
    def batch(self) -> int:
        """New policy trajectories that one version consumes: the unit of pacing."""

    def use(self, staleness: StalenessPolicy) -> None:
        """Take over the run's decision on what is too old to be sampled. Called once, before anything else."""

    def ingest(self, batch: Sequence[Experience]) -> None:
        """Take judged trajectories over; never a test split, another run's or an aborted one, and never the
        same one twice: the runtime refuses those."""

    def prioritize(self, batch: Sequence[Priority]) -> None:
        """Take new priorities over; ids that are not in the buffer are ignored."""

    def evictions(self) -> Mapping[str, str]:
        """Ids that left the buffer since the last call, with the reason (stale, priority, oldest)."""

    def buffered(self) -> Sequence[str]:
        """Ids in the buffer: what a restart must read back from the log."""

    def wanted(self) -> Wanted: ...

    def update(self, version: int) -> UpdateResult:
        """Train once; ``version`` is the newest published one, which staleness is counted from."""

    def save(self, directory: Path) -> None:
        """Write the learner's own state (weights, optimizer, random states, counters) as safetensors and JSON
        files; not the trajectories: they are on the log."""

    def restore(self, directory: Path, buffered: Sequence[Experience]) -> None:
        """Take over what ``save`` wrote, with the trajectories that were in the buffer, as read from the log."""
