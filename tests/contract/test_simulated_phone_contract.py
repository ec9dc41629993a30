"""The simulated phone, its tasks, and the built-in collectors and evaluators on it, held to their contracts by the test kit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from distrl.connectors.simulated_phone.device import SimulatedPhone
from distrl.connectors.simulated_phone.option import Faults, Kind, Latency, PhoneOptions, TaskOptions
from distrl.connectors.simulated_phone.task import SimulatedTasks
from distrl.core.contracts.clock import SystemClock
from distrl.core.contracts.role import CollectorParts, RoleContext
from distrl.core.contracts.task import Check
from distrl.plugins.builtin.collector.demonstrator import Demonstrator, Script
from distrl.plugins.builtin.collector.episode import EpisodeCollector
from distrl.plugins.builtin.collector.episode_options import EpisodeOptions
from distrl.plugins.builtin.evaluator.environment import EnvironmentEvaluator
from distrl.plugins.builtin.evaluator.state import StateEvaluator
from distrl.plugins.spec import Options
from distrl.testing import (
    check_collector,
    check_device,
    check_evaluator,
    check_task_source,
    make_context,
    make_observation,
    make_trajectory,
)

KINDS: tuple[Kind, ...] = ("open", "toggle", "search")
PHONES = [
    PhoneOptions(),
    PhoneOptions(latency=Latency(kind="lognormal", median_ms=1), spread=3),
    PhoneOptions(faults=Faults(crash_probability=0.2, lost_session_probability=0.2)),
]


@pytest.fixture
def context(tmp_path: Path) -> RoleContext:
    return make_context(tmp_path, clock=SystemClock())


def parts(context: RoleContext, options: PhoneOptions) -> CollectorParts:
    devices = [SimulatedPhone(options, context, index) for index in range(3)]
    return CollectorParts(devices, SimulatedTasks(TaskOptions(), context), None)


@pytest.mark.parametrize("kind", KINDS)
def test_the_phone(context: RoleContext, kind: Kind) -> None:
    tasks = SimulatedTasks(TaskOptions(kinds=(kind,)), context)
    task = tasks.sample("train", 1)
    check_device(SimulatedPhone(PhoneOptions(), context, 0), task)
    check_device(SimulatedPhone(PhoneOptions(), context, 1), task, tuple(tasks.demonstrate(task) or ()))


@pytest.mark.parametrize("kinds", [KINDS, ("search", "open"), ("toggle",)])
def test_the_tasks(context: RoleContext, kinds: tuple[Kind, ...]) -> None:
    check_task_source(SimulatedTasks(TaskOptions(kinds=kinds), context), samples=100)


@pytest.mark.parametrize("options", PHONES)
def test_the_episode_collector(context: RoleContext, options: PhoneOptions) -> None:
    collector = EpisodeCollector(EpisodeOptions(backoff_first_s=0.001), context, parts(context, options))
    check_collector(collector, Script(["press home", "jump", "tap 0.5 0.5"]), episodes=20)


@pytest.mark.parametrize("options", PHONES)
def test_the_demonstrator(context: RoleContext, options: PhoneOptions) -> None:
    collector = Demonstrator(EpisodeOptions(backoff_first_s=0.001), context, parts(context, options))
    check_collector(collector, None, episodes=20)


def test_the_evaluators(context: RoleContext) -> None:
    final = context.artefacts.record(replace(make_observation(), ui_tree=json.dumps({"resource_id": "a", "text": "b"})))
    batch = [
        make_trajectory(
            f"episode-{equals}",
            checks=json.dumps([{"resource_id": check.resource_id, "attribute": "text", "equals": check.equals}]),
            final_observation=final,
            environment_outcome=outcome,
        )
        for equals, outcome in (("b", 1.0), ("c", 0.0))
        for check in (Check("a", "text", equals),)
    ]
    for evaluator in (StateEvaluator(Options(), context), EnvironmentEvaluator(Options(), context)):
        check_evaluator(evaluator, batch)
        assert [verdict.success for verdict in evaluator.evaluate(batch)] == [1.0, 0.0]
