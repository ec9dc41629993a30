"""The evaluator ``environment``: takes over what the benchmark itself says. Made by evaluator nodes."""

from __future__ import annotations

from collections.abc import Sequence

from distrl.core.contracts.events import Trajectory
from distrl.core.contracts.role import RoleContext, Verdict
from distrl.core.errors import InvalidEventError
from distrl.plugins.spec import Options


class EnvironmentEvaluator:
    """An ``Evaluator``. Success is the recorded ``environment_outcome``, from 0 to 1.

    Raises ``InvalidEventError`` for a trajectory that has none.
    """

    name = "environment"
    version = "1"

    def __init__(self, options: Options, context: RoleContext) -> None:
        del options, context

    def evaluate(self, batch: Sequence[Trajectory]) -> Sequence[Verdict]:
        return [_judge(trajectory) for trajectory in batch]


def _judge(trajectory: Trajectory) -> Verdict:
    outcome = trajectory.environment_outcome
    if outcome is None:
        raise InvalidEventError(
            f"trajectory {trajectory.trajectory_id} carries no outcome of its environment; use another evaluator"
        )
    return Verdict(outcome, "" if outcome > 0 else "the environment reports no success")
