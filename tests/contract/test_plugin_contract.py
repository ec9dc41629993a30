"""Every plugin that ships, and every example, keeps the contract that the test kit checks; examples work in a pipeline."""

from __future__ import annotations

import importlib
import logging
import tomllib
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from distrl.core.contracts.clock import SystemClock
from distrl.core.contracts.events import WeightsUpdate
from distrl.core.contracts.role import CollectorParts, RoleContext
from distrl.plugins.manager import Kind, PluginManager, load_plugins
from distrl.plugins.source import Found
from distrl.testing import (
    MemoryArtefacts,
    Pipeline,
    check_collector,
    check_device,
    check_evaluator,
    check_learner,
    check_policy,
    check_prioritizer,
    check_task_source,
    make_blob,
    make_context,
    make_envelope,
)

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "examples" / "plugins").glob("*.py"))
PACKAGE = ROOT / "tests" / "data" / "plugins" / "distrl-example-plugins"
SMALL = {"demonstrations": 0, "batch": 4, "samples": 4}
FILE_NAMES: dict[Kind, str] = {
    "collector": "timed-episodes",
    "evaluator": "state-strict",
    "prioritizer": "surprise",
    "learner": "a-ride-by-kind",
}
PACKAGE_NAMES: dict[Kind, str] = {
    "collector": "example-episodes",
    "evaluator": "example-state",
    "prioritizer": "example-recent",
    "learner": "example-a-ride",
}
Make = Callable[..., Any]


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> PluginManager:
    """Ours, the one-file examples and the example package."""
    monkeypatch.syspath_prepend(str(PACKAGE / "src"))
    manager = load_plugins(FILES, entry_points=False, strict=True)
    points = tomllib.loads((PACKAGE / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"][
        "distrl"
    ]
    for name, module in points.items():
        manager.add(Found(name, module, partial(importlib.import_module, module)))
    return manager


@pytest.fixture
def make(plugins: PluginManager, context: Callable[[], RoleContext]) -> Make:
    def make(kind: Kind, name: str, options: dict[str, Any] | None = None, *arguments: Any) -> Any:
        return plugins.create(kind, name, options or {}, context(), *arguments)

    return make


@pytest.fixture
def context(tmp_path: Path) -> Callable[[], RoleContext]:
    """Contexts that share their artefacts, as the nodes of a run share a store. Real time: devices have threads."""
    artefacts, numbers = MemoryArtefacts(), count()

    def context() -> RoleContext:
        folder = tmp_path / f"node-{next(numbers)}"
        folder.mkdir()
        return make_context(folder, clock=SystemClock(), artefacts=artefacts)

    return context


def parts(make: Make) -> CollectorParts:
    devices = [make("device", "simulated-phone", {}, index) for index in range(2)]
    return CollectorParts(devices, make("task_source", "simulated-phone"), None)


@pytest.mark.parametrize("name", ["state", "environment", "state-strict", "example-state"])
def test_evaluator(make: Make, name: str) -> None:
    check_evaluator(make("evaluator", name))


@pytest.mark.parametrize("name", ["dper", "uniform", "surprise", "example-recent"])
def test_prioritizer(make: Make, name: str) -> None:
    check_prioritizer(make("prioritizer", name))


def test_simulated_task_source(make: Make) -> None:
    check_task_source(make("task_source", "simulated-phone"))


def test_simulated_device(make: Make) -> None:
    task = make("task_source", "simulated-phone").sample("train", 1)
    check_device(make("device", "simulated-phone", {}, 0), task)


def test_demonstrator(make: Make) -> None:
    check_collector(make("collector", "demonstrator", {}, parts(make)), None)


@pytest.mark.torch
@pytest.mark.parametrize("name", ["episodes", "timed-episodes", "example-episodes"])
def test_collector(make: Make, name: str) -> None:
    check_collector(make("collector", name, {}, parts(make)), make("policy", "factored"))


@pytest.mark.torch
def test_policy(make: Make, tmp_path: Path) -> None:
    check_policy(make("policy", "factored"), tmp_path)


@pytest.mark.torch
@pytest.mark.parametrize("name", ["a-ride", "a-ride-by-kind", "example-a-ride"])
def test_learner(make: Make, tmp_path: Path, name: str) -> None:
    check_learner(lambda: make("learner", name, SMALL, make("policy", "factored")), tmp_path / "check")


@pytest.mark.torch
@pytest.mark.parametrize("names", [FILE_NAMES, PACKAGE_NAMES], ids=["files", "package"])
def test_foreign_plugins_of_all_roles_work_together(make: Make, names: dict[Kind, str]) -> None:
    pipeline = Pipeline(
        make("collector", names["collector"], {}, parts(make)),
        make("evaluator", names["evaluator"]),
        make("prioritizer", names["prioritizer"]),
        make(
            "learner", names["learner"], SMALL | {"demonstrations": 3, "clone_updates": 4}, make("policy", "factored")
        ),
        demonstrator=make("collector", "demonstrator", {}, parts(make)),
    )
    log = pipeline.run(2)
    assert log.versions == 2
    policy = [item for item in log.trajectories if item.origin == "policy"]
    assert len(policy) >= 4
    assert len(log.trajectories) - len(policy) >= 3
    assert {item.evaluator for item in log.rewards} == {names["evaluator"]}
    assert {item.prioritizer for item in log.priorities} == {names["prioritizer"]}
    assert {item.trajectory_id for item in log.priorities} >= {item.trajectory_id for item in policy}
    ingested = [item.trajectory_id for item in log.feedback if item.kind == "ingested"]
    assert sorted(ingested) == sorted(item.trajectory_id for item in log.trajectories)
    mark = "label" if names is PACKAGE_NAMES else "device_ms"
    assert all(mark in item.attributes for item in policy)


def test_the_observer_of_the_example_package_is_called(
    plugins: PluginManager, caplog: pytest.LogCaptureFixture
) -> None:
    blob = make_blob(b"weights", "application/octet-stream")
    with caplog.at_level(logging.INFO):
        plugins.observe("distrl_on_weights", update=WeightsUpdate(make_envelope(), "factored", 1, 5, 0, blob))
    assert "example plugin saw version 5" in caplog.messages
