"""The collector ``example-episodes``: the built-in one, with a label on each trajectory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import distrl
from distrl.plugins.builtin.collector.episode import EpisodeCollector
from distrl.plugins.builtin.collector.episode_options import EpisodeOptions
from distrl_example_plugins.option import CollectorOptions


class ExampleCollector(EpisodeCollector):
    def __init__(self, options: CollectorOptions, context: distrl.RoleContext, parts: distrl.CollectorParts) -> None:
        super().__init__(EpisodeOptions(**options.model_dump(exclude={"label"})), context, parts)
        self._label = options.label

    def advance(self, ticket: Callable[[], distrl.Ticket | None]) -> Sequence[distrl.Trajectory]:
        return [self._labelled(trajectory) for trajectory in super().advance(ticket)]

    def close(self) -> Sequence[distrl.Trajectory]:
        return [self._labelled(trajectory) for trajectory in super().close()]

    def _labelled(self, trajectory: distrl.Trajectory) -> distrl.Trajectory:
        return replace(trajectory, attributes={**trajectory.attributes, "label": self._label})
