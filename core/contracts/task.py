"""Tasks: what an agent is asked to do, how success is recognised, and where tasks come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypedDict

from distrl.core.contracts.action import Action
from distrl.core.contracts.events import Split


class UiNode(TypedDict, total=False):
    """One node of a UI tree, as JSON. The names are those of Android's UI hierarchy."""

    resource_id: str
    class_name: str
    text: str
    checked: bool
    focused: bool
    bounds: list[float]
    """[left, top, right, bottom] as fractions of the screen."""
    children: list[UiNode]


@dataclass(frozen=True, slots=True)
class Check:
    """One condition on a UI tree: some node of this ``resource_id`` has this value.

    All checks of a task must hold at the end for the evaluator ``state`` to judge it a success.
    """

    resource_id: str
    attribute: str
    """``text`` or ``checked``."""
    equals: str
    """As text; booleans as ``true`` and ``false``."""


@dataclass(frozen=True, slots=True)
class Task:
    """One task instance."""

    task_id: str
    """Its identity: the same id is the same goal, start and checks. Train and test share none."""
    kind: str
    split: Split
    goal: str
    seed: int
    """Of the device's start state."""
    horizon: int
    """Steps."""
    checks: tuple[Check, ...] = ()
    parameters: dict[str, str] = field(default_factory=dict)
    """What the device needs to set the task up."""


class TaskSource(Protocol):
    """Where tasks come from. Registered by ``distrl_register_task_sources``; one lives in each collector."""

    def kinds(self) -> Sequence[str]:
        """The kinds of task it gives."""

    def sample(self, split: Split, seed: int) -> Task:
        """A task drawn with ``seed``: the same seed gives the same task."""

    def instances(self, split: Split, limit: int) -> Sequence[Task]:
        """Up to ``limit`` distinct tasks, the kinds in equal shares, always the same: what is evaluated on."""

    def demonstrate(self, task: Task) -> Sequence[Action] | None:
        """Actions that solve the task from its start, or ``None`` if the source knows none."""
