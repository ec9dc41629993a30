"""The collector ``demonstrator``: records what the task source demonstrates. Made by the node that does so before training.

It runs the episode collector with a script in the policy's place, so a demonstration goes the same way as any episode. Log-probabilities
are 0: a script chooses with certainty.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from distrl.core.contracts.events import Trajectory
from distrl.core.contracts.identity import derived_id
from distrl.core.contracts.policy import PolicyAction, PolicyInput
from distrl.core.contracts.role import CollectorParts, RoleContext, Ticket
from distrl.core.errors import TaskError, WeightsError
from distrl.plugins.builtin.collector.episode import EpisodeCollector
from distrl.plugins.builtin.collector.episode_options import EpisodeOptions

DRAWS = 100
"""Tasks drawn in search of one that the source can demonstrate."""
SCRIPT = "script"
"""What a demonstration names as its policy."""


class Script:
    """A ``Policy`` for one episode: the actions of a demonstration, then ``done``."""

    name = SCRIPT
    base_model = ""

    def __init__(self, actions: Sequence[str]) -> None:
        self._actions = (*actions, "done")

    @property
    def sampling(self) -> Mapping[str, float]:
        return {}

    def act(self, batch: Sequence[PolicyInput], *, greedy: bool = False) -> Sequence[PolicyAction]:
        del greedy
        last = len(self._actions) - 1
        return [PolicyAction(self._actions[min(len(item.previous_actions), last)], (), (), 0.0) for item in batch]

    def load(self, path: Path) -> None:
        raise WeightsError(f"a script has no weights; {path} was offered")

    def save(self, path: Path) -> None:
        raise WeightsError(f"a script has no weights to save in {path}")


class Demonstrator:
    """A ``Collector`` whose trajectories have the origin ``demonstration``. Tickets need no policy."""

    uses_weights = False

    def __init__(self, options: EpisodeOptions, context: RoleContext, parts: CollectorParts) -> None:
        self._split = options.split
        self._tasks = parts.tasks
        self._episodes = EpisodeCollector(options, context, parts)

    def in_flight(self) -> int:
        return self._episodes.in_flight()

    def advance(self, ticket: Callable[[], Ticket | None]) -> Sequence[Trajectory]:
        """Raises ``TaskError`` if the source demonstrates none of a hundred tasks."""
        return [_demonstration(item) for item in self._episodes.advance(lambda: self._scripted(ticket()))]

    def confirm(self, trajectory: Trajectory) -> None:
        self._episodes.confirm(trajectory)

    def close(self) -> Sequence[Trajectory]:
        return [_demonstration(item) for item in self._episodes.close()]

    def _scripted(self, ticket: Ticket | None) -> Ticket | None:
        if ticket is None:
            return None
        seed = ticket.seed
        for draw in range(DRAWS):
            task = self._tasks.sample(self._split, seed)
            actions = self._tasks.demonstrate(task)
            if actions is not None:
                script = Script([str(action) for action in actions])
                return replace(ticket, seed=seed, policy=script, epoch=0, version=0)
            seed = int(derived_id("demonstration", str(ticket.seed), str(draw))[:12], 16)
        raise TaskError(f"the task source demonstrates none of {DRAWS} tasks; set collector.demonstrations to 0")


def _demonstration(item: Trajectory) -> Trajectory:
    """Mark its origin. One that the benchmark says has failed teaches the wrong thing: it ends as aborted."""
    item = replace(item, origin="demonstration")
    if item.outcome == "aborted" or item.environment_outcome is None or item.environment_outcome > 0:
        return item
    return replace(
        item,
        outcome="aborted",
        error_class=TaskError.__name__,
        error=f"[{TaskError.code}] the demonstration of task {item.task_id} does not solve it",
    )
