"""Success on held-out tasks: greedy, judged by the evaluator whose verdicts train. Called by ``distrl evaluate`` and, for the first
and last weights of a run, by the supervisor (in a process of its own: the supervisor imports no torch)."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog

from distrl.connectors import open_bus, open_store
from distrl.core.codec import derived_id
from distrl.core.config import Config
from distrl.core.contracts.action import Action
from distrl.core.contracts.clock import Clock, SystemClock
from distrl.core.contracts.events import Split, Trajectory, WeightsUpdate
from distrl.core.contracts.policy import Policy, PolicyAction, PolicyInput
from distrl.core.contracts.role import Collector, CollectorParts, Evaluator, RoleContext, Ticket
from distrl.core.contracts.store import BlobStore
from distrl.core.contracts.task import Task, TaskSource
from distrl.core.errors import StarvedError
from distrl.core.runtime.artefact import StoredArtefacts
from distrl.core.runtime.codec import open_codec
from distrl.core.runtime.rate import EvaluationResult, Rate
from distrl.core.runtime.weights import fetch_weights, find_version
from distrl.plugins.manager import PluginManager, load_plugins

log = structlog.get_logger(__name__)
TRIES = 3
"""How often a task is tried whose episode was aborted by a device."""


def evaluate(
    config: Config,
    *,
    version: int | None = None,
    tasks: int | None = None,
    plugin_files: Sequence[Path] = (),
    clock: Clock | None = None,
) -> EvaluationResult:
    """Judge ``version`` (``None``: the newest; 0: the untrained policy) on ``tasks`` unseen tasks."""
    clock = clock or SystemClock()
    with ExitStack() as stack:
        bus = stack.enter_context(open_bus(config.bus, clock=clock, client_id="evaluate"))
        bus.ping(10.0)
        store = stack.enter_context(open_store(config.store))
        work_dir = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="distrl-evaluate-")))
        update = find_version(bus, open_codec(config, clock=clock), config.run.name, version)
        plugins = load_plugins([*config.run.plugins, *plugin_files])
        context = _context(config, store, clock, work_dir)
        policy = _policy(config, plugins, context, store, update)
        source: TaskSource = plugins.create("task_source", config.tasks.plugin, config.tasks.options, context)
        wanted = config.budget.evaluation_tasks if tasks is None else tasks
        fixed = FixedTasks(source, source.instances("test", wanted))
        devices = [
            plugins.create("device", config.device.plugin, config.device.options, context, index)
            for index in range(max(1, min(config.collector.devices, len(fixed.tasks))))
        ]
        # The built-in collector runs the episodes whatever collects the training data, so results are comparable.
        collector: Collector = plugins.create(
            "collector", "episodes", {}, context, CollectorParts(devices, fixed, config.collector.horizon)
        )
        evaluator: Evaluator = plugins.create(
            "evaluator", config.training_evaluator, _evaluator_options(config), context
        )
        trajectories = _run(collector, fixed, Greedy(policy), update, clock, patience_s=config.run.watchdog_seconds)
    return _judge(evaluator, trajectories, update.version, len(fixed.tasks))


class Greedy:
    """A policy that always takes its most probable action."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    @property
    def name(self) -> str:
        return self._policy.name

    @property
    def base_model(self) -> str:
        return self._policy.base_model

    @property
    def sampling(self) -> Mapping[str, float]:
        return {**self._policy.sampling, "greedy": 1.0}

    def act(self, batch: Sequence[PolicyInput], *, greedy: bool = True) -> Sequence[PolicyAction]:
        return self._policy.act(batch, greedy=True)

    def load(self, path: Path) -> None:
        self._policy.load(path)

    def save(self, path: Path) -> None:
        self._policy.save(path)


class FixedTasks:
    """A task source that gives a fixed list: the seed is the index."""

    def __init__(self, source: TaskSource, tasks: Sequence[Task]) -> None:
        self._source = source
        self.tasks = tasks

    def kinds(self) -> Sequence[str]:
        return self._source.kinds()

    def sample(self, split: Split, seed: int) -> Task:
        return self.tasks[seed]

    def instances(self, split: Split, limit: int) -> Sequence[Task]:
        return self.tasks[:limit]

    def demonstrate(self, task: Task) -> Sequence[Action] | None:
        return self._source.demonstrate(task)


def _context(config: Config, store: BlobStore, clock: Clock, work_dir: Path) -> RoleContext:
    # Everything rides inside the trajectory: an evaluation leaves nothing behind in the store.
    artefacts = StoredArtefacts(store, prefix="unused", inline_bytes=1 << 40, cache_bytes=0, clock=clock)
    return RoleContext(
        run=config.run.name,
        node="evaluate",
        seed=config.run.seed,
        clock=clock,
        random=random.Random(derived_id(str(config.run.seed), "evaluate")),
        artefacts=artefacts,
        work_dir=work_dir,
    )


def _policy(
    config: Config, plugins: PluginManager, context: RoleContext, store: BlobStore, update: WeightsUpdate
) -> Policy:
    options: dict[str, Any] = json.loads(update.options) or dict(config.policy.options)
    policy: Policy = plugins.create("policy", update.policy, options, context)
    path = context.work_dir / "weights.safetensors"
    fetch_weights(store, update, path)
    policy.load(path)
    return policy


def _evaluator_options(config: Config) -> dict[str, Any]:
    return dict(config.evaluator.options) if config.evaluator.plugin == config.training_evaluator else {}


def _run(
    collector: Collector, fixed: FixedTasks, policy: Policy, update: WeightsUpdate, clock: Clock, *, patience_s: float
) -> list[Trajectory]:
    """Run every task to its end, again where a device failed, at most ``TRIES`` times each."""
    left = [(index, 1) for index in reversed(range(len(fixed.tasks)))]
    in_hand: dict[str, tuple[int, int]] = {}
    finished: list[Trajectory] = []
    progressed = clock.monotonic()

    def ticket() -> Ticket | None:
        if not left:
            return None
        index, attempt = left.pop()
        episode = derived_id("evaluate", str(update.version), str(index), str(attempt))
        in_hand[episode] = (index, attempt)
        return Ticket(episode, seed=index, policy=policy, epoch=update.epoch, version=update.version)

    try:
        while left or in_hand:
            ended = collector.advance(ticket)
            if ended or collector.in_flight():
                progressed = clock.monotonic()
            elif clock.monotonic() - progressed > patience_s:
                raise StarvedError(f"no device could start an episode for {patience_s:.0f} s: see `distrl doctor`")
            for trajectory in ended:
                index, attempt = in_hand.pop(trajectory.trajectory_id)
                if trajectory.outcome != "aborted":
                    finished.append(replace(trajectory, split="test"))
                elif attempt < TRIES:
                    left.append((index, attempt + 1))
    finally:
        collector.close()
    return finished


def _judge(evaluator: Evaluator, trajectories: Sequence[Trajectory], version: int, tasks: int) -> EvaluationResult:
    successes: dict[str, int] = {}
    trials: dict[str, int] = {}
    for trajectory, verdict in zip(trajectories, evaluator.evaluate(trajectories), strict=True):
        trials[trajectory.task_kind] = trials.get(trajectory.task_kind, 0) + 1
        successes[trajectory.task_kind] = successes.get(trajectory.task_kind, 0) + (verdict.success >= 0.5)
    return EvaluationResult(
        version=version,
        by_kind={kind: Rate(successes[kind], trials[kind]) for kind in sorted(trials)},
        total=Rate(sum(successes.values()), sum(trials.values())),
        aborted=tasks - len(trajectories),
    )
