"""A one-file plugin: the prioritizer ``surprise``, which prefers episodes that went otherwise than the policy thought.

``distrl run --config run.toml --plugin examples/plugins/prioritizer.py --set prioritizer.plugin=surprise``
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

import distrl


class SurpriseOptions(distrl.Options):
    least: float = Field(
        default=0.05, gt=0, description="priority of what was foreseen exactly, so that it is not forgotten"
    )


class Surprise:
    name = "surprise"

    def __init__(self, options: SurpriseOptions, context: distrl.RoleContext) -> None:
        self._least = options.least

    def arrived(self, batch: Sequence[tuple[distrl.Trajectory, distrl.Reward]]) -> Sequence[float]:
        return [self._surprise(trajectory, reward) for trajectory, reward in batch]

    def refreshed(self, batch: Sequence[distrl.Feedback]) -> Sequence[float | None]:
        """The learner's TD error is its surprise now."""
        return [None if item.mean_abs_td is None else self._least + item.mean_abs_td for item in batch]

    def _surprise(self, trajectory: distrl.Trajectory, reward: distrl.Reward) -> float:
        expected = trajectory.steps[0].value if trajectory.steps else None
        # Without an estimate nothing is known, and that is as surprising as it gets.
        return self._least + (1.0 if expected is None else abs(reward.success - expected))


@distrl.hookimpl
def distrl_prioritizers() -> Sequence[distrl.Registration[distrl.PrioritizerFactory]]:
    return [distrl.Registration("surprise", Surprise, SurpriseOptions, "prefers what the policy did not expect")]
