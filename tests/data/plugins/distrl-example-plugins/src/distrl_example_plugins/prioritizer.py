"""The prioritizer ``example-recent``: the newer the weights that acted, the higher the priority."""

from __future__ import annotations

from collections.abc import Sequence

import distrl
from distrl_example_plugins.option import PrioritizerOptions


class ExamplePrioritizer:
    name = "example-recent"

    def __init__(self, options: PrioritizerOptions, context: distrl.RoleContext) -> None:
        self._growth = options.growth

    def arrived(self, batch: Sequence[tuple[distrl.Trajectory, distrl.Reward]]) -> Sequence[float]:
        return [self._growth ** min(trajectory.version, 1000) for trajectory, _ in batch]

    def refreshed(self, batch: Sequence[distrl.Feedback]) -> Sequence[float | None]:
        """Age alone counts: what the learner found out changes nothing."""
        return [None for _ in batch]
