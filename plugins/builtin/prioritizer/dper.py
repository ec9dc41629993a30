"""Distributed prioritized experience replay: the priority rule of A-RIDE. Runs in prioritizer nodes.

``p = w1 * mean|td| + w2 * mean(min(rho, rho_max)) + w3 * mean(H)`` over a trajectory's steps (Section "Prioritized replay" of
the method; weights 50, 1, 0.01 as published). It works on the numbers that ride on the events alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from distrl.core.contracts.events import Feedback, Reward, Trajectory
from distrl.core.contracts.role import RoleContext
from distrl.plugins.builtin.prioritizer.dper_options import DperOptions


class Dper:
    """The prioritizer ``dper``."""

    name = "dper"

    def __init__(self, options: DperOptions, _context: RoleContext) -> None:
        self._options = options
        # Before any trajectory told more: the priority of one that is wrong by 1 at every step.
        self._highest = options.td_weight + options.ratio_weight

    def arrived(self, batch: Sequence[tuple[Trajectory, Reward]]) -> Sequence[float]:
        """From the recorded values, entropies and the reward, on policy (ratio 1). Where a value was not recorded: the
        highest priority so far. A trajectory without steps can teach nothing and gets 0."""
        return [self._new(trajectory, reward.success) for trajectory, reward in batch]

    def refreshed(self, batch: Sequence[Feedback]) -> Sequence[float | None]:
        """From the learner's fresh numbers; ``None`` where the feedback carries no TD error."""
        return [self._seen(feedback) for feedback in batch]

    def _new(self, trajectory: Trajectory, success: float) -> float:
        steps = trajectory.steps
        if not steps:
            return 0.0
        values = [step.value for step in steps if step.value is not None]
        if len(values) != len(steps):
            return self._highest
        following = [*(self._options.gamma * value for value in values[1:]), success]
        td = math.fsum(abs(after - now) for now, after in zip(values, following, strict=True)) / len(steps)
        return self._rule(td, 1.0, math.fsum(step.entropy for step in steps) / len(steps))

    def _seen(self, feedback: Feedback) -> float | None:
        if feedback.mean_abs_td is None:
            return None
        ratio = 1.0 if feedback.mean_ratio is None else feedback.mean_ratio
        return self._rule(feedback.mean_abs_td, ratio, feedback.mean_entropy or 0.0)

    def _rule(self, td: float, ratio: float, entropy: float) -> float:
        options = self._options
        priority = options.td_weight * td + options.ratio_weight * ratio + options.entropy_weight * entropy
        if not math.isfinite(priority):
            return self._highest  # a broken number must not starve or flood the buffer
        priority = max(priority, 0.0)
        self._highest = max(self._highest, priority)
        return priority
