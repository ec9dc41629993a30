"""How old is too old: one policy object that collectors and learner both ask.

Pace (default): the learner says with every weight update how many episodes each living collector may start until
the next one. Withhold: a trajectory that lags more than ``max_lag`` versions is not sampled.
Admission and eviction use the same numbers, so they cannot drift apart.

Neither side can wait for the other for ever: whenever the learner waits for data, the allowances that it has
announced to the living collectors sum to at least what its next batch lacks; when a collector dies or joins, or nothing
comes for ``renew_s`` seconds, it announces anew (same version, next sequence).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from distrl.core.contracts.events import WeightsUpdate


@dataclass(frozen=True, slots=True)
class StalenessPolicy:
    """``max_lag`` in versions (0: without bound); ``batch``: new trajectories that one version consumes."""

    max_lag: int
    batch: int
    pace: bool = True
    renew_s: float = 10.0

    def allowance(self, *, live_collectors: int, lacking: int, backlog: int) -> int:
        """Episodes that each of ``live_collectors`` may start on the version now announced; -1 without bound.

        ``lacking``: new trajectories that the learner's next batch still needs and that are not on their way; pass
        all that it needs when nothing has come for a while, so that a verdict which never comes holds nobody up.
        ``backlog``: trajectories collected and not yet trained on. The total keeps what is on its way within
        ``max_lag`` batches, never below ``lacking``; it is rounded up for each, so the living always cover the batch.
        """
        if not self.pace or self.max_lag == 0:
            return -1
        total = max(lacking, self.batch * self.max_lag - backlog, 0)
        return math.ceil(total / max(live_collectors, 1))

    def may_start(self, update: WeightsUpdate | None, started: int) -> bool:
        """Whether a collector that has started ``started`` episodes since ``update`` may start another.

        An aborted episode does not count as started. Without weights nothing may start.
        """
        if update is None:
            return False
        return update.allowance < 0 or started < update.allowance

    def withheld(self, *, version: int, newest: int) -> bool:
        """Whether a policy trajectory of ``version`` is too old to be sampled when ``newest`` is the learner's."""
        return self.max_lag > 0 and newest - version > self.max_lag


def is_newer(update: WeightsUpdate, than: WeightsUpdate | None) -> bool:
    """Whether ``update`` supersedes ``than``: by (epoch, version, sequence), whatever their offsets.

    A newer epoch never announces a lower version: versions go on from the log's highest.
    """
    if than is None:
        return True
    return (update.epoch, update.version, update.sequence) > (than.epoch, than.version, than.sequence)
