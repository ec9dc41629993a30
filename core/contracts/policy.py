"""The policy contract: collectors and learner share it. Implemented in ``plugins.builtin.policy``.

A collector only calls ``act``; a learner that trains the policy calls ``evaluate`` and reads its weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from distrl.core.contracts.observation import Observation


@dataclass(frozen=True, slots=True)
class PolicyInput:
    """All that a policy may look at when it chooses one action."""

    goal: str
    observation: Observation
    previous_actions: tuple[str, ...] = ()
    """Oldest first."""


@dataclass(frozen=True, slots=True)
class PolicyAction:
    """One chosen action with what must be recorded when it is chosen, never recomputed later."""

    action: str
    """Text in the grammar of ``core.contracts.action``; possibly malformed, then the step is invalid."""
    tokens: tuple[int, ...]
    """Shape [L]."""
    token_log_probs: tuple[float, ...]
    """Shape [L]."""
    entropy: float
    """Nats: exact for a factored head, mean a token for generated text."""
    value: float | None = None
    """Probability of success; ``None`` without a value head."""
    constraint_mask: str = ""

    @property
    def log_prob(self) -> float:
        return sum(self.token_log_probs)


class Policy(Protocol):
    """Chooses actions. Not safe for use by several threads."""

    @property
    def name(self) -> str: ...

    @property
    def base_model(self) -> str:
        """SHA-256 of the frozen base model's weights; empty without one."""

    @property
    def sampling(self) -> Mapping[str, float]:
        """Temperature and the like: recorded with every trajectory."""

    def act(self, batch: Sequence[PolicyInput], *, greedy: bool = False) -> Sequence[PolicyAction]:
        """One action for each input, sampled, or the most probable one."""

    def load(self, path: Path) -> None:
        """Take over weights from a safetensors file. Raises ``WeightsError`` if they do not fit, and then
        keeps those it had."""

    def save(self, path: Path) -> None:
        """Write the weights that ``load`` reads, as safetensors."""


class TrainablePolicy(Policy, Protocol):
    """A policy that a torch learner can train. ``Any`` stands for torch types: contracts import no torch."""

    def parameters(self) -> Any:
        """An iterator of ``torch.nn.Parameter``."""

    def evaluate(self, batch: Sequence[PolicyInput], tokens: Sequence[Sequence[int]]) -> PolicyEvaluation:
        """The policy's present view of recorded actions, with gradients."""

    def encode_action(self, item: PolicyInput, action: str) -> tuple[int, ...] | None:
        """The tokens that write ``action``, for cloning; ``None`` if the policy cannot say it."""


@dataclass(frozen=True, slots=True)
class PolicyEvaluation:
    """Tensors over a batch of B steps, gradients attached."""

    log_probs: Any
    """Float tensor [B]: log-probability of the recorded action as a whole."""
    entropies: Any
    """Float tensor [B]: nats."""
    values: Any
    """Float tensor [B, 2]: two step-value heads, as logits of the probability of success."""
    trajectory_values: Any
    """Float tensor [B]: logit of the probability that the whole trajectory succeeds, as seen from this step."""
