"""Plugins in memory: the four roles' loops without a log, for tests.

Every event goes through the codec, so a plugin meets exactly what it would read from the log; aborted and test-split
trajectories are kept away from it as the runtime does. One thread, no clock of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Literal, TypeVar

from distrl.core.codec import Codec
from distrl.core.contracts.events import Event, Feedback, Priority, Reward, Trajectory
from distrl.core.contracts.identity import derived_id
from distrl.core.contracts.policy import Policy
from distrl.core.contracts.role import Collector, Evaluator, Experience, Learner, Numbers, Prioritizer, Ticket, Wanted
from distrl.core.contracts.staleness import StalenessPolicy
from distrl.plugins.testkit.sample import make_envelope

CODEC = Codec()
EventT = TypeVar("EventT", bound=Event)


def over_the_log(event: EventT) -> EventT:
    """The event as a reader of the log gets it. Raises ``CodecError`` if it does not fit its schema."""
    return CODEC.decode(CODEC.encode(event), type(event))


def run_collector(
    collector: Collector,
    policy: Policy | None,
    episodes: int,
    *,
    version: int = 0,
    rounds: int = 10_000,
    first: int = 0,
) -> list[Trajectory]:
    """Give ``collector`` tickets for ``episodes`` and let it go on until all have ended.

    ``policy`` is ``None`` for a demonstrator. Episodes are numbered from ``first``; the number is the task's seed. Raises
    ``AssertionError`` if they have not ended after ``rounds`` calls.
    """
    numbers = iter(range(first, first + episodes))
    kind = "episode" if collector.uses_weights else "demonstration"

    def ticket() -> Ticket | None:
        number = next(numbers, None)
        if number is None:
            return None
        return Ticket(f"{kind}-{number}", number, policy if collector.uses_weights else None, 1, version)

    ended: list[Trajectory] = []
    for _ in range(rounds):
        for trajectory in collector.advance(ticket):
            ended.append(over_the_log(trajectory))
            if trajectory.outcome != "aborted":
                collector.confirm(trajectory)
        if len(ended) >= episodes:
            return ended
    raise AssertionError(f"{len(ended)} of {episodes} episodes have ended after {rounds} calls of advance")


def run_evaluator(evaluator: Evaluator, trajectories: Sequence[Trajectory]) -> list[Reward]:
    """The rewards that an evaluator node would put on the log; aborted trajectories get none."""
    due = [over_the_log(trajectory) for trajectory in trajectories if trajectory.outcome != "aborted"]
    verdicts = evaluator.evaluate(due)
    name, version = evaluator.name, evaluator.version
    return [
        over_the_log(
            Reward(
                envelope=make_envelope(derived_id("reward", trajectory.trajectory_id, name, version)),
                trajectory_id=trajectory.trajectory_id,
                evaluator=name,
                evaluator_version=version,
                success=verdict.success,
                reason=verdict.reason,
                split=trajectory.split,
            )
        )
        for trajectory, verdict in zip(due, verdicts, strict=True)
    ]


def run_prioritizer(
    prioritizer: Prioritizer,
    trajectories: Sequence[Trajectory],
    rewards: Sequence[Reward],
    feedback: Sequence[Feedback] = (),
) -> list[Priority]:
    """The priorities that a prioritizer node would put on the log: of what arrived, then of what the learner fed back."""
    judged = {reward.trajectory_id: over_the_log(reward) for reward in reversed(rewards)}
    arrived = [
        (over_the_log(trajectory), judged[trajectory.trajectory_id])
        for trajectory in trajectories
        if trajectory.outcome != "aborted" and trajectory.trajectory_id in judged
    ]
    fresh = [over_the_log(item) for item in feedback if item.kind in ("trained", "rescanned")]
    numbers = count()

    def priority(trajectory_id: str, value: float, version: int) -> Priority:
        envelope = make_envelope(derived_id("priority", trajectory_id, str(next(numbers))))
        return over_the_log(Priority(envelope, trajectory_id, prioritizer.name, value, version))

    first = zip(arrived, prioritizer.arrived(arrived), strict=True) if arrived else ()
    then = zip(fresh, prioritizer.refreshed(fresh), strict=True) if fresh else ()
    return [
        *(priority(trajectory.trajectory_id, value, trajectory.version) for (trajectory, _), value in first),
        *(priority(item.trajectory_id, value, item.version) for item, value in then if value is not None),
    ]


@dataclass(slots=True)
class Run:
    """What a pipeline put on its log."""

    trajectories: list[Trajectory] = field(default_factory=list)
    rewards: list[Reward] = field(default_factory=list)
    priorities: list[Priority] = field(default_factory=list)
    feedback: list[Feedback] = field(default_factory=list)
    updates: int = 0
    versions: int = 0
    """New weights published; the untrained ones do not count."""


class Pipeline:
    """All four roles in one thread: collects what the learner wants, trains, and so on.

    The learner's policy acts, so every trajectory comes from the newest version.
    """

    def __init__(
        self,
        collector: Collector,
        evaluator: Evaluator,
        prioritizer: Prioritizer,
        learner: Learner,
        *,
        demonstrator: Collector | None = None,
    ) -> None:
        self.log = Run()
        self._collector = collector
        self._evaluator = evaluator
        self._prioritizer = prioritizer
        self._learner = learner
        self._demonstrator = demonstrator
        learner.use(StalenessPolicy(max_lag=0, batch=learner.batch))

    def run(self, versions: int, *, rounds: int = 1000) -> Run:
        """Go on until ``versions`` new ones are published; returns the whole log so far.

        Raises ``AssertionError`` if that takes more than ``rounds`` of collecting or updating, or demonstrations are wanted
        and nobody records them.
        """
        target = self.log.versions + versions
        for _ in range(rounds):
            if self.log.versions >= target:
                return self.log
            wanted = self._learner.wanted()
            if wanted == Wanted():
                self._update()
            else:
                self._collect(wanted)
        raise AssertionError(
            f"{self.log.versions} of {target} versions after {rounds} rounds; wanted: {self._learner.wanted()}"
        )

    def _collect(self, wanted: Wanted) -> None:
        number = len(self.log.trajectories)
        if wanted.demonstrations:
            assert self._demonstrator is not None, (
                f"the learner wants {wanted.demonstrations} demonstrations; give a demonstrator"
            )
            new = run_collector(self._demonstrator, None, wanted.demonstrations, first=number)
        else:
            policy = self._learner.policy
            new = run_collector(self._collector, policy, wanted.policy, version=self.log.versions, first=number)
        rewards = run_evaluator(self._evaluator, new)
        priorities = run_prioritizer(self._prioritizer, new, rewards)
        judged = {reward.trajectory_id: reward for reward in rewards}
        experiences = [
            Experience(trajectory, judged[trajectory.trajectory_id])
            for trajectory in new
            if trajectory.trajectory_id in judged and trajectory.split == "train"
        ]
        self._learner.ingest(experiences)
        self._learner.prioritize(priorities)
        self.log.trajectories += new
        self.log.rewards += rewards
        self.log.priorities += priorities
        for experience in experiences:
            self._feed("ingested", Numbers(experience.trajectory.trajectory_id))

    def _update(self) -> None:
        result = self._learner.update(self.log.versions)
        self.log.updates += 1
        self.log.versions += result.publish
        before = len(self.log.feedback)
        for numbers in result.trained:
            self._feed("trained", numbers)
        for numbers in result.rescanned:
            self._feed("rescanned", numbers)
        fresh = run_prioritizer(self._prioritizer, (), (), self.log.feedback[before:])
        self._learner.prioritize(fresh)
        self.log.priorities += fresh
        for trajectory_id, reason in self._learner.evictions().items():
            self._feed("evicted", Numbers(trajectory_id), reason)

    def _feed(
        self, kind: Literal["ingested", "trained", "rescanned", "evicted"], numbers: Numbers, reason: str = ""
    ) -> None:
        identity = derived_id("feedback", kind, numbers.trajectory_id, str(len(self.log.feedback)))
        self.log.feedback.append(
            over_the_log(
                Feedback(
                    envelope=make_envelope(identity),
                    trajectory_id=numbers.trajectory_id,
                    kind=kind,
                    epoch=1,
                    version=self.log.versions,
                    mean_abs_td=numbers.mean_abs_td,
                    mean_ratio=numbers.mean_ratio,
                    mean_entropy=numbers.mean_entropy,
                    reason=reason,
                )
            )
        )
