"""Options of the learner ``a-ride``. Read by the registration and by ``ARide``; imports no torch."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from distrl.plugins.spec import Options


class ARideOptions(Options):
    """Hyperparameters of A-RIDE and of its warm start."""

    # warm start
    demonstrations: int = Field(
        default=0, ge=0, description="successful demonstrations to clone before the policy acts; 0: none"
    )
    clone_updates: int = Field(default=120, ge=0, description="gradient steps of the warm start")
    clone_learning_rate: float = Field(default=1e-3, gt=0, description="of the warm start")
    clone_steps: int = Field(default=64, ge=1, description="demonstrated steps a gradient step")
    clone_chunk: int = Field(default=10, ge=1, description="gradient steps of the warm start in one call of update")

    # pace and size of updates
    batch: int = Field(default=16, ge=1, description="new trajectories of the policy that one version consumes")
    samples: int = Field(default=16, ge=1, description="trajectories sampled for one gradient step")
    replay_ratio: float = Field(
        default=2.0, gt=0, description="trajectories sampled for each new one: a learner without new data pauses"
    )
    learning_rate: float = Field(default=3e-4, gt=0)
    gradient_norm: float = Field(default=1.0, gt=0, description="gradients are scaled down to this norm")

    # targets
    gamma: float = Field(default=1.0, gt=0, le=1)
    trace_lambda: float = Field(default=0.9, ge=0, le=1)
    trace: Literal["retrace", "v-trace"] = "retrace"
    advantage: Literal["corrected", "one-step"] = "corrected"
    bootstrap_horizon: bool = Field(default=False, description="an episode cut by the horizon goes on in the targets")

    # losses
    ratio_max: float = Field(default=1.0, gt=0, description="importance ratios are clipped to this")
    value_loss: Literal["cross-entropy", "squared"] = "cross-entropy"
    value_weight: float = Field(default=0.5, ge=0)
    trajectory_value_weight: float = Field(default=0.25, ge=0)
    entropy_weight: float = Field(default=0.03, ge=0)
    invalid_weight: float = Field(default=0.01, ge=0, description="of -log(1 - pi) of invalid actions")
    clone_weight: float = Field(
        default=0.2, ge=0, description="of the cloning loss that is kept on, if there are demonstrations"
    )
    normalize: bool = Field(default=True, description="advantages are centred and scaled, over a gradient step")
    normalize_epsilon: float = Field(default=0.2, gt=0, description="added to the standard deviation")
    step_penalty: float = Field(default=0.01, ge=0, description="off the advantage of every step")
    repeat_penalty: float = Field(
        default=0.05, ge=0, description="off the advantage of an action that repeats the one before"
    )
    invalid_penalty: float = Field(default=0.1, ge=0, description="off the advantage of an invalid action")
    keep: Literal["all", "better-than-expected"] = Field(
        default="all",
        description="what the actor learns from: all, or trajectories whose reward exceeds the trajectory value",
    )

    # replay
    buffer_trajectories: int = Field(default=2000, ge=1)
    buffer_bytes: int = Field(
        default=256_000_000, ge=1, description="inline artefacts and records of the buffered trajectories"
    )
    alpha: float = Field(default=0.5, ge=0, description="sampling probability is proportional to priority ** alpha")
    importance_beta: float = Field(
        default=0.0, ge=0, le=1, description="exponent of importance-sampling weights; 0: none"
    )
    rescan_versions: int = Field(
        default=8, ge=0, description="versions between rescans of what was long not sampled; 0: never"
    )
    rescan_trajectories: int = Field(default=8, ge=1, description="trajectories a rescan")
    screen_bytes: int = Field(default=256_000_000, ge=0, description="decoded screens kept in memory")

    @property
    def updates(self) -> int:
        """Gradient steps that one version may make."""
        return int(self.replay_ratio * self.batch / self.samples + 1e-9)

    @model_validator(mode="after")
    def _some_update_fits(self) -> Self:
        if self.updates < 1:
            raise ValueError("replay_ratio * batch < samples: not one gradient step would be allowed a version")
        if self.batch > self.buffer_trajectories:
            raise ValueError(
                "batch is larger than buffer_trajectories: the buffer could never hold what a version consumes"
            )
        if self.demonstrations and not self.clone_updates:
            raise ValueError("demonstrations without clone_updates: nothing would be learned from them at the start")
        return self
