"""Events, observations and tasks for tests: sound in every field, each field open to change. No randomness, no clock."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from distrl.core.contracts.events import (
    Blob,
    Envelope,
    Feedback,
    ObservationRecord,
    Priority,
    Reward,
    StepRecord,
    Trajectory,
)
from distrl.core.contracts.identity import derived_id
from distrl.core.contracts.observation import Observation, Screenshot
from distrl.core.contracts.policy import Policy, PolicyInput
from distrl.core.contracts.task import Check, Task

RUN = "test"
NODE = "test-node"
START_MS = 1_735_689_600_000
"""2025-01-01T00:00Z."""
WIDTH, HEIGHT = 48, 96
"""Pixels of a sample screen."""


def make_envelope(event_id: str = "event-1", *, run: str = RUN, node: str = NODE, time_ms: int = START_MS) -> Envelope:
    return Envelope(event_id, run, node, time_ms)


def make_task(task_id: str = "search-1", **fields: Any) -> Task:
    """A task "search for milk": its check wants the text ``milk`` in the node ``query``."""
    defaults: dict[str, Any] = {
        "kind": "search",
        "split": "train",
        "goal": "search for milk",
        "seed": 1,
        "horizon": 10,
        "checks": (Check("query", "text", "milk"),),
    }
    return Task(task_id, **defaults | fields)


def make_observation(text: str = "", *, time_ms: int = START_MS, shade: int = 200) -> Observation:
    """A grey screen, raw RGB, and a UI tree whose node ``query`` reads ``text``."""
    tree = {
        "class_name": "screen",
        "bounds": [0.0, 0.0, 1.0, 1.0],
        "children": [
            {"class_name": "edit", "resource_id": "query", "text": text, "bounds": [0.1, 0.05, 0.9, 0.15]},
        ],
    }
    pixels = bytes([shade]) * (WIDTH * HEIGHT * 3)
    return Observation(time_ms, Screenshot(WIDTH, HEIGHT, pixels, "image/x-rgb"), json.dumps(tree))


def make_blob(data: bytes, media_type: str) -> Blob:
    """An artefact that rides inside its event."""
    return Blob(media_type, len(data), hashlib.sha256(data).hexdigest(), inline=data)


def make_observation_record(observation: Observation | None = None) -> ObservationRecord:
    """What a collector puts on the event for ``observation``, its artefacts inside."""
    look = observation or make_observation()
    screen = look.screenshot
    return ObservationRecord(
        time_ms=look.time_ms,
        width=screen.width if screen else 0,
        height=screen.height if screen else 0,
        screenshot=make_blob(screen.data, screen.media_type) if screen else None,
        ui_tree=None if look.ui_tree is None else make_blob(look.ui_tree.encode(), "application/json"),
    )


def make_step(action: str = "tap 0.500 0.500", **fields: Any) -> StepRecord:
    """A step of two tokens with probability 0.5 each."""
    defaults: dict[str, Any] = {
        "observation": make_observation_record(),
        "action_tokens": (0, 1),
        "log_prob": -1.386294361119891,
        "token_log_probs": (-0.6931471805599455, -0.6931471805599455),
        "entropy": 1.4,
        "value": 0.5,
        "chosen_ms": START_MS + 100,
        "done_ms": START_MS + 200,
    }
    return StepRecord(action=action, **defaults | fields)


def make_trajectory(
    trajectory_id: str = "trajectory-1",
    *,
    steps: int | Sequence[StepRecord] = 2,
    success: bool = True,
    **fields: Any,
) -> Trajectory:
    """A finished episode of the policy on ``make_task()``. ``success`` says what the final UI tree and the environment's
    outcome show; any field of ``Trajectory`` may be given besides."""
    task = make_task()
    taken = tuple(make_step() for _ in range(steps)) if isinstance(steps, int) else tuple(steps)
    defaults: dict[str, Any] = {
        "envelope": make_envelope(trajectory_id),
        "origin": "policy",
        "task_id": task.task_id,
        "task_kind": task.kind,
        "split": task.split,
        "goal": task.goal,
        "checks": json.dumps([asdict(check) for check in task.checks]),
        "seed": task.seed,
        "horizon": task.horizon,
        "device": "test-device",
        "policy": "test-policy",
        "epoch": 1,
        "version": 1,
        "base_model": "",
        "sampling": "{}",
        "outcome": "finished",
        "started_ms": START_MS,
        "ended_ms": START_MS + 1000,
        "final_observation": make_observation_record(make_observation("milk" if success else "")),
        "environment_outcome": 1.0 if success else 0.0,
    }
    return Trajectory(trajectory_id=trajectory_id, steps=taken, **defaults | fields)


def make_policy_trajectory(
    policy: Policy, trajectory_id: str = "trajectory-1", *, steps: int = 2, success: bool = True, **fields: Any
) -> Trajectory:
    """As ``make_trajectory``, with actions, tokens and numbers that ``policy`` chose: what its learner can train on."""
    taken: list[StepRecord] = []
    for _ in range(steps):
        look = make_observation(shade=(40 * len(taken) + 40) % 256)
        previous = tuple(step.action for step in taken)
        [chosen] = policy.act([PolicyInput(make_task().goal, look, previous)])
        taken.append(
            make_step(
                chosen.action,
                observation=make_observation_record(look),
                action_tokens=chosen.tokens,
                log_prob=chosen.log_prob,
                token_log_probs=chosen.token_log_probs,
                entropy=chosen.entropy,
                value=chosen.value,
                constraint_mask=chosen.constraint_mask,
            )
        )
    named = {"policy": policy.name, "base_model": policy.base_model, "sampling": json.dumps(dict(policy.sampling))}
    return make_trajectory(trajectory_id, steps=taken, success=success, **named | fields)


def make_reward(trajectory: Trajectory, success: float = 1.0, **fields: Any) -> Reward:
    """A verdict on ``trajectory``."""
    evaluator, version = fields.pop("evaluator", "test-evaluator"), fields.pop("evaluator_version", "1")
    defaults: dict[str, Any] = {
        "envelope": make_envelope(derived_id("reward", trajectory.trajectory_id, evaluator, version)),
        "split": trajectory.split,
    }
    return Reward(
        trajectory_id=trajectory.trajectory_id,
        evaluator=evaluator,
        evaluator_version=version,
        success=success,
        **defaults | fields,
    )


def make_priority(trajectory_id: str = "trajectory-1", priority: float = 1.0, **fields: Any) -> Priority:
    defaults: dict[str, Any] = {
        "envelope": make_envelope(derived_id("priority", trajectory_id)),
        "prioritizer": "test-prioritizer",
    }
    return Priority(trajectory_id=trajectory_id, priority=priority, **defaults | fields)


def make_feedback(trajectory_id: str = "trajectory-1", **fields: Any) -> Feedback:
    """Fresh numbers of a trajectory that was trained on."""
    defaults: dict[str, Any] = {
        "envelope": make_envelope(derived_id("feedback", trajectory_id)),
        "kind": "trained",
        "epoch": 1,
        "version": 1,
        "mean_abs_td": 0.25,
        "mean_ratio": 1.0,
        "mean_entropy": 1.4,
    }
    return Feedback(trajectory_id=trajectory_id, **defaults | fields)
