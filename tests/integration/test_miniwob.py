"""MiniWoB++ pages through a real Appium server and real Chromium: determinism, goals, success and failure as the page judges."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
from PIL import Image

from distrl.connectors.appium.device import AppiumDevice
from distrl.connectors.appium.option import AppiumOptions
from distrl.connectors.miniwob.option import MiniWobOptions
from distrl.connectors.miniwob.task import MiniWobTasks
from distrl.core.contracts.action import Action
from distrl.core.contracts.clock import SystemClock
from distrl.core.contracts.observation import Observation
from distrl.core.contracts.role import Artefacts, RoleContext
from distrl.core.contracts.task import Task
from distrl.testing import check_device

if TYPE_CHECKING:
    from appium_server import AppiumServer

pytestmark = pytest.mark.appium


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> RoleContext:
    work_dir: Path = tmp_path_factory.mktemp("work")
    return RoleContext("run", "node", 0, SystemClock(), random.Random(0), cast(Artefacts, None), work_dir)


@pytest.fixture(scope="module")
def device(appium_server: AppiumServer, context: RoleContext) -> Iterator[AppiumDevice]:
    device = AppiumDevice(AppiumOptions(servers=(appium_server.url,)), context, 0)
    yield device
    device.close()


def instances(context: RoleContext, kind: str, count: int) -> list[Task]:
    return list(MiniWobTasks(MiniWobOptions(tasks=(kind,)), context).instances("train", count))


def png(observation: Observation) -> bytes:
    assert observation.screenshot is not None
    return observation.screenshot.data


def centre(device: AppiumDevice, script: str, *arguments: object) -> tuple[float, float]:
    """Where an element is, in fractions of the screen. Only this test may look behind the pixels."""
    assert device._session is not None
    x, y = device._session.script(
        f"const box = ({script}).getBoundingClientRect();"
        "return [(box.x + box.width / 2) / innerWidth, (box.y + box.height / 2) / innerHeight]",
        *arguments,
    )
    return x, y


BUTTON = "[...document.querySelectorAll('button')].find(button => button.textContent === arguments[0])"
OTHER = "[...document.querySelectorAll('button')].find(button => button.textContent !== arguments[0])"


def test_the_same_seed_gives_the_same_pixels(
    device: AppiumDevice, appium_server: AppiumServer, context: RoleContext
) -> None:
    first, other = instances(context, "click-button", 2)
    before = device.reset(first, episode="a")
    device.step(Action("tap", point=(0.3, 0.3)))
    different = device.reset(other, episode="b")
    again = device.reset(first, episode="c")
    assert (png(before), before.goal) == (png(again), again.goal)
    assert png(before) != png(different)

    elsewhere = AppiumDevice(AppiumOptions(servers=(appium_server.url,)), context, 1)
    try:
        assert png(elsewhere.reset(first, episode="d")) == png(before)
    finally:
        elsewhere.close()


def test_the_page_words_a_goal_for_each_episode(device: AppiumDevice, context: RoleContext) -> None:
    goals = {device.reset(task, episode="a").goal for task in instances(context, "click-button", 6)}
    assert len(goals) > 1
    assert all(goal.startswith("Click on the ") for goal in goals)


def test_success_and_failure_on_a_button(device: AppiumDevice, context: RoleContext) -> None:
    outcomes = set()
    for task in instances(context, "click-button", 6):
        goal = device.reset(task, episode="a").goal
        assert device.outcome() == 0.0
        wanted = goal.split('"')[1]
        result = device.step(Action("tap", point=centre(device, BUTTON, wanted)))
        assert (result.done, result.environment_outcome, device.outcome()) == (True, 1.0, 1.0)

        device.reset(task, episode="b")
        assert device._session is not None
        if device._session.script(f"return Boolean({OTHER})", wanted):
            result = device.step(Action("tap", point=centre(device, OTHER, wanted)))
            assert (result.done, result.environment_outcome) == (True, 0.0)
            outcomes.add("failure")
    assert outcomes == {"failure"}


def test_success_by_pixels_alone(device: AppiumDevice, context: RoleContext) -> None:
    """click-color shows the goal's colour in words and four boxes; the box is found in the screenshot."""
    solved = 0
    for task in instances(context, "click-color", 4):
        observation = device.reset(task, episode="a")
        picture = Image.open(io.BytesIO(png(observation))).convert("RGB")
        wanted = Image.new("RGB", (1, 1), observation.goal.split()[3]).getpixel((0, 0))
        boxes = [(x / 160, y / 284) for y in (103, 167) for x in (49, 111)]
        (box,) = [box for box in boxes if picture.getpixel((int(box[0] * 360), int(box[1] * 639))) == wanted]
        result = device.step(Action("tap", point=box))
        solved += result.environment_outcome == 1.0
    assert solved == 4


def test_focus_and_typing(device: AppiumDevice, context: RoleContext) -> None:
    (focus,) = instances(context, "focus-text", 1)
    device.reset(focus, episode="a")
    missed = device.step(Action("tap", point=(0.5, 0.05)))
    assert (missed.done, missed.environment_outcome) == (False, None)
    result = device.step(Action("tap", point=centre(device, "document.querySelector('#tt')")))
    assert (result.done, result.environment_outcome) == (True, 1.0)

    (enter,) = instances(context, "enter-text", 1)
    wanted = device.reset(enter, episode="b").goal.split('"')[1]
    device.step(Action("tap", point=centre(device, "document.querySelector('#tt')")))
    device.step(Action("type", text=wanted))
    result = device.step(Action("tap", point=centre(device, "document.querySelector('#subbtn')")))
    assert (result.done, result.environment_outcome) == (True, 1.0)


def test_the_agent_sees_neither_the_reward_nor_its_taps(device: AppiumDevice, context: RoleContext) -> None:
    (task,) = instances(context, "focus-text", 1)
    before = device.reset(task, episode="a")
    assert png(device.step(Action("tap", point=(0.9, 0.6))).observation) == png(before)
    assert device._session is not None
    shown = device._session.script(
        "return ['reward-display', 'click-canvas'].map(id => document.getElementById(id).getClientRects().length)"
    )
    assert shown == [0, 0]


def test_an_agent_that_leaves_the_page_has_failed(device: AppiumDevice, context: RoleContext) -> None:
    (task,) = instances(context, "click-test-2", 1)
    device.reset(task, episode="a")
    assert device._session is not None
    device._session.open("about:blank")
    result = device.step(Action("wait"))
    assert (result.done, result.environment_outcome) == (True, 0.0)


def test_the_device_keeps_the_contract(appium_server: AppiumServer, context: RoleContext) -> None:
    (task,) = instances(context, "focus-text", 1)
    check_device(AppiumDevice(AppiumOptions(servers=(appium_server.url,)), context, 2), task)


def test_every_default_task_starts(device: AppiumDevice, context: RoleContext) -> None:
    tasks = MiniWobTasks(MiniWobOptions(), context)
    for task in tasks.instances("test", len(tasks.kinds())):
        goal = device.reset(task, episode="a").goal
        assert goal
        assert goal != task.goal
