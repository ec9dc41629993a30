"""Demonstrations: successful episodes to clone. Used by learners with a warm start; one thread."""

from __future__ import annotations

import random
from collections.abc import Sequence

from distrl.core.contracts.policy import PolicyInput, TrainablePolicy
from distrl.core.contracts.role import Experience
from distrl.plugins.builtin.learner.screen_cache import ScreenCache
from distrl.plugins.builtin.learner.transition import policy_input

Demonstrated = tuple[PolicyInput, tuple[int, ...]]
"""What was seen, and the tokens of what was done."""


class DemonstrationSet:
    """At most ``wanted`` demonstrations, in the order they came."""

    def __init__(self, wanted: int, policy: TrainablePolicy, screens: ScreenCache) -> None:
        self._wanted = wanted
        self._policy = policy
        self._screens = screens
        self._kept: dict[str, Experience] = {}
        self._steps: list[tuple[Experience, int, tuple[int, ...]]] = []
        self._read = 0
        self.unsayable = 0
        """Demonstrated steps that the policy has no tokens for; they are left out."""

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def lacking(self) -> int:
        return self._wanted - len(self._kept)

    @property
    def ids(self) -> list[str]:
        return list(self._kept)

    def add(self, experience: Experience) -> str:
        """Keep a demonstration; returns why not, or an empty text."""
        if not experience.trajectory.steps:
            return "empty"
        if experience.reward.success < 1.0:
            return "unsuccessful"
        if self.lacking <= 0:
            return "surplus"
        self._kept[experience.trajectory.trajectory_id] = experience
        return ""

    def sample(self, count: int, source: random.Random) -> Sequence[Demonstrated]:
        """``count`` demonstrated steps, each drawn from all alike; none if there are none."""
        self._read_steps()
        if not self._steps:
            return []
        chosen = source.choices(self._steps, k=count)
        return [
            (policy_input(experience.trajectory, place, self._screens), tokens) for experience, place, tokens in chosen
        ]

    def _read_steps(self) -> None:
        for experience in list(self._kept.values())[self._read :]:
            trajectory = experience.trajectory
            for place, step in enumerate(trajectory.steps):
                item = policy_input(trajectory, place, self._screens)
                tokens = self._policy.encode_action(item, step.action)
                if tokens is None:
                    self.unsayable += 1
                else:
                    self._steps.append((experience, place, tokens))
            self._read += 1
