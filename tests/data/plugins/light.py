"""A policy ``light-taps`` and a learner ``light`` that need no torch: for tests of what surrounds learning."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import distrl
from distrl.core.contracts.action import Action
from distrl.core.contracts.policy import PolicyAction, PolicyInput
from distrl.core.contracts.role import Experience, UpdateResult, Wanted

BATCH = 4


class NoOptions(distrl.Options):
    """It has none."""


class LightTaps:
    """Taps anywhere; its weights are a few bytes."""

    name = "light-taps"
    base_model = ""
    sampling: Mapping[str, float] = {}

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def act(self, batch: Sequence[PolicyInput], *, greedy: bool = False) -> Sequence[PolicyAction]:
        del greedy
        point = (self._random.random(), self._random.random())
        return [PolicyAction(str(Action("tap", point=point)), (0,), (0.0,), 0.0) for _ in batch]

    def load(self, path: Path) -> None:
        json.loads(path.read_bytes())

    def save(self, path: Path) -> None:
        path.write_text(json.dumps({"taps": 1}))


class Light:
    """Counts what it gets: a version for each batch."""

    name = "light"
    batch = BATCH

    def __init__(self, policy: LightTaps) -> None:
        self.policy = policy
        self._ids: list[str] = []
        self._used = 0

    def use(self, staleness: Any) -> None:
        """It samples nothing."""

    def ingest(self, batch: Sequence[Experience]) -> None:
        self._ids += [item.trajectory.trajectory_id for item in batch]

    def prioritize(self, batch: Sequence[Any]) -> None:
        """It samples nothing."""

    def evictions(self) -> Mapping[str, str]:
        return {}

    def buffered(self) -> Sequence[str]:
        return self._ids

    def wanted(self) -> Wanted:
        return Wanted(policy=max(0, self._used + BATCH - len(self._ids)))

    def update(self, version: int) -> UpdateResult:
        self._used += BATCH
        return UpdateResult(True, metrics={"buffer.trajectories": len(self._ids), "loss/of.nothing": 0.0})

    def save(self, directory: Path) -> None:
        (directory / "state.json").write_text(json.dumps(self._used))

    def restore(self, directory: Path, buffered: Sequence[Experience]) -> None:
        self._used = json.loads((directory / "state.json").read_text())
        self.ingest(buffered)


@distrl.hookimpl
def distrl_policies() -> Sequence[distrl.Registration[Any]]:
    return [distrl.Registration("light-taps", lambda options, context: LightTaps(context.seed), NoOptions, "taps")]


@distrl.hookimpl
def distrl_learners() -> Sequence[distrl.Registration[Any]]:
    return [distrl.Registration("light", lambda options, context, policy: Light(policy), NoOptions, "counts")]
