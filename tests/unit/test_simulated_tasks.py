"""The simulated phone's tasks: splits that share nothing, tasks that repeat, goals that say what is asked."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from distrl.connectors.simulated_phone.catalogue import APPS, MODIFIERS, NOUNS, SEARCHABLE, SWITCHES
from distrl.connectors.simulated_phone.layout import draw_layout
from distrl.connectors.simulated_phone.option import TaskOptions
from distrl.connectors.simulated_phone.task import SimulatedTasks
from distrl.core.contracts.events import Split
from distrl.core.contracts.task import Task
from distrl.testing import make_context

DRAWS = 6000


def make_tasks(*kinds: str, seed: int = 0) -> SimulatedTasks:
    options = TaskOptions.model_validate({"kinds": kinds} if kinds else {})
    return SimulatedTasks(options, make_context(Path("unused"), seed=seed))


@pytest.fixture(scope="module")
def drawn() -> dict[Split, list[Task]]:
    tasks = make_tasks()
    return {
        "train": [tasks.sample("train", seed) for seed in range(DRAWS)],
        "test": [tasks.sample("test", seed) for seed in range(DRAWS)],
    }


def start(task: Task) -> tuple[str, str]:
    """What an agent is told and what it starts from, whatever the ids say."""
    return task.goal, draw_layout(task.seed, task.parameters).key


def phrasing(task: Task) -> str:
    goal = task.goal
    for name in sorted((*SWITCHES, *(app.label for app in APPS.values()), *MODIFIERS, *NOUNS), key=len, reverse=True):
        goal = goal.replace(name, "_")
    return goal.replace(" on", " ?").replace(" off", " ?")


def combination(task: Task) -> tuple[str, ...]:
    parameters = task.parameters
    if task.kind == "search":
        return ("search", parameters["query"])
    return (task.kind, *sorted(parameters.values()), phrasing(task))


def test_the_splits_share_no_instance(drawn: dict[Split, list[Task]]) -> None:
    assert not {task.task_id for task in drawn["train"]} & {task.task_id for task in drawn["test"]}
    assert not set(map(start, drawn["train"])) & set(map(start, drawn["test"]))
    for split, found in drawn.items():
        assert {task.split for task in found} == {split}


def test_an_id_stands_for_one_goal_one_start_and_one_set_of_checks(drawn: dict[Split, list[Task]]) -> None:
    every = [*drawn["train"], *drawn["test"]]
    assert len({task.task_id for task in every}) == len(set(map(start, every)))
    assert len({(task.task_id, task.checks, start(task)) for task in every}) == len({task.task_id for task in every})


def test_some_combinations_are_met_in_testing_only(drawn: dict[Split, list[Task]]) -> None:
    trained = set(map(combination, drawn["train"]))
    for kind in ("open", "toggle", "search"):
        unseen = {combination(task) for task in drawn["test"] if task.kind == kind} - trained
        # Of these combinations a fifth is held out: 54, 96 and 576 of them.
        assert len(unseen) >= {"open": 3, "toggle": 8, "search": 60}[kind]


def test_all_parts_of_the_unseen_are_met_in_training(drawn: dict[Split, list[Task]]) -> None:
    train = drawn["train"]
    assert {task.parameters["app"] for task in train if task.kind == "open"} == set(APPS)
    assert {task.parameters["app"] for task in train if task.kind == "search"} == set(SEARCHABLE)
    toggles = {(task.parameters["switch"], task.parameters["state"]) for task in train if task.kind == "toggle"}
    assert toggles == {(name, state) for name in SWITCHES for state in ("on", "off")}
    words = {word for task in train if task.kind == "search" for word in task.parameters["query"].split()}
    assert words == {*MODIFIERS, *NOUNS}
    assert set(map(phrasing, drawn["test"])) <= set(map(phrasing, train))


def test_kinds_come_in_equal_shares(drawn: dict[Split, list[Task]]) -> None:
    for found in drawn.values():
        shares = Counter(task.kind for task in found)
        assert all(abs(count / DRAWS - 1 / 3) < 0.03 for count in shares.values())
    instances = make_tasks().instances("test", 121)
    assert sorted(Counter(task.kind for task in instances).values()) == [40, 40, 41]
    assert len({task.task_id for task in instances}) == 121
    assert {task.kind for task in make_tasks("search").instances("train", 10)} == {"search"}


def test_tasks_depend_on_the_seed_alone() -> None:
    one, other = make_tasks(seed=1), make_tasks(seed=2)
    assert [one.sample("train", seed) for seed in range(50)] == [other.sample("train", seed) for seed in range(50)]
    assert list(one.instances("test", 30)) == list(other.instances("test", 60))[:30]
    assert len({one.sample("train", seed).task_id for seed in range(200)}) == 200


def test_a_goal_names_what_is_asked_and_it_never_holds_at_the_start(drawn: dict[Split, list[Task]]) -> None:
    for task in drawn["train"][:500]:
        words = f" {task.goal} "
        match task.kind:
            case "open":
                assert f" {APPS[task.parameters['app']].label} " in words
            case "toggle":
                assert f" {task.parameters['switch']} " in words
                assert f" {task.parameters['state']} " in words
                shown = dict(draw_layout(task.seed, task.parameters).switches)
                assert shown[task.parameters["switch"]] == (task.parameters["state"] == "off")
            case _:
                assert f" {APPS[task.parameters['app']].label} " in words
                assert f" {task.parameters['query']} " in words


def test_places_vary(drawn: dict[Split, list[Task]]) -> None:
    layouts = [draw_layout(task.seed, task.parameters) for task in drawn["train"]]
    assert {layout.home.index("settings") for layout in layouts} == set(range(9))
    assert {layout.field_row for layout in layouts} == {2, 3, 4}
    rows = {
        [name for name, _ in draw_layout(task.seed, task.parameters).switches].index(task.parameters["switch"])
        for task in drawn["train"]
        if task.kind == "toggle"
    }
    assert rows == {0, 1, 2, 3}


def test_an_unknown_kind_has_no_demonstration() -> None:
    assert make_tasks().demonstrate(Task("t", "web", "train", "Do it", 1, 5)) is None
