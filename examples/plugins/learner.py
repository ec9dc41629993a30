"""A one-file plugin: the learner ``a-ride-by-kind``, which is ``a-ride`` and reports the success of each kind of task.

``distrl run --config run.toml --plugin examples/plugins/learner.py --set learner.plugin=a-ride-by-kind``
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from pydantic import Field

import distrl
from distrl.plugins.builtin.learner.a_ride_options import ARideOptions


class ByKindOptions(ARideOptions):
    window: int = Field(default=50, ge=1, description="episodes of a kind that its success is averaged over")


def make_learner(options: ByKindOptions, context: distrl.RoleContext, policy: distrl.TrainablePolicy) -> distrl.Learner:
    """Imports torch only here: this file is loaded in every process, the learner runs in one."""
    from distrl.plugins.builtin.learner.a_ride import ARide

    class ARideByKind(ARide):
        name = "a-ride-by-kind"

        def __init__(self) -> None:
            super().__init__(options, context, policy)
            self._successes: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=options.window))

        def ingest(self, batch: Sequence[distrl.Experience]) -> None:
            super().ingest(batch)
            for item in batch:
                if item.trajectory.origin == "policy":
                    self._successes[item.trajectory.task_kind].append(item.reward.success)

        def update(self, version: int) -> distrl.UpdateResult:
            result = super().update(version)
            by_kind = {f"success.{kind}": fmean(values) for kind, values in self._successes.items()}
            return replace(result, metrics={**result.metrics, **by_kind})

    return ARideByKind()


@distrl.hookimpl
def distrl_learners() -> Sequence[distrl.Registration[distrl.LearnerFactory]]:
    return [distrl.Registration("a-ride-by-kind", make_learner, ByKindOptions, "a-ride with success by kind of task")]
