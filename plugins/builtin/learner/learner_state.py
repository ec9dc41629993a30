"""A learner's state on disk: safetensors for arrays, JSON for the rest, never a pickle. Used by gradient learners."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from distrl.core.errors import CheckpointError

OPTIMIZER = "optimizer.safetensors"
STATE = "learner.json"
POLICY = "policy.safetensors"


def save_optimizer(optimizer: torch.optim.Optimizer, directory: Path) -> None:
    """Write the optimizer's tensors, named ``<parameter's index>.<name>``."""
    state: dict[int, dict[str, torch.Tensor]] = optimizer.state_dict()["state"]
    tensors = {f"{index}.{name}": value for index, values in state.items() for name, value in values.items()}
    save_file(tensors, directory / OPTIMIZER)


def restore_optimizer(optimizer: torch.optim.Optimizer, directory: Path) -> None:
    """Read them back into an optimizer over the same parameters. Raises ``CheckpointError``."""
    try:
        tensors = load_file(directory / OPTIMIZER)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"the optimizer's state in {directory} cannot be read: {error}") from error
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, torch.Tensor]] = {}
    for key, value in tensors.items():
        index, _, name = key.partition(".")
        fits = index.isdecimal() and int(index) < len(parameters)
        if not fits or (value.dim() > 0 and value.shape != parameters[int(index)].shape):
            raise CheckpointError(f"the optimizer's state in {directory} does not fit the policy at {key!r}")
        state.setdefault(int(index), {})[name] = value
    try:
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"the optimizer's state in {directory} does not fit the policy: {error!r}") from error


def save_state(state: dict[str, Any], source: random.Random, directory: Path) -> None:
    """Write counters and the random state."""
    version, numbers, gauss = source.getstate()
    text = json.dumps({**state, "random": [version, list(numbers), gauss]}, allow_nan=False)
    (directory / STATE).write_text(text, encoding="utf-8")


def restore_state(source: random.Random, directory: Path) -> dict[str, Any]:
    """Read them back; sets the random state. Raises ``CheckpointError``."""
    try:
        state: dict[str, Any] = json.loads((directory / STATE).read_text(encoding="utf-8"))
        version, numbers, gauss = state["random"]
        source.setstate((version, tuple(numbers), gauss))
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise CheckpointError(f"the learner's state in {directory} cannot be read: {error}") from error
    return state
