"""No priorities: every trajectory alike. Runs in prioritizer nodes; the baseline that ``dper`` is measured against."""

from __future__ import annotations

from collections.abc import Sequence

from distrl.core.contracts.events import Feedback, Reward, Trajectory
from distrl.core.contracts.role import RoleContext
from distrl.plugins.spec import Options


class Uniform:
    """The prioritizer ``uniform``."""

    name = "uniform"

    def __init__(self, _options: Options, _context: RoleContext) -> None:
        pass

    def arrived(self, batch: Sequence[tuple[Trajectory, Reward]]) -> Sequence[float]:
        """1 for each; 0 for one without steps."""
        return [1.0 if trajectory.steps else 0.0 for trajectory, _ in batch]

    def refreshed(self, batch: Sequence[Feedback]) -> Sequence[float | None]:
        """Nothing changes."""
        return [None] * len(batch)
