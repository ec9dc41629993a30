"""The evaluator ``example-state``: the built-in one, with partial credit for episodes that take long."""

from __future__ import annotations

from collections.abc import Sequence

import distrl
from distrl.plugins.builtin.evaluator.state import StateEvaluator
from distrl_example_plugins.option import EvaluatorOptions


class ExampleEvaluator(StateEvaluator):
    name = "example-state"

    def __init__(self, options: EvaluatorOptions, context: distrl.RoleContext) -> None:
        super().__init__(distrl.Options(), context)
        self._discount = options.discount

    @property
    def version(self) -> str:  # type: ignore[override]
        """Other verdicts with another discount, so another version."""
        return f"1-{self._discount}"

    def evaluate(self, batch: Sequence[distrl.Trajectory]) -> Sequence[distrl.Verdict]:
        return [
            distrl.Verdict(verdict.success * self._discount ** max(len(trajectory.steps) - 1, 0), verdict.reason)
            for trajectory, verdict in zip(batch, super().evaluate(batch), strict=True)
        ]
