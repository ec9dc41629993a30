"""The learner ``example-a-ride``: the built-in one, with a count of its updates among the metrics."""

from __future__ import annotations

from dataclasses import replace

import distrl
from distrl.plugins.builtin.learner.a_ride import ARide


class ExampleLearner(ARide):
    name = "example-a-ride"
    _updates = 0

    def update(self, version: int) -> distrl.UpdateResult:
        result = super().update(version)
        self._updates += 1
        return replace(result, metrics={**result.metrics, "example.updates": float(self._updates)})
