"""What must hold of an event besides its types: cheap checks at every encoding and decoding. Called by ``core.codec``."""

from __future__ import annotations

import json
from math import isfinite

from distrl.core.contracts.events import (
    DeadLetter,
    Event,
    Feedback,
    Metrics,
    NodeStatus,
    Priority,
    Reward,
    Trajectory,
    WeightsUpdate,
)
from distrl.core.errors import InvalidEventError


def check(event: Event) -> None:
    """Raise ``InvalidEventError`` if a value is out of its range, with the field's name."""
    if not event.envelope.event_id:
        raise InvalidEventError(f"{type(event).__name__} without envelope.event_id")
    match event:
        case Trajectory():
            _key(event.trajectory_id, "trajectory_id")
            _counts(epoch=event.epoch, version=event.version, horizon=event.horizon)
            if event.environment_outcome is not None:
                _share(event.environment_outcome, "environment_outcome")
            for step in event.steps:
                if not (
                    isfinite(step.log_prob)
                    and isfinite(step.entropy)
                    and (step.value is None or isfinite(step.value))
                    and all(map(isfinite, step.token_log_probs))
                ):
                    raise InvalidEventError(f"trajectory {event.trajectory_id}: a step's numbers are not finite")
        case Reward():
            _key(event.trajectory_id, "trajectory_id")
            _share(event.success, "success")
        case Priority():
            _key(event.trajectory_id, "trajectory_id")
            if not (isfinite(event.priority) and event.priority >= 0):
                raise InvalidEventError(f"priority is {event.priority}; it must be finite and not negative")
        case Feedback():
            _key(event.trajectory_id, "trajectory_id")
            _counts(epoch=event.epoch, version=event.version)
            for number in (event.mean_abs_td, event.mean_ratio, event.mean_entropy):
                if number is not None and not isfinite(number):
                    raise InvalidEventError(f"feedback on {event.trajectory_id}: a number is not finite")
        case WeightsUpdate():
            _key(event.policy, "policy")
            _counts(epoch=event.epoch, version=event.version, sequence=event.sequence, ingested=event.ingested)
            if event.allowance < -1:
                raise InvalidEventError(f"allowance is {event.allowance}; it must be -1 or more")
            _object(event.options, "options")
        case NodeStatus() | Metrics():
            _key(event.envelope.node, "envelope.node")
        case DeadLetter():
            pass


def _key(value: str, name: str) -> None:
    if not value:
        raise InvalidEventError(f"{name} is empty; it is the record's key")


def _share(value: float, name: str) -> None:
    if not 0.0 <= value <= 1.0:
        raise InvalidEventError(f"{name} is {value}; it must be from 0 to 1")


def _object(text: str, name: str) -> None:
    try:
        is_object = isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        is_object = False
    if not is_object:
        raise InvalidEventError(f"{name} is {text[:40]!r}; it must be a JSON object")


def _counts(**values: int) -> None:
    for name, value in values.items():
        if value < 0:
            raise InvalidEventError(f"{name} is {value}; it must not be negative")
