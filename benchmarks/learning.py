"""How fast the factored policy learns the simulated phone with A-RIDE, in one process on one core, without a log.

    python benchmarks/learning.py --seconds 100 --seeds 0 1 2

Prints, for each seed, success on unseen tasks (greedy) by kind of task, untrained, after the warm start and at intervals of
training time. What is measured is learning alone: real nodes add the log, the store and lag.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from distrl.connectors.simulated_phone.device import SimulatedPhone
from distrl.connectors.simulated_phone.option import PhoneOptions, TaskOptions
from distrl.connectors.simulated_phone.task import SimulatedTasks
from distrl.core.contracts.action import InvalidAction, parse_action
from distrl.core.contracts.clock import SystemClock
from distrl.core.contracts.events import (
    Blob,
    Envelope,
    Feedback,
    ObservationRecord,
    Origin,
    Outcome,
    Priority,
    Reward,
    StepRecord,
    Trajectory,
)
from distrl.core.contracts.observation import Observation, Screenshot
from distrl.core.contracts.policy import PolicyAction, PolicyInput
from distrl.core.contracts.role import Experience, RoleContext, Wanted
from distrl.core.contracts.staleness import StalenessPolicy
from distrl.core.contracts.task import Task
from distrl.plugins.builtin.learner.a_ride import ARide
from distrl.plugins.builtin.learner.a_ride_options import ARideOptions
from distrl.plugins.builtin.policy.factored import FactoredPolicy
from distrl.plugins.builtin.policy.factored_options import FactoredOptions
from distrl.plugins.builtin.prioritizer.dper import Dper
from distrl.plugins.builtin.prioritizer.dper_options import DperOptions


class Memory:
    """Artefacts by content, in memory."""

    def __init__(self) -> None:
        self._kept: dict[str, bytes] = {}

    def record(self, observation: Observation) -> ObservationRecord:
        screen = observation.screenshot
        assert screen is not None
        digest = hashlib.sha256(screen.data).hexdigest()
        self._kept[digest] = screen.data
        blob = Blob(screen.media_type, len(screen.data), digest, bucket="memory", key=digest)
        return ObservationRecord(observation.time_ms, screen.width, screen.height, screenshot=blob)

    def read(self, blob: Blob) -> bytes:
        return self._kept[blob.sha256]

    def observation(self, record: ObservationRecord) -> Observation:
        blob = record.screenshot
        assert blob is not None
        return Observation(record.time_ms, Screenshot(record.width, record.height, self.read(blob), blob.media_type))


@dataclass
class Episode:
    """One in hand."""

    phone: SimulatedPhone
    task: Task
    observation: Observation
    steps: list[StepRecord]
    demonstration: list[PolicyAction] | None = None


class Bench:
    """One seed: phones, policy, learner, prioritizer."""

    def __init__(self, seed: int, options: ARideOptions, directory: Path, phones: int, lag: int) -> None:
        self.context = RoleContext("bench", "bench", seed, SystemClock(), random.Random(seed), Memory(), directory)
        self.policy = FactoredPolicy(FactoredOptions(), self.context)
        self.actor = FactoredPolicy(FactoredOptions(), self.context)
        self.lag = lag
        self.acting = 0
        self.learner = ARide(options, self.context, self.policy)
        self.learner.use(StalenessPolicy(max_lag=8, batch=options.batch))
        self.dper = Dper(DperOptions(), self.context)
        self.tasks = SimulatedTasks(TaskOptions(), self.context)
        self.phones = [SimulatedPhone(PhoneOptions(), self.context, index) for index in range(phones)]
        self.version = 0
        self.drawn = 0
        self.episodes = 0
        self.rng = random.Random(seed)

    def run(self, tasks: Sequence[Task], origin: Origin, *, greedy: bool) -> list[Experience]:
        """One episode a task, the phones in parallel."""
        waiting, running, done = list(reversed(tasks)), [], []
        idle = list(self.phones)
        while waiting or running:
            while waiting and idle:
                task, phone = waiting.pop(), idle.pop()
                episode = Episode(phone, task, phone.reset(task, episode="e"), [])
                if origin == "demonstration":
                    actions = self.tasks.demonstrate(task)
                    assert actions is not None
                    episode.demonstration = [PolicyAction(str(action), (), (), 0.0) for action in actions]
                running.append(episode)
            self._advance(running, done, idle, origin, greedy)
        return done

    def _advance(
        self, running: list[Episode], done: list[Experience], idle: list[SimulatedPhone], origin: Origin, greedy: bool
    ) -> None:
        if origin == "demonstration":
            chosen = [episode.demonstration[len(episode.steps)] for episode in running if episode.demonstration]
        else:
            chosen = (self.policy if greedy else self.actor).act(
                [PolicyInput(e.task.goal, e.observation, tuple(step.action for step in e.steps)) for e in running],
                greedy=greedy,
            )
        for episode, action in zip(list(running), chosen, strict=True):
            record = self.context.artefacts.record(episode.observation)
            invalid, over, outcome = False, False, None
            try:
                parsed = parse_action(action.action)
            except InvalidAction:
                invalid = True
            else:
                if parsed.kind in ("done", "fail"):
                    over, outcome = True, episode.phone.outcome()
                else:
                    result = episode.phone.step(parsed)
                    episode.observation, over, outcome = result.observation, result.done, result.environment_outcome
            episode.steps.append(
                StepRecord(
                    record,
                    action.action,
                    action.tokens,
                    action.log_prob,
                    action.token_log_probs,
                    action.entropy,
                    action.value,
                    invalid=invalid,
                )
            )
            horizon = len(episode.steps) >= episode.task.horizon
            if over or horizon:
                running.remove(episode)
                idle.append(episode.phone)
                done.append(self._experience(episode, origin, "finished" if over else "horizon", float(outcome or 0.0)))

    def _experience(self, episode: Episode, origin: Origin, outcome: Outcome, success: float) -> Experience:
        self.drawn += 1
        identity, task = f"t{self.drawn}", episode.task
        envelope = Envelope(identity, "bench", "bench", 0)
        trajectory = Trajectory(
            envelope, identity, origin, task.task_id, task.kind, task.split, task.goal, "[]", task.seed, task.horizon,
            episode.phone.device_id, "factored", 1, self.version, "", "{}", outcome, 0, 0, tuple(episode.steps), self.context.artefacts.record(episode.observation),
        )  # fmt: skip
        return Experience(trajectory, Reward(envelope, identity, "environment", "1", success))

    def collect(self, count: int, origin: Origin) -> None:
        tasks = [self.tasks.sample("train", self.rng.getrandbits(40)) for _ in range(count)]
        experiences = self.run(tasks, origin, greedy=False)
        self.learner.ingest(experiences)
        if origin == "policy":
            self.episodes += count
            priorities = self.dper.arrived([(item.trajectory, item.reward) for item in experiences])
            self._prioritize([item.trajectory.trajectory_id for item in experiences], priorities)

    def _prioritize(self, ids: Sequence[str], priorities: Sequence[float | None]) -> None:
        self.learner.prioritize(
            [
                Priority(Envelope(i, "bench", "bench", 0), i, "dper", p)
                for i, p in zip(ids, priorities, strict=True)
                if p is not None
            ]
        )

    def train(self, seconds: float) -> dict[str, float]:
        """Collect and update for so much processor time; returns the last metrics."""
        end = time.process_time() + seconds
        metrics: dict[str, float] = {}
        while time.process_time() < end:
            wanted = self.learner.wanted()
            if wanted != Wanted():
                self.collect(
                    wanted.demonstrations or wanted.policy, "demonstration" if wanted.demonstrations else "policy"
                )
                continue
            result = self.learner.update(self.version)
            metrics |= result.metrics
            self.version += result.publish
            if result.publish and (self.version - self.acting > self.lag or self.acting == 0):
                self.policy.save(self.context.work_dir / "weights")
                self.actor.load(self.context.work_dir / "weights")
                self.acting = self.version
            numbers = [*result.trained, *result.rescanned]
            feedback = [
                Feedback(
                    Envelope("f", "bench", "bench", 0),
                    n.trajectory_id,
                    "trained",
                    1,
                    self.version,
                    n.mean_abs_td,
                    n.mean_ratio,
                    n.mean_entropy,
                )
                for n in numbers
            ]
            self._prioritize([n.trajectory_id for n in numbers], self.dper.refreshed(feedback))
            self.learner.evictions()
        return metrics

    def success(self, tasks: Sequence[Task], *, greedy: bool = True) -> dict[str, float]:
        won: dict[str, list[float]] = defaultdict(list)
        for item in self.run(tasks, "policy", greedy=greedy):
            won[item.trajectory.task_kind].append(item.reward.success)
        return {"all": sum(map(sum, won.values())) / len(tasks)} | {k: sum(v) / len(v) for k, v in sorted(won.items())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=100.0)
    parser.add_argument("--interval", type=float, default=20.0)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--tasks", type=int, default=120)
    parser.add_argument("--phones", type=int, default=16)
    parser.add_argument("--lag", type=int, default=0, help="versions that the acting weights may fall behind")
    parser.add_argument("--demonstrations", type=int, default=90)
    parser.add_argument("--set", action="append", default=[], metavar="OPTION=JSON", help="an option of the learner")
    arguments = parser.parse_args()
    options = {"demonstrations": arguments.demonstrations}
    for text in arguments.set:
        name, _, value = text.partition("=")
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value
    for seed in arguments.seeds:
        with tempfile.TemporaryDirectory() as directory:
            bench = Bench(seed, ARideOptions(**options), Path(directory), arguments.phones, arguments.lag)
            unseen = bench.tasks.instances("test", arguments.tasks)
            spent = 0.0
            metrics: dict[str, float] = {}
            while True:
                row = {
                    "seed": seed,
                    "cpu_seconds": round(spent),
                    "version": bench.version,
                    "episodes": bench.episodes,
                }
                row |= {k: round(v, 3) for k, v in bench.success(unseen).items()}
                row |= {
                    k: round(v, 3)
                    for k, v in metrics.items()
                    if k
                    in (
                        "entropy",
                        "success.batch",
                        "ratio.mean",
                        "loss.value",
                        "loss.clone",
                        "td.mean_abs",
                        "gradient_norm",
                        "replay_ratio",
                    )
                }
                sys.stdout.write(json.dumps(row) + "\n")
                sys.stdout.flush()
                if spent >= arguments.seconds:
                    break
                metrics = bench.train(arguments.interval)
                spent += arguments.interval


if __name__ == "__main__":
    main()
