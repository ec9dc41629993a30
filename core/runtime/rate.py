"""How weights did on held-out tasks: shares of successes with their intervals. Made by ``core.runtime.evaluation``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from distrl.core.contracts.interval import wilson_interval


@dataclass(frozen=True, slots=True)
class Rate:
    """A share of successes with its 95 % Wilson interval."""

    successes: int
    trials: int

    @property
    def share(self) -> float:
        return self.successes / self.trials if self.trials else 0.0

    @property
    def low(self) -> float:
        return wilson_interval(self.successes, self.trials)[0]

    @property
    def high(self) -> float:
        return wilson_interval(self.successes, self.trials)[1]


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """How one version did. A task that no device could finish is not among the trials."""

    version: int
    by_kind: Mapping[str, Rate]
    total: Rate
    aborted: int = 0
    """Tasks that no device could finish."""
