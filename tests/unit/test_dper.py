"""Priorities of DPER and of the uniform baseline, from numbers on events alone."""

from __future__ import annotations

import dataclasses
import math
import random
from pathlib import Path
from typing import cast

import pytest

from distrl.core.contracts.clock import SystemClock
from distrl.core.contracts.events import Envelope, Feedback, ObservationRecord, Reward, StepRecord, Trajectory
from distrl.core.contracts.role import Artefacts, RoleContext
from distrl.plugins.builtin.prioritizer.dper import Dper
from distrl.plugins.builtin.prioritizer.dper_options import DperOptions
from distrl.plugins.builtin.prioritizer.uniform import Uniform
from distrl.plugins.spec import Options

ENVELOPE = Envelope("e", "r", "n", 0)
CONTEXT = RoleContext("r", "n", 0, SystemClock(), random.Random(0), cast(Artefacts, None), Path())


def judged(values: list[float | None], success: float, entropy: float = 2.0) -> tuple[Trajectory, Reward]:
    steps = tuple(
        StepRecord(ObservationRecord(0, 1, 1), "wait", (0,), -1.0, (-1.0,), entropy=entropy, value=value)
        for value in values
    )
    trajectory = Trajectory(
        ENVELOPE,
        "t",
        "policy",
        "k",
        "kind",
        "train",
        "goal",
        "[]",
        0,
        5,
        "d",
        "p",
        1,
        1,
        "",
        "{}",
        "finished",
        0,
        1,
        steps,
    )
    return trajectory, Reward(ENVELOPE, "t", "state", "1", success)


def feedback(td: float | None, ratio: float | None, entropy: float | None) -> Feedback:
    return Feedback(ENVELOPE, "t", "trained", 1, 1, td, ratio, entropy)


def test_new_trajectories_by_hand() -> None:
    # |td| = |0.6 - 0.2|, |1 - 0.6|: mean 0.4
    assert Dper(DperOptions(), CONTEXT).arrived([judged([0.2, 0.6], 1.0)]) == [
        pytest.approx(50 * 0.4 + 1.0 + 0.01 * 2.0)
    ]


def test_feedback_by_hand() -> None:
    dper = Dper(DperOptions(td_weight=2.0, ratio_weight=3.0, entropy_weight=5.0), CONTEXT)
    assert dper.refreshed([feedback(0.5, 0.25, 0.1), feedback(None, None, None)]) == [pytest.approx(2.25), None]


def test_without_a_value_the_highest_so_far() -> None:
    dper = Dper(DperOptions(), CONTEXT)
    assert dper.arrived([judged([None], 0.0)]) == [51.0]
    dper.refreshed([feedback(3.0, 1.0, 0.0)])
    assert dper.arrived([judged([0.5, None], 0.0)]) == [151.0]


def test_surprise_raises_the_priority() -> None:
    expected, surprising = Dper(DperOptions(), CONTEXT).arrived([judged([0.9], 1.0), judged([0.1], 1.0)])
    assert surprising > expected


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_priorities_are_finite_and_not_negative(broken: float) -> None:
    dper = Dper(DperOptions(), CONTEXT)
    priorities = [*dper.arrived([judged([broken], 1.0)]), *dper.refreshed([feedback(broken, 1.0, 1.0)])]
    assert all(priority is not None and math.isfinite(priority) and priority >= 0 for priority in priorities)


def test_empty_batches_and_trajectories() -> None:
    for prioritizer in (Dper(DperOptions(), CONTEXT), Uniform(Options(), CONTEXT)):
        assert list(prioritizer.arrived([])) == []
        assert list(prioritizer.refreshed([])) == []
        assert list(prioritizer.arrived([judged([], 1.0)])) == [0.0]


def test_uniform_treats_all_alike() -> None:
    uniform = Uniform(Options(), CONTEXT)
    assert list(uniform.arrived([judged([0.1], 1.0), judged([None], 0.0)])) == [1.0, 1.0]
    assert list(uniform.refreshed([dataclasses.replace(feedback(9.0, 1.0, 1.0))])) == [None]
