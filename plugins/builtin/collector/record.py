"""From an episode in hand to the trajectory on the log. Called by the episode collector when an episode ends."""

from __future__ import annotations

import json
from dataclasses import asdict

from distrl.core.contracts.events import Envelope, Outcome, StepRecord, Trajectory
from distrl.core.contracts.role import RoleContext
from distrl.core.errors import DistrlError
from distrl.plugins.builtin.collector.slot import Chosen, Episode


def to_trajectory(
    context: RoleContext,
    device: str,
    episode: Episode,
    outcome: Outcome,
    *,
    environment_outcome: float | None = None,
    error_class: str = "",
    error: str = "",
) -> Trajectory:
    """The trajectory of an episode. An aborted one has no final observation, and only the steps whose observation was put
    away."""
    ticket, task, policy = episode.ticket, episode.task, episode.policy
    now = context.clock.time_ms()
    # A worker that hangs may still append: what is there now is what counts.
    records = tuple(episode.records)
    steps = tuple(
        StepRecord(
            observation=records[step.seen],
            action=step.action.action,
            action_tokens=step.action.tokens,
            log_prob=step.action.log_prob,
            token_log_probs=step.action.token_log_probs,
            entropy=step.action.entropy,
            value=step.action.value,
            constraint_mask=step.action.constraint_mask,
            invalid=bool(step.invalid_reason),
            invalid_reason=step.invalid_reason,
            chosen_ms=step.chosen_ms,
            done_ms=step.done_ms,
        )
        for step in episode.steps
        if step.seen < len(records)
    )
    return Trajectory(
        envelope=Envelope(ticket.episode, context.run, context.node, now, ticket.traceparent),
        trajectory_id=ticket.episode,
        origin="policy",
        task_id=task.task_id,
        task_kind=task.kind,
        split=task.split,
        goal=episode.goal,
        checks=json.dumps([asdict(check) for check in task.checks]),
        seed=task.seed,
        horizon=episode.horizon,
        device=device,
        policy=policy.name,
        epoch=ticket.epoch,
        version=ticket.version,
        base_model=policy.base_model,
        sampling=json.dumps(dict(policy.sampling), sort_keys=True),
        outcome=outcome,
        started_ms=episode.started_ms,
        ended_ms=now,
        steps=steps,
        final_observation=records[-1] if records and outcome != "aborted" else None,
        environment_outcome=environment_outcome,
        error_class=error_class,
        error=error,
        attributes=dict(task.parameters),
    )


def describe(error: Exception) -> tuple[str, str]:
    """An error's class and text, as an aborted trajectory carries them."""
    return type(error).__name__, str(error) if isinstance(error, DistrlError) else repr(error)


def previous_actions(steps: list[Chosen]) -> tuple[str, ...]:
    """Texts of the actions so far, oldest first."""
    return tuple(step.action.action for step in steps)
