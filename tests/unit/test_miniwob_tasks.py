"""The task source ``miniwob``: tasks follow from seeds, and train and test share none."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distrl.connectors.miniwob.option import MiniWobOptions
from distrl.connectors.miniwob.page import PARAMETER, page_file
from distrl.connectors.miniwob.task import MiniWobTasks
from distrl.core.contracts.clock import SystemClock
from distrl.core.contracts.role import Artefacts, RoleContext
from distrl.core.errors import TaskError
from distrl.testing import check_task_source

CONTEXT = RoleContext("run", "node", 0, SystemClock(), random.Random(0), cast(Artefacts, None), Path("unused"))
TASKS = MiniWobTasks(MiniWobOptions(), CONTEXT)


@given(st.integers(min_value=0), st.integers(min_value=0))
def test_train_and_test_share_no_task(one: int, other: int) -> None:
    train, test = TASKS.sample("train", one), TASKS.sample("test", other)
    assert train == TASKS.sample("train", one)
    assert train.seed % 2 == 0
    assert test.seed % 2 == 1
    assert train.task_id != test.task_id
    assert (train.split, test.split) == ("train", "test")


def test_an_id_is_one_instance() -> None:
    drawn = [TASKS.sample("train", seed) for seed in range(2000)]
    assert len({task.task_id for task in drawn}) == len({(task.kind, task.seed) for task in drawn}) > 1990
    assert {task.kind for task in drawn} == set(TASKS.kinds())
    assert all(task.parameters == {PARAMETER: task.kind} for task in drawn)


def test_instances_are_distinct_and_in_equal_shares() -> None:
    instances = TASKS.instances("test", 30)
    assert len({task.task_id for task in instances}) == 30
    assert set(Counter(task.kind for task in instances).values()) == {10}
    assert instances[:7] == TASKS.instances("test", 7)
    assert not {task.task_id for task in instances} & {task.task_id for task in TASKS.instances("train", 300)}


def test_an_unknown_page_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(TaskError, match="did you mean 'click-button'"):
        MiniWobTasks(MiniWobOptions(tasks=("click-buton",)), CONTEXT)


@pytest.mark.parametrize("name", ["../core/core", "", "/etc/passwd"])
def test_a_name_cannot_leave_the_folder(name: str) -> None:
    with pytest.raises(TaskError):
        page_file(name)


def test_it_keeps_the_contract() -> None:
    check_task_source(TASKS)


def test_there_are_no_demonstrations() -> None:
    assert TASKS.demonstrate(TASKS.sample("train", 0)) is None
