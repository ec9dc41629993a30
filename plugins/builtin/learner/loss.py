"""The losses of A-RIDE over a batch of N steps. Called by ``ARide``; tensors in, a scalar with gradient and numbers out.

Everything that is not a policy output is detached: ratios and advantages are constants of the policy's loss (arXiv 2410.14803).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from distrl.core.contracts.policy import PolicyEvaluation
from distrl.plugins.builtin.learner.a_ride_options import ARideOptions


@dataclass(frozen=True, slots=True)
class StepBatch:
    """What the losses need of N steps besides the policy's evaluation; no gradients. Every tensor has shape [N]."""

    behaviour_log_probs: Tensor
    advantages: Tensor
    """With penalties, not yet normalised."""
    actor: Tensor
    """bool: steps that the actor learns from."""
    invalid: Tensor
    """bool."""
    value_targets: Tensor
    """``V_target``, for the squared error."""
    successes: Tensor
    """``1[G_t > 0]`` as 0 or 1, for the cross-entropy of the step value."""
    trajectory_successes: Tensor
    """Reward of the step's whole trajectory."""
    weights: Tensor
    """Importance-sampling weights of the replay; 1 without."""


@dataclass(frozen=True, slots=True)
class Loss:
    """``total`` carries the gradient, the rest are numbers for the metrics."""

    total: Tensor
    metrics: dict[str, float]


def clipped_ratios(log_probs: Tensor, behaviour_log_probs: Tensor, ratio_max: float) -> tuple[Tensor, Tensor]:
    """``min(rho, rho_max)`` and whether it was clipped, detached; rho from log-probabilities of whole actions."""
    # Beyond e^20 a ratio is clipped whatever the bound; the cap keeps it finite.
    ratios = (log_probs.detach() - behaviour_log_probs).clamp(max=20.0).exp()
    return ratios.clamp(max=ratio_max), ratios > ratio_max


def normalized(advantages: Tensor, actor: Tensor, epsilon: float) -> Tensor:
    """Centred over the actor's steps and divided by their standard deviation plus ``epsilon``, which keeps a batch
    of nearly equal outcomes from being blown up. Fewer than two steps are left as they are."""
    chosen = advantages[actor]
    if chosen.numel() < 2:
        return advantages
    return (advantages - chosen.mean()) / (chosen.std() + epsilon)


def value_loss(evaluation: PolicyEvaluation, batch: StepBatch, kind: str) -> Tensor:
    """Of both step-value heads, mean over heads and weighted over steps."""
    logits: Tensor = evaluation.values
    if kind == "cross-entropy":
        targets = batch.successes.unsqueeze(1).expand_as(logits)
        errors = functional.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    else:
        errors = (logits.sigmoid() - batch.value_targets.unsqueeze(1)).square()
    return (errors.mean(dim=1) * batch.weights).mean()


def invalid_loss(log_probs: Tensor, invalid: Tensor, weights: Tensor) -> Tensor:
    """``-log(1 - pi)`` of invalid actions, over all steps: bounded below by 0, with a gradient that pushes their probability down.
    (Minimising ``log pi`` itself has no lower bound.)"""
    if not bool(invalid.any()):
        return log_probs.sum() * 0.0
    # -expm1 keeps 1 - pi exact near 0; the cap keeps the gradient finite when pi is 1.
    remaining = -torch.expm1(log_probs[invalid].clamp(max=-1e-4))
    return -(remaining.log() * weights[invalid]).sum() / log_probs.shape[0]


def a_ride_loss(evaluation: PolicyEvaluation, batch: StepBatch, options: ARideOptions) -> Loss:
    """All terms over N >= 1 steps. The terminal, rewarded step is a step like any other."""
    log_probs: Tensor = evaluation.log_probs
    entropies: Tensor = evaluation.entropies
    ratios, clipped = clipped_ratios(log_probs, batch.behaviour_log_probs, options.ratio_max)
    advantages = batch.advantages
    if options.normalize:
        advantages = normalized(advantages, batch.actor, options.normalize_epsilon)
    learned = (ratios * advantages * batch.weights * batch.actor).detach()
    policy = -(learned * log_probs).sum() / max(int(batch.actor.sum()), 1)
    step_value = value_loss(evaluation, batch, options.value_loss)
    trajectory_value = (
        functional.binary_cross_entropy_with_logits(
            evaluation.trajectory_values, batch.trajectory_successes, reduction="none"
        )
        * batch.weights
    ).mean()
    entropy = entropies.mean()
    invalid = invalid_loss(log_probs, batch.invalid, batch.weights)
    total = (
        policy
        + options.value_weight * step_value
        + options.trajectory_value_weight * trajectory_value
        - options.entropy_weight * entropy
        + options.invalid_weight * invalid
    )
    with torch.no_grad():
        metrics = {
            "loss.policy": float(policy.detach()),
            "loss.value": float(step_value.detach()),
            "loss.trajectory_value": float(trajectory_value.detach()),
            "loss.invalid": float(invalid.detach()),
            "entropy": float(entropy.detach()),
            "ratio.mean": float(ratios.mean()),
            "ratio.clipped_share": float(clipped.to(torch.float32).mean()),
            "invalid_share": float(batch.invalid.to(torch.float32).mean()),
            "actor_share": float(batch.actor.to(torch.float32).mean()),
        }
    return Loss(total, metrics)


def clone_loss(evaluation: PolicyEvaluation) -> Tensor:
    """Behaviour cloning: the negative log-probability of the demonstrated actions, mean over steps."""
    log_probs: Tensor = evaluation.log_probs
    return -log_probs.mean()
