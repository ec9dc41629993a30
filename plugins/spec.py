"""The hooks that a plugin may implement. ``plugins.manager`` calls them; names and arguments are frozen by a test.

Two kinds. *Register* hooks run once, when a process starts, in every process that loads plugins (each node,
the supervisor, ``distrl plugins list``): they must be quick and import nothing heavy; do that in the factory. An exception in
one names the plugin and leaves it out; the others stay. *Observe* hooks run in the
node named, once a batch of events, never once a step; an exception in one is logged and ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pluggy
from pydantic import BaseModel, ConfigDict

from distrl.core.contracts.device import Device
from distrl.core.contracts.events import Reward, Trajectory, WeightsUpdate
from distrl.core.contracts.policy import Policy
from distrl.core.contracts.role import (
    Collector,
    CollectorParts,
    Evaluator,
    Learner,
    Prioritizer,
    RoleContext,
    UpdateResult,
)
from distrl.core.contracts.task import TaskSource

PROJECT = "distrl"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


class Options(BaseModel):
    """Base of a plugin's options: unknown keys are refused, values are frozen.

    Filled from the ``options`` table of the configuration section that picks the plugin. Give
    every field a default, its unit in its name or description.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)


FactoryT = TypeVar("FactoryT", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Registration(Generic[FactoryT]):
    """One thing that a plugin offers, under the name that a configuration picks it by."""

    name: str
    factory: FactoryT
    """Called in the process that needs the thing, with its options first; see the alias of each kind below."""
    options: type[Options] = Options
    summary: str = ""
    """One line for ``distrl plugins list``."""


CollectorFactory = Callable[[Any, RoleContext, CollectorParts], Collector]
EvaluatorFactory = Callable[[Any, RoleContext], Evaluator]
PrioritizerFactory = Callable[[Any, RoleContext], Prioritizer]
PolicyFactory = Callable[[Any, RoleContext], Policy]
LearnerFactory = Callable[[Any, RoleContext, Any], Learner]
"""Third argument: the policy to train, new, seeded with the run: a ``Policy``, of which a gradient learner wants a ``TrainablePolicy``."""
DeviceFactory = Callable[[Any, RoleContext, int], Device]
"""Third argument: the device's index on this node, from 0."""
TaskSourceFactory = Callable[[Any, RoleContext], TaskSource]


class RegisterSpec:
    """Register hooks: one a role, and policies, devices, task sources. Each returns its registrations."""

    @hookspec
    def distrl_collectors(self) -> Sequence[Registration[CollectorFactory]]:
        """Collectors. The factory runs in collector nodes."""
        return ()

    @hookspec
    def distrl_evaluators(self) -> Sequence[Registration[EvaluatorFactory]]:
        """Evaluators. The factory runs in evaluator nodes and in ``distrl evaluate``."""
        return ()

    @hookspec
    def distrl_prioritizers(self) -> Sequence[Registration[PrioritizerFactory]]:
        """Prioritizers. The factory runs in prioritizer nodes."""
        return ()

    @hookspec
    def distrl_learners(self) -> Sequence[Registration[LearnerFactory]]:
        """Learners. The factory runs in the learner node."""
        return ()

    @hookspec
    def distrl_policies(self) -> Sequence[Registration[PolicyFactory]]:
        """Policies. The factory runs in collector and learner nodes and in ``distrl evaluate``."""
        return ()

    @hookspec
    def distrl_devices(self) -> Sequence[Registration[DeviceFactory]]:
        """Devices. The factory runs in collector nodes and in ``distrl evaluate``, once a device."""
        return ()

    @hookspec
    def distrl_task_sources(self) -> Sequence[Registration[TaskSourceFactory]]:
        """Task sources. The factory runs in collector nodes and in ``distrl evaluate``."""
        return ()


class ObserveSpec:
    """Observe hooks: look on, change nothing. Called once a batch, in the node that is named."""

    @hookspec
    def distrl_on_trajectories(self, batch: Sequence[Trajectory]) -> None:
        """Collector node: these trajectories were acknowledged by the log."""

    @hookspec
    def distrl_on_rewards(self, batch: Sequence[Reward]) -> None:
        """Evaluator node: these verdicts were acknowledged by the log."""

    @hookspec
    def distrl_on_priorities(self, priorities: Mapping[str, float]) -> None:
        """Prioritizer node: these priorities, by trajectory id, were acknowledged by the log."""

    @hookspec
    def distrl_on_update(self, version: int, result: UpdateResult) -> None:
        """Learner node: one update was made on top of ``version``."""

    @hookspec
    def distrl_on_weights(self, update: WeightsUpdate) -> None:
        """Learner node: published. Collector node: verified and swapped in."""
