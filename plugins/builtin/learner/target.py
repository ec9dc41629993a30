"""Targets of A-RIDE over one trajectory: TD errors, Retrace on state values, advantages. Plain numbers in and out.

Called by ``ARide`` for every sampled trajectory. With ``rho_t = pi(a_t|s_t) / mu(a_t|s_t)`` and ``c_t = lambda * min(1, rho_t)``::

    td_t = r_t + gamma * V(s_{t+1}) * (1 - done_t) - V(s_t)
    retrace:  D_t = td_t + gamma * c_{t+1} * D_{t+1}                  (no ratio on the first term; arXiv 2410.14803)
    v-trace:  D_t = min(1, rho_t) * td_t + gamma * c_t * D_{t+1}      (Espeholt et al. 2018, equation 1)
    V_target(s_t) = V(s_t) + D_t
    corrected: A_t = r_t + gamma * V_target(s_{t+1}) * (1 - done_t) - V(s_t)
    one-step:  A_t = td_t
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Trace = Literal["retrace", "v-trace"]
Advantage = Literal["corrected", "one-step"]


@dataclass(frozen=True, slots=True)
class Target:
    """Targets of one trajectory of T steps; each of shape [T]."""

    td: tuple[float, ...]
    values: tuple[float, ...]
    """``V_target``."""
    advantages: tuple[float, ...]
    returns: tuple[float, ...]
    """``G_t``: the discounted reward that followed, without any bootstrap."""


def trajectory_target(
    rewards: Sequence[float],
    values: Sequence[float],
    ratios: Sequence[float],
    *,
    gamma: float,
    trace_lambda: float,
    trace: Trace = "retrace",
    advantage: Advantage = "corrected",
    bootstrap: float | None = None,
) -> Target:
    """Targets of a trajectory. ``rewards``, ``values`` and ``ratios`` have shape [T], T may be 0.

    ``bootstrap`` is the value of the state after the last step if the episode was cut there; ``None``: the last step is
    terminal.
    """
    count = len(rewards)
    if len(values) != count or len(ratios) != count:
        raise ValueError("rewards, values and ratios must have one entry a step")
    td, targets, advantages, returns = ([0.0] * count for _ in range(4))
    following = target_after = 0.0 if bootstrap is None else bootstrap
    correction = 0.0  # D_{t+1}
    trace_after = 0.0  # c_{t+1}
    future = 0.0
    for step in reversed(range(count)):
        clipped = min(1.0, ratios[step])
        td[step] = rewards[step] + gamma * following - values[step]
        if trace == "retrace":
            correction = td[step] + gamma * trace_after * correction
        else:
            correction = clipped * td[step] + gamma * trace_lambda * clipped * correction
        ahead = target_after if advantage == "corrected" else following
        advantages[step] = rewards[step] + gamma * ahead - values[step]
        targets[step] = target_after = values[step] + correction
        future = returns[step] = rewards[step] + gamma * future
        following = values[step]
        trace_after = trace_lambda * clipped
    return Target(tuple(td), tuple(targets), tuple(advantages), tuple(returns))
