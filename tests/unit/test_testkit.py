"""The test kit: its checks find what is broken, its builders make sound events, its clock obeys."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from distrl import Blob, Evaluator, Feedback, Prioritizer, Reward, Task, TaskSource, Trajectory, Verdict
from distrl.core.errors import BlobCorruptError, BlobNotFoundError
from distrl.testing import (
    ManualClock,
    MemoryArtefacts,
    check_evaluator,
    check_prioritizer,
    check_task_source,
    make_context,
    make_feedback,
    make_observation,
    make_observation_record,
    make_priority,
    make_reward,
    make_task,
    make_trajectory,
    over_the_log,
    run_evaluator,
    run_prioritizer,
)


class Sound:
    """An evaluator, prioritizer and task source that keeps every promise."""

    name = "sound"
    version = "1"

    def evaluate(self, batch: Sequence[Trajectory]) -> Sequence[Verdict]:
        return [Verdict(1.0 if item.outcome == "finished" else 0.0) for item in batch]

    def arrived(self, batch: Sequence[tuple[Trajectory, Reward]]) -> Sequence[float]:
        return [1.0 + reward.success for _, reward in batch]

    def refreshed(self, batch: Sequence[Feedback]) -> Sequence[float | None]:
        return [item.mean_abs_td for item in batch]

    def kinds(self) -> Sequence[str]:
        return ["search"]

    def sample(self, split: Any, seed: int) -> Task:
        return make_task(f"{split}-{seed}", split=split)

    def instances(self, split: Any, limit: int) -> Sequence[Task]:
        return [make_task(f"{split}-{number}", split=split) for number in range(limit)]

    def demonstrate(self, task: Task) -> None:
        return None


def broken(**parts: Any) -> Any:
    return type("Broken", (Sound,), parts)()


def test_what_is_sound_passes() -> None:
    check_evaluator(Sound())
    check_prioritizer(Sound())
    check_task_source(Sound())


def counting() -> Any:
    calls: list[int] = []

    def evaluate(self: Any, batch: Sequence[Trajectory]) -> Sequence[Verdict]:
        calls.append(1)
        return [Verdict(1.0 / len(calls)) for _ in batch]

    return evaluate


@pytest.mark.parametrize(
    ("evaluator", "reason"),
    [
        (broken(version=""), "version is ''"),
        (broken(evaluate=lambda self, batch: []), "0 verdicts for 7"),
        (broken(evaluate=lambda self, batch: [Verdict(2.0)] * len(batch)), "success of success is 2.0"),
        (broken(evaluate=lambda self, batch: [Verdict(float("nan"))] * len(batch)), "is nan"),
        (broken(evaluate=lambda self, batch: [Verdict(1.0, None)] * len(batch)), "is no text"),  # type: ignore[arg-type]
        (broken(evaluate=counting()), "other verdicts the second time"),
        (
            broken(evaluate=lambda self, batch: [Verdict(1.0)] + [Verdict(0.0)] * (len(batch) - 1) if batch else []),
            "order of the batch",
        ),
        (
            broken(evaluate=lambda self, batch: [Verdict(float(len(batch) > 1))] * len(batch)),
            "what else is in the batch",
        ),
    ],
)
def test_a_broken_evaluator_is_found_out(evaluator: Evaluator, reason: str) -> None:
    with pytest.raises(AssertionError, match=reason):
        check_evaluator(evaluator)


@pytest.mark.parametrize(
    ("prioritizer", "reason"),
    [
        (broken(name=""), "name is ''"),
        (broken(arrived=lambda self, batch: [1.0]), "empty batch"),
        (broken(arrived=lambda self, batch: [1.0] * min(len(batch), 1)), "1 priorities for 8"),
        (broken(arrived=lambda self, batch: [-1.0] * len(batch)), "is -1.0"),
        (broken(arrived=lambda self, batch: [float("inf")] * len(batch)), "is inf"),
        (broken(refreshed=lambda self, batch: [None] * min(len(batch), 1)), "1 answers to 3"),
        (broken(refreshed=lambda self, batch: [float("nan")] * len(batch)), "is nan"),
    ],
)
def test_a_broken_prioritizer_is_found_out(prioritizer: Prioritizer, reason: str) -> None:
    with pytest.raises(AssertionError, match=reason):
        check_prioritizer(prioritizer)


def changing() -> Any:
    numbers = count()
    return lambda self, split, seed: make_task(f"{split}-{next(numbers)}", split=split)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (broken(kinds=lambda self: []), "no kinds"),
        (broken(sample=lambda self, split, seed: make_task(f"{seed}", split=split)), "share tasks"),
        (broken(sample=lambda self, split, seed: make_task(f"train-{seed}")), "split train, not test"),
        (broken(sample=changing()), "two different tasks"),
        (broken(instances=lambda self, split, limit: [make_task("same", split=split)] * 2), "not distinct"),
        (broken(demonstrate=lambda self, task: ["tap"]), "no Action"),
    ],
)
def test_a_broken_task_source_is_found_out(source: TaskSource, reason: str) -> None:
    with pytest.raises(AssertionError, match=reason):
        check_task_source(source)


def test_builders_make_events_that_fit_their_schemas() -> None:
    trajectory = make_trajectory("t-7", steps=3, device="phone")
    assert over_the_log(trajectory) == trajectory
    assert (trajectory.trajectory_id, len(trajectory.steps), trajectory.device) == ("t-7", 3, "phone")
    for event in (make_reward(trajectory, 0.5), make_priority("t-7", 2.0), make_feedback("t-7", kind="evicted")):
        assert over_the_log(event) == event
        assert event.trajectory_id == "t-7"
    assert (
        make_reward(trajectory, evaluator="a").envelope.event_id
        != make_reward(trajectory, evaluator="b").envelope.event_id
    )


def test_the_roles_in_memory_give_what_the_nodes_would_put_on_the_log() -> None:
    aborted = make_trajectory("aborted", outcome="aborted", error_class="DeviceLostError", error="gone")
    trajectories = [make_trajectory("a"), aborted, make_trajectory("b", outcome="horizon")]
    rewards = run_evaluator(Sound(), trajectories)
    assert [(reward.trajectory_id, reward.success) for reward in rewards] == [("a", 1.0), ("b", 0.0)]
    feedback = [make_feedback("a", kind="ingested"), make_feedback("a", mean_abs_td=0.125)]
    priorities = run_prioritizer(Sound(), trajectories, [*rewards, replace(rewards[0], success=0.0)], feedback)
    assert [(item.trajectory_id, item.priority) for item in priorities] == [("a", 2.0), ("b", 1.0), ("a", 0.125)]
    assert len({item.envelope.event_id for item in priorities}) == 3


def test_the_clock_moves_only_when_told() -> None:
    clock = ManualClock(1000)
    clock.advance(1.5)
    assert (clock.time_ms(), clock.monotonic()) == (2500, 1.5)
    clock.sleep(0.5)
    assert clock.monotonic() == 2.0
    event = threading.Event()
    assert clock.wait(event, 3.0) is False
    assert clock.monotonic() == 5.0
    event.set()
    assert clock.wait(event, 3.0) is True
    assert clock.monotonic() == 5.0
    with pytest.raises(ValueError, match="back"):
        clock.advance(-1)


@pytest.mark.parametrize("inline", [True, False])
def test_artefacts_in_memory_are_verified(inline: bool) -> None:
    artefacts = MemoryArtefacts(inline=inline)
    observation = make_observation("milk")
    record = artefacts.record(observation)
    assert artefacts.observation(record) == observation
    assert record.screenshot is not None
    assert (record.screenshot.inline is not None) is inline
    with pytest.raises(BlobNotFoundError):
        artefacts.read(Blob("text/plain", 1, "0" * 64, "memory", "nowhere"))
    with pytest.raises(BlobCorruptError):
        artefacts.read(replace(record.screenshot, size=1))
    assert artefacts.observation(make_observation_record(observation)) == observation


def test_a_context_is_the_same_for_the_same_seed(tmp_path: Path) -> None:
    first, second, other = (make_context(tmp_path, seed=seed) for seed in (1, 1, 2))
    assert first.random.random() == second.random.random() != other.random.random()
