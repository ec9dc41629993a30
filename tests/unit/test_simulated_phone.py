"""The simulated phone: what taps do, what is drawn, how it fails; and that it and the evaluator ``state`` never disagree."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from statistics import median

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from distrl.connectors.simulated_phone.art import tile
from distrl.connectors.simulated_phone.catalogue import APPS, SWITCHES
from distrl.connectors.simulated_phone.device import SimulatedPhone
from distrl.connectors.simulated_phone.layout import COLUMNS, ROWS, centre, draw_layout
from distrl.connectors.simulated_phone.option import Faults, Latency, PhoneOptions, TaskOptions
from distrl.connectors.simulated_phone.state import PhoneState
from distrl.connectors.simulated_phone.task import SimulatedTasks
from distrl.connectors.simulated_phone.widget import target_at, widgets
from distrl.core.contracts.action import Action
from distrl.core.contracts.observation import Observation
from distrl.core.contracts.role import RoleContext
from distrl.core.contracts.task import Task
from distrl.core.errors import DeviceError, DeviceLostError, DeviceTimeoutError, TaskError
from distrl.plugins.builtin.evaluator.state import StateEvaluator
from distrl.plugins.spec import Options
from distrl.testing import ManualClock, make_context, make_trajectory


@pytest.fixture
def context(tmp_path: Path) -> RoleContext:
    return make_context(tmp_path)


@pytest.fixture
def tasks(context: RoleContext) -> SimulatedTasks:
    return SimulatedTasks(TaskOptions(), context)


@pytest.fixture
def phone(context: RoleContext) -> Iterator[SimulatedPhone]:
    with closing(SimulatedPhone(PhoneOptions(), context, 0)) as phone:
        yield phone


def of_kind(tasks: SimulatedTasks, kind: str, count: int = 1) -> list[Task]:
    return [task for task in tasks.instances("train", 3 * count) if task.kind == kind]


def solve(tasks: SimulatedTasks, task: Task) -> list[Action]:
    return list(tasks.demonstrate(task) or ())


def judge(context: RoleContext, task: Task, observation: Observation) -> float:
    trajectory = make_trajectory(
        checks=json.dumps([asdict(check) for check in task.checks]),
        final_observation=context.artefacts.record(observation),
    )
    return StateEvaluator(Options(), context).evaluate([trajectory])[0].success


cells = st.tuples(st.integers(0, COLUMNS - 1), st.integers(0, ROWS - 1)).map(
    lambda cell: Action("tap", point=centre(*cell))
)
actions = st.one_of(
    cells,
    st.sampled_from(["back", "home", "enter"]).map(lambda key: Action("press", key=key)),  # type: ignore[arg-type]
    st.sampled_from(["green tea", "x", "", "a b c"]).map(lambda text: Action("type", text=text)),
    st.just(Action("swipe", (0.5, 0.8), (0.5, 0.2))),
    st.just(Action("wait")),
)


# --- what it shows ------------------------------------------------------------------------------


def test_an_observation_is_raw_pixels_with_a_ui_tree(phone: SimulatedPhone, tasks: SimulatedTasks) -> None:
    observation = phone.reset(tasks.sample("train", 1), episode="e")
    assert observation.screenshot is not None
    assert observation.ui_tree is not None
    shot = observation.screenshot
    assert (shot.width, shot.height, shot.media_type, len(shot.data)) == (96, 192, "image/x-rgb", 96 * 192 * 3)
    tree = json.loads(observation.ui_tree)
    assert tree["text"] == "home"
    icons = [node for node in tree["children"] if node["class_name"] == "Icon"]
    assert {node["text"] for node in icons} == {app.label for app in APPS.values()}
    assert all(0 <= edge <= 1 for node in icons for edge in node["bounds"])
    assert phone.observe().screenshot == shot


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), script=st.lists(actions, max_size=8))
def test_the_same_task_and_actions_give_the_same_pixels(
    tmp_path_factory: pytest.TempPathFactory, seed: int, script: list[Action]
) -> None:
    directory = tmp_path_factory.getbasetemp() / "pixels"
    task = SimulatedTasks(TaskOptions(), make_context(directory)).sample("train", seed)
    phones = [SimulatedPhone(PhoneOptions(), make_context(directory, seed=n), n) for n in (1, 2)]
    first, second = ([phone.reset(task, episode="e")] for phone in phones)
    for action in script:
        first.append(phones[0].step(action).observation)
        second.append(phones[1].step(action).observation)
    assert [(item.screenshot, item.ui_tree) for item in first] == [(item.screenshot, item.ui_tree) for item in second]
    for phone in phones:
        phone.close()


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 10_000), script=st.lists(actions, max_size=8), helped=st.integers(0, 4))
def test_checks_and_the_environment_agree_at_every_step(
    tmp_path_factory: pytest.TempPathFactory, seed: int, script: list[Action], helped: int
) -> None:
    context = make_context(tmp_path_factory.getbasetemp() / "agree")
    tasks = SimulatedTasks(TaskOptions(), context)
    task = tasks.sample("train", seed)
    phone = SimulatedPhone(PhoneOptions(), context, 0)
    assert judge(context, task, phone.reset(task, episode="e")) == 0.0 == phone.outcome()
    for action in (*script[:2], *solve(tasks, task)[:helped], *script[2:]):
        result = phone.step(action)
        assert judge(context, task, result.observation) == phone.outcome() == float(result.done)
        assert result.environment_outcome == (1.0 if result.done else None)
    phone.close()


def test_every_demonstration_solves_its_task_in_the_fewest_steps(
    phone: SimulatedPhone, tasks: SimulatedTasks, context: RoleContext
) -> None:
    steps = {"open": 1, "toggle": 2, "search": 4}
    for task in [*tasks.instances("train", 150), *tasks.instances("test", 150)]:
        script = solve(tasks, task)
        phone.reset(task, episode="e")
        results = [phone.step(action) for action in script]
        assert len(script) == steps[task.kind] <= task.horizon
        assert [result.done for result in results] == [False] * (len(script) - 1) + [True]
        assert results[-1].environment_outcome == 1.0
        assert judge(context, task, results[-1].observation) == 1.0


def test_a_script_survives_being_written_as_text(phone: SimulatedPhone, tasks: SimulatedTasks) -> None:
    from distrl.core.contracts.action import parse_action

    for task in tasks.instances("train", 30):
        phone.reset(task, episode="e")
        assert [phone.step(parse_action(str(action))).done for action in solve(tasks, task)][-1]


def test_targets_cover_whole_cells_and_never_overlap() -> None:
    layout = draw_layout(5, {})
    screens = [PhoneState(layout)]
    for app in APPS:
        screens += [PhoneState(layout, app=app), PhoneState(layout, app=app, focused=APPS[app].searchable)]
    for state in screens:
        covered: dict[tuple[int, int], str] = {}
        for item in widgets(state):
            if not item.target:
                continue
            left, top, columns, rows = item.cells
            for cell in itertools.product(range(left, left + columns), range(top, top + rows)):
                assert covered.setdefault(cell, item.target) == item.target
        for column, row in itertools.product(range(COLUMNS), range(ROWS)):
            assert target_at(widgets(state), *centre(column, row)) == covered.get((column, row), "")
    assert target_at(widgets(screens[0]), 1.0, 1.0) == ""


def test_icons_and_switches_are_told_apart_by_their_pixels() -> None:
    icons = [tile(("icon", app, "0")) for app in APPS]
    switches = [tile(("switch", name, "off")) for name in SWITCHES]
    for group in (icons, switches):
        for one, other in itertools.combinations(group, 2):
            difference = np.abs(one[:32, :32].astype(int) - other[:32, :32].astype(int)).mean()
            assert difference > 5
    on, off = tile(("switch", "wifi", "on")), tile(("switch", "wifi", "off"))
    assert np.array_equal(on[:, :64], off[:, :64])
    assert not np.array_equal(on[:, 64:], off[:, 64:])


# --- what it does -------------------------------------------------------------------------------


def test_what_makes_no_sense_changes_nothing(phone: SimulatedPhone, tasks: SimulatedTasks) -> None:
    task = of_kind(tasks, "search")[0]
    before = phone.reset(task, episode="e")
    useless = (
        Action("type", text="green tea"),
        Action("press", key="enter"),
        Action("press", key="back"),
        Action("press", key="home"),
        Action("swipe", (0.5, 0.8), (0.5, 0.2)),
        Action("wait"),
        Action("tap", point=(0.5, 0.01)),
    )
    for action in useless:
        after = phone.step(action).observation
        assert (after.screenshot, after.ui_tree) == (before.screenshot, before.ui_tree)


def test_the_keys_lead_back_and_home(phone: SimulatedPhone, tasks: SimulatedTasks) -> None:
    task = of_kind(tasks, "search")[0]
    launch, focus, write, _ = solve(tasks, task)
    other = Action("type", text="something else")

    def app(action: Action) -> str:
        tree = json.loads(phone.step(action).observation.ui_tree or "")
        ids = {node["resource_id"] for node in tree["children"]}
        suffix = "+keyboard" if "keyboard/enter" in ids else "+results" if any("results" in i for i in ids) else ""
        return str(tree["text"]) + suffix

    name, back, home = task.parameters["app"], Action("press", key="back"), Action("tap", point=centre(2, ROWS - 1))
    phone.reset(task, episode="e")
    assert [app(launch), app(focus), app(other)] == [name, f"{name}+keyboard", f"{name}+keyboard"]
    assert app(Action("press", key="enter")) == f"{name}+results"
    assert [app(back), app(back), app(launch), app(home)] == [name, "home", name, "home"]
    assert [app(launch), app(focus), app(back), app(back)] == [name, f"{name}+keyboard", name, "home"]
    # The button works as well as the key, and typing replaces what was there.
    assert [app(launch), app(focus), app(other), app(write)][-1] == f"{name}+keyboard"
    row = draw_layout(task.seed, task.parameters).field_row
    assert phone.step(Action("tap", point=centre(4, row))).done


def test_the_screen_stays_once_the_goal_is_reached(phone: SimulatedPhone, tasks: SimulatedTasks) -> None:
    task = of_kind(tasks, "toggle")[0]
    phone.reset(task, episode="e")
    *_, toggle = script = solve(tasks, task)
    done = [phone.step(action) for action in script][-1]
    again = phone.step(toggle)
    assert done.done
    assert again.done
    assert again.environment_outcome == 1.0
    assert again.observation.ui_tree == done.observation.ui_tree


def test_a_foreign_task_and_a_missing_reset_are_errors(phone: SimulatedPhone) -> None:
    with pytest.raises(DeviceError, match="reset"):
        phone.step(Action("wait"))
    for parameters in ({}, {"switch": "gravity", "state": "on"}, {"app": "nonsense"}):
        with pytest.raises(TaskError):
            phone.reset(Task("t", "web", "train", "Do it", 1, 5, parameters=parameters), episode="e")
        with pytest.raises(DeviceError):
            phone.observe()


# --- how it fails -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("faults", "error", "seconds"),
    [
        (Faults(freeze_probability=1), DeviceTimeoutError, 3.0),
        (Faults(crash_probability=1), DeviceLostError, 0.0),
        (Faults(lost_session_probability=1), DeviceLostError, 0.0),
    ],
)
def test_a_fault_lasts_until_the_next_reset(
    tmp_path: Path, tasks: SimulatedTasks, faults: Faults, error: type[DeviceError], seconds: float
) -> None:
    clock = ManualClock()
    task = tasks.sample("train", 3)
    options = PhoneOptions(faults=faults, timeout_s=3.0)
    with closing(SimulatedPhone(options, make_context(tmp_path, clock=clock), 0)) as phone:
        phone.reset(task, episode="e")
        before = clock.monotonic()
        with pytest.raises(error):
            phone.step(Action("wait"))
        assert clock.monotonic() - before == seconds
        for call in (phone.health, phone.observe, lambda: phone.step(Action("wait"))):
            with pytest.raises(error):
                call()
        assert phone.reset(task, episode="f").screenshot is not None
        phone.health()


def test_faults_come_as_often_as_they_should_and_repeat_with_the_seed(tmp_path: Path, tasks: SimulatedTasks) -> None:
    task = tasks.sample("train", 3)

    def failures(seed: int) -> list[str]:
        options = PhoneOptions(
            faults=Faults(freeze_probability=0.1, crash_probability=0.1, lost_session_probability=0.1)
        )
        found = []
        with closing(SimulatedPhone(options, make_context(tmp_path, seed=seed), 0)) as phone:
            phone.reset(task, episode="e")
            for _ in range(1000):
                try:
                    phone.step(Action("wait"))
                except DeviceError as error:
                    found.append(error.message.split(";")[0])
                    phone.reset(task, episode="e")
                else:
                    found.append("")
        return found

    first = failures(1)
    assert first == failures(1) != failures(2)
    assert 200 < sum(map(bool, first)) < 400
    assert len(set(first)) == 4


def test_latency_passes_on_the_injected_clock(tmp_path: Path, tasks: SimulatedTasks) -> None:
    task = tasks.sample("train", 3)

    def durations(latency: Latency, *, spread: float = 1.0, index: int = 0) -> list[float]:
        clock, found = ManualClock(), []
        options = PhoneOptions(latency=latency, spread=spread)
        with closing(SimulatedPhone(options, make_context(tmp_path, clock=clock), index)) as phone:
            phone.reset(task, episode="e")
            for _ in range(400):
                before = clock.monotonic()
                phone.step(Action("wait"))
                found.append(clock.monotonic() - before)
        return found

    assert durations(Latency()) == [0.0] * 400
    assert durations(Latency(kind="constant", median_ms=20)) == pytest.approx([0.02] * 400)
    varied = durations(Latency(kind="lognormal", median_ms=20, sigma=0.5))
    assert median(varied) == pytest.approx(0.02, rel=0.15)
    assert len(set(varied)) > 390
    slowness = [durations(Latency(kind="constant", median_ms=20), spread=10, index=n)[0] / 0.02 for n in range(8)]
    assert all(1 <= factor <= 10 for factor in slowness)
    assert max(slowness) / min(slowness) > 2


def test_a_call_slower_than_its_limit_is_a_timeout(tmp_path: Path, tasks: SimulatedTasks) -> None:
    clock = ManualClock()
    options = PhoneOptions(latency=Latency(kind="constant", median_ms=2000), timeout_s=0.5)
    before = clock.monotonic()
    phone = SimulatedPhone(options, make_context(tmp_path, clock=clock), 0)
    with closing(phone), pytest.raises(DeviceTimeoutError):
        phone.reset(tasks.sample("train", 3), episode="e")
    assert clock.monotonic() - before == 0.5


def test_options_refuse_what_cannot_be(tmp_path: Path) -> None:
    wrongs: tuple[dict[str, object], ...] = (
        {"latencies": {}},
        {"latency": {"kind": "slow"}},
        {"faults": {"freeze_probability": 0.6, "crash_probability": 0.6}},
        {"spread": 0.5},
        {"timeout_s": 0},
    )
    for wrong in wrongs:
        with pytest.raises(ValidationError):
            PhoneOptions.model_validate(wrong)
    with pytest.raises(ValidationError):
        TaskOptions.model_validate({"kinds": []})


def test_registering_imports_nothing_heavy() -> None:
    code = (
        "import sys, distrl.connectors.plugin, distrl.plugins.builtin;"
        "heavy = {'numpy', 'PIL', 'torch', 'kafka', 'minio', 'appium'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
