"""What a supervised run tells while it goes on. Made by ``core.runtime.supervisor``, shown by ``core.cli.live``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from distrl.core.contracts.events import NodeState, Role

Phase = Literal["starting", "training", "draining", "evaluating", "done"]


@dataclass(frozen=True, slots=True)
class NodeLine:
    """One node process as the supervisor sees it."""

    node: str
    role: Role
    state: NodeState
    waiting_for: str = ""
    """Which side it waits for; empty when it works."""
    version: int = 0
    """The newest weights that it uses."""
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class Progress:
    """One look at a run. Shares are from 0 to 1."""

    phase: Phase
    seconds: float
    """Since this supervisor started."""
    budget_fraction: float | None = None
    """Share of the nearest budget that is spent; ``None`` without a budget."""
    episodes: int = 0
    """Finished episodes of the policy."""
    aborted: int = 0
    success: float | None = None
    """Moving average over the policy's latest judged episodes; ``None`` before the first verdict."""
    success_by_kind: Mapping[str, float] = field(default_factory=dict)
    version: int = 0
    """Newest weights."""
    versions: int = 0
    """How many versions were published."""
    staleness_mean: float | None = None
    """Versions that policy trajectories lagged when they were ingested."""
    collected: int = 0
    evaluated: int = 0
    ingested: int = 0
    """Distinct trajectories that were not aborted, of any origin."""
    lag: Mapping[str, int] = field(default_factory=dict)
    """Unread records by ``role topic``."""
    nodes: tuple[NodeLine, ...] = ()
