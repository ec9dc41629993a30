"""A one-file plugin: the evaluator ``state-strict``, which also wants every action to be a sound one.

``distrl run --config run.toml --plugin examples/plugins/evaluator.py --set evaluator.plugin=state-strict``
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

import distrl
from distrl.plugins.builtin.evaluator.state import StateEvaluator


class StrictOptions(distrl.Options):
    invalid_allowed: int = Field(default=0, ge=0, description="invalid actions that a success may contain")


class StrictEvaluator:
    name = "state-strict"
    version = "1"

    def __init__(self, options: StrictOptions, context: distrl.RoleContext) -> None:
        self._allowed = options.invalid_allowed
        self._state = StateEvaluator(distrl.Options(), context)

    def evaluate(self, batch: Sequence[distrl.Trajectory]) -> Sequence[distrl.Verdict]:
        pairs = zip(batch, self._state.evaluate(batch), strict=True)
        return [self._judge(trajectory, verdict) for trajectory, verdict in pairs]

    def _judge(self, trajectory: distrl.Trajectory, verdict: distrl.Verdict) -> distrl.Verdict:
        invalid = sum(step.invalid for step in trajectory.steps)
        if verdict.success > 0 and invalid > self._allowed:
            return distrl.Verdict(0.0, f"solved, but with {invalid} invalid actions")
        return verdict


@distrl.hookimpl
def distrl_evaluators() -> Sequence[distrl.Registration[distrl.EvaluatorFactory]]:
    return [distrl.Registration("state-strict", StrictEvaluator, StrictOptions, "success without invalid actions")]
