"""From recorded trajectories to what a policy is evaluated on, and to the actor's rewards. Used by learners."""

from __future__ import annotations

from distrl.core.contracts.events import Trajectory
from distrl.core.contracts.policy import PolicyInput
from distrl.plugins.builtin.learner.a_ride_options import ARideOptions
from distrl.plugins.builtin.learner.screen_cache import ScreenCache


def policy_input(trajectory: Trajectory, place: int, screens: ScreenCache) -> PolicyInput:
    """What the policy saw at one step: the same as the collector gave it when it acted."""
    actions = tuple(step.action for step in trajectory.steps[:place])
    return PolicyInput(trajectory.goal, screens.observation(trajectory.steps[place].observation), actions)


def final_input(trajectory: Trajectory, screens: ScreenCache) -> PolicyInput | None:
    """What the policy would see after the last step; ``None`` if it was not recorded."""
    if trajectory.final_observation is None:
        return None
    actions = tuple(step.action for step in trajectory.steps)
    return PolicyInput(trajectory.goal, screens.observation(trajectory.final_observation), actions)


def rewards(trajectory: Trajectory, success: float) -> list[float]:
    """Sparse: the verdict on the last step, 0 before. Penalties are not in it: values stay probabilities."""
    return [0.0] * (len(trajectory.steps) - 1) + [success] if trajectory.steps else []


def penalties(trajectory: Trajectory, options: ARideOptions) -> list[float]:
    """What comes off the actor's advantage at each step: for acting at all, for repeating, for being invalid."""
    found = []
    before = None
    for step in trajectory.steps:
        penalty = options.step_penalty
        if step.action == before:
            penalty += options.repeat_penalty
        if step.invalid:
            penalty += options.invalid_penalty
        found.append(penalty)
        before = step.action
    return found
