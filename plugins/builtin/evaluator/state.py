"""The evaluator ``state``: checks the final UI tree against the task's conditions. Made by evaluator nodes.

It judges from what the trajectory recorded alone, so verdicts can be made again from a recorded log.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import cast

from distrl.core.contracts.events import Trajectory
from distrl.core.contracts.role import RoleContext, Verdict
from distrl.core.contracts.task import Check, UiNode
from distrl.core.errors import InvalidEventError
from distrl.plugins.spec import Options


class StateEvaluator:
    """An ``Evaluator``. Success is 1 if all conditions hold, else 0; the reason names the first that does not.

    Raises ``InvalidEventError`` for a trajectory without conditions or without a final UI tree, and for malformed ones.
    """

    name = "state"
    version = "1"

    def __init__(self, options: Options, context: RoleContext) -> None:
        del options
        self._artefacts = context.artefacts

    def evaluate(self, batch: Sequence[Trajectory]) -> Sequence[Verdict]:
        return [self._judge(trajectory) for trajectory in batch]

    def _judge(self, trajectory: Trajectory) -> Verdict:
        checks = _checks(trajectory)
        final = trajectory.final_observation
        if final is None or final.ui_tree is None:
            raise InvalidEventError(
                f"trajectory {trajectory.trajectory_id} has no final UI tree; its device gives none: use another evaluator"
            )
        nodes = list(_walk(_tree(trajectory, self._artefacts.read(final.ui_tree))))
        for check in checks:
            if not any(_value(node, check.attribute) == check.equals for node in nodes if _is(node, check)):
                return Verdict(0.0, f"{check.resource_id}: {check.attribute} is not {check.equals!r}")
        return Verdict(1.0)


def _checks(trajectory: Trajectory) -> list[Check]:
    try:
        checks = [Check(**item) for item in json.loads(trajectory.checks)]
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidEventError(f"trajectory {trajectory.trajectory_id}: malformed checks: {error}") from error
    if not checks:
        raise InvalidEventError(
            f"trajectory {trajectory.trajectory_id}: task {trajectory.task_id!r} defines no checks; use another evaluator"
        )
    for check in checks:
        if check.attribute not in ("text", "checked"):
            raise InvalidEventError(
                f"trajectory {trajectory.trajectory_id}: a check on {check.attribute!r}; there are text and checked"
            )
    return checks


def _tree(trajectory: Trajectory, data: bytes) -> UiNode:
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InvalidEventError(f"trajectory {trajectory.trajectory_id}: malformed UI tree: {error}") from error
    if not isinstance(tree, dict):
        raise InvalidEventError(f"trajectory {trajectory.trajectory_id}: the UI tree is no JSON object")
    return cast(UiNode, tree)


def _walk(root: UiNode) -> Iterator[UiNode]:
    """Every node, whatever else an alien tree may hold."""
    left = [root]
    while left:
        node = left.pop()
        yield node
        children: object = node.get("children")
        if isinstance(children, list):
            left.extend(cast(UiNode, child) for child in children if isinstance(child, dict))


def _is(node: UiNode, check: Check) -> bool:
    return node.get("resource_id") == check.resource_id


def _value(node: UiNode, attribute: str) -> str | None:
    """An attribute as text; ``None`` if the node has none."""
    value = node.get("text") if attribute == "text" else node.get("checked")
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else None
