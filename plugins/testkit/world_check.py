"""Contract checks of policies, devices and task sources. Each raises ``AssertionError`` that says what is broken."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, cast

from distrl.core.contracts.action import Action
from distrl.core.contracts.device import Device
from distrl.core.contracts.observation import Observation
from distrl.core.contracts.policy import Policy, PolicyAction, PolicyInput, TrainablePolicy
from distrl.core.contracts.task import Task, TaskSource
from distrl.core.errors import WeightsError
from distrl.plugins.testkit.role_check import require
from distrl.plugins.testkit.sample import make_observation, make_task

TOLERANCE = 1e-3
"""Of a log-probability: acting and training may sum in another order."""


def sample_inputs() -> list[PolicyInput]:
    goal = make_task().goal
    return [
        PolicyInput(goal, make_observation()),
        PolicyInput(goal, make_observation("milk", shade=40), ("tap 0.500 0.100", 'type "milk"')),
        PolicyInput("open settings", make_observation(shade=120), ("not an action",)),
    ]


def check_policy(policy: Policy, work_dir: Path, inputs: Sequence[PolicyInput] | None = None) -> None:
    """Actions with sound numbers, greedy ones always the same, weights that survive ``save`` and ``load``.

    ``work_dir`` is a folder to write weights to.
    """
    batch = list(inputs) if inputs is not None else sample_inputs()
    require(isinstance(policy.name, str) and policy.name != "", "name must be text that is not empty")
    require(isinstance(policy.base_model, str), "base_model must be text")
    for key, value in policy.sampling.items():
        require(isinstance(key, str) and math.isfinite(value), f"sampling parameter {key!r} is {value!r}")
    require(list(policy.act([])) == [], "an empty batch must give no actions")
    for greedy in (False, True):
        actions = list(policy.act(batch, greedy=greedy))
        require(len(actions) == len(batch), f"{len(actions)} actions for {len(batch)} inputs")
        for action in actions:
            _check_action(action)
    best = [action.action for action in policy.act(batch, greedy=True)]
    require(
        [a.action for a in policy.act(batch, greedy=True)] == best, "the greedy action was another one the second time"
    )
    weights, broken = work_dir / "weights.safetensors", work_dir / "broken.safetensors"
    policy.save(weights)
    policy.load(weights)
    broken.write_bytes(b"not weights")
    try:
        policy.load(broken)
    except WeightsError:
        pass
    else:
        raise AssertionError("load took a file that holds no weights; it must raise WeightsError")
    require(
        [action.action for action in policy.act(batch, greedy=True)] == best,
        "another greedy action after save, load and a refused load",
    )
    if hasattr(policy, "evaluate"):
        _check_trainable(cast(TrainablePolicy, policy), batch)


def _check_action(action: PolicyAction) -> None:
    require(isinstance(action.action, str), "an action is no text")
    require(
        len(action.tokens) == len(action.token_log_probs),
        f"{len(action.tokens)} tokens with {len(action.token_log_probs)} log-probabilities",
    )
    require(
        all(math.isfinite(value) and value <= 1e-6 for value in action.token_log_probs),
        f"log-probabilities must be finite and not positive: {action.token_log_probs}",
    )
    require(math.isfinite(action.entropy) and action.entropy >= -1e-6, f"entropy is {action.entropy}")
    if action.value is not None:
        require(0.0 <= action.value <= 1.0, f"value is {action.value}; it is a probability")


def _check_trainable(policy: TrainablePolicy, batch: Sequence[PolicyInput]) -> None:
    """What was recorded when it acted must be what the learner computes on the same weights: a ratio of 1."""
    require(len(list(policy.parameters())) > 0, "a trainable policy has no parameters")
    actions = list(policy.act(batch))
    evaluation = policy.evaluate(batch, [action.tokens for action in actions])
    for name, shape in {
        "log_probs": (len(batch),),
        "entropies": (len(batch),),
        "values": (len(batch), 2),
        "trajectory_values": (len(batch),),
    }.items():
        found = tuple(getattr(evaluation, name).shape)
        require(found == shape, f"{name} has the shape {found}, not {shape}")
    for action, log_prob, entropy in zip(actions, evaluation.log_probs, evaluation.entropies, strict=True):
        require(
            math.isclose(float(log_prob.detach()), action.log_prob, abs_tol=TOLERANCE),
            f"evaluate gives the log-probability {float(log_prob.detach())}, act recorded {action.log_prob}",
        )
        require(
            math.isclose(float(entropy.detach()), action.entropy, abs_tol=TOLERANCE),
            f"evaluate gives the entropy {float(entropy.detach())}, act recorded {action.entropy}",
        )
    require(bool(evaluation.log_probs.requires_grad), "log_probs carry no gradient")
    require(policy.encode_action(batch[0], "not an action") is None, "encode_action must say None to what is no action")


def check_device(
    device: Device, task: Task, actions: Sequence[Action] = (Action("tap", (0.5, 0.5)), Action("wait"))
) -> None:
    """Two episodes on ``task``: observations that can be seen, an outcome from 0 to 1, calls that may be repeated. Closes the device."""
    require(isinstance(device.device_id, str) and device.device_id != "", "device_id must be text that is not empty")
    device.health()
    starts = []
    for episode in ("episode-1", "episode-2"):
        starts.append(device.reset(task, episode=episode))
        _check_observation(starts[-1], "reset")
        for action in actions:
            result = device.step(action)
            _check_observation(result.observation, f"step({action})")
            _check_outcome(result.environment_outcome, f"step({action})")
            if result.done:
                break
        _check_observation(device.observe(), "observe")
        _check_outcome(device.outcome(), "outcome")
        device.finish(episode, "finished")
        device.finish(episode, "finished")
    require(
        (starts[0].screenshot is None) == (starts[1].screenshot is None)
        and (starts[0].ui_tree is None) == (starts[1].ui_tree is None),
        "the second reset shows other kinds of artefacts than the first",
    )
    device.close()
    device.close()


def _check_observation(observation: Observation, where: str) -> None:
    screen = observation.screenshot
    require(screen is not None or observation.ui_tree is not None, f"{where}: neither a screenshot nor a UI tree")
    require(observation.time_ms > 0, f"{where}: no time")
    if screen is not None:
        require(screen.width > 0 and screen.height > 0 and len(screen.data) > 0, f"{where}: an empty screenshot")
        if screen.media_type == "image/x-rgb":
            require(len(screen.data) == screen.width * screen.height * 3, f"{where}: raw pixels do not fit the size")


def _check_outcome(outcome: float | None, where: str) -> None:
    require(outcome is None or 0.0 <= outcome <= 1.0, f"{where}: the outcome is {outcome}; it must be from 0 to 1")


def check_task_source(source: TaskSource, *, samples: int = 50) -> None:
    """The same seed gives the same task, train and test share none, and instances are distinct and evenly spread."""
    kinds = list(source.kinds())
    require(len(kinds) > 0, "it has no kinds of task")
    require(len(set(kinds)) == len(kinds), f"kinds are named twice: {kinds}")
    seen: dict[Literal["train", "test"], set[str]] = {"train": set(), "test": set()}
    for split, ids in seen.items():
        for seed in range(samples):
            task = source.sample(split, seed)
            require(source.sample(split, seed) == task, f"seed {seed} gave two different tasks")
            _check_task(task, split, kinds)
            ids.add(task.task_id)
        instances = list(source.instances(split, samples))
        require(len(instances) <= samples, f"{len(instances)} instances where at most {samples} were asked for")
        require(list(source.instances(split, samples)) == instances, f"the instances of {split} change")
        names = [task.task_id for task in instances]
        require(len(set(names)) == len(names), f"the instances of {split} are not distinct")
        for task in instances:
            _check_task(task, split, kinds)
        counts = Counter(task.kind for task in instances)
        if instances:
            require(
                max(counts.values()) - min(counts.get(kind, 0) for kind in kinds) <= 1 or len(instances) < samples,
                f"the kinds are not in equal shares: {dict(counts)}",
            )
        ids.update(names)
        for task in instances[: len(kinds)]:
            actions = source.demonstrate(task)
            require(
                actions is None or all(isinstance(action, Action) for action in actions),
                f"the demonstration of {task.task_id} holds something that is no Action",
            )
    shared = seen["train"] & seen["test"]
    require(not shared, f"train and test share tasks: {sorted(shared)[:5]}")


def _check_task(task: Task, split: str, kinds: Sequence[str]) -> None:
    require(task.task_id != "" and task.goal != "", f"a task without id or goal: {task}")
    require(task.split == split, f"{task.task_id} is of the split {task.split}, not {split}")
    require(task.kind in kinds, f"{task.task_id} is of the kind {task.kind}, which kinds() does not name")
    require(task.horizon >= 1, f"{task.task_id} has a horizon of {task.horizon}")
