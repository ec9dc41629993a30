"""A one-file plugin: the collector ``timed-episodes``, which notes on each trajectory how long devices and policy took.

``distrl run --config run.toml --plugin examples/plugins/collector.py --set collector.plugin=timed-episodes``
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import distrl
from distrl.plugins.builtin.collector.episode import EpisodeCollector
from distrl.plugins.builtin.collector.episode_options import EpisodeOptions


class TimedCollector:
    def __init__(self, options: EpisodeOptions, context: distrl.RoleContext, parts: distrl.CollectorParts) -> None:
        self._episodes = EpisodeCollector(options, context, parts)

    @property
    def uses_weights(self) -> bool:
        return self._episodes.uses_weights

    def advance(self, ticket: Callable[[], distrl.Ticket | None]) -> Sequence[distrl.Trajectory]:
        return [timed(trajectory) for trajectory in self._episodes.advance(ticket)]

    def in_flight(self) -> int:
        return self._episodes.in_flight()

    def confirm(self, trajectory: distrl.Trajectory) -> None:
        self._episodes.confirm(trajectory)

    def close(self) -> Sequence[distrl.Trajectory]:
        return [timed(trajectory) for trajectory in self._episodes.close()]


def timed(trajectory: distrl.Trajectory) -> distrl.Trajectory:
    """With the milliseconds spent on devices, and on all else, in its attributes."""
    device = sum(max(step.done_ms - step.chosen_ms, 0) for step in trajectory.steps if step.done_ms)
    rest = trajectory.ended_ms - trajectory.started_ms - device
    return replace(trajectory, attributes={**trajectory.attributes, "device_ms": str(device), "other_ms": str(rest)})


@distrl.hookimpl
def distrl_collectors() -> Sequence[distrl.Registration[distrl.CollectorFactory]]:
    return [distrl.Registration("timed-episodes", TimedCollector, EpisodeOptions, "notes where an episode's time went")]
