"""The Appium device against a real Appium server and real Chromium: episodes, pixels, and what happens when things break."""

from __future__ import annotations

import contextlib
import io
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
from PIL import Image

from distrl.connectors.appium.device import AppiumDevice
from distrl.connectors.appium.option import AppiumOptions
from distrl.connectors.appium.process import processes_with
from distrl.connectors.ledger import read_ledger
from distrl.core.contracts.action import Action
from distrl.core.contracts.clock import SystemClock
from distrl.core.contracts.observation import Observation
from distrl.core.contracts.role import Artefacts, RoleContext
from distrl.core.contracts.task import Task
from distrl.core.errors import DeviceLostError, DeviceTimeoutError, TaskError

if TYPE_CHECKING:
    from appium_server import AppiumServer

pytestmark = pytest.mark.appium

PAGE = """<!DOCTYPE html><body style="margin:0;background:white;height:1000px">
<div id="mark" style="position:absolute;left:0;top:0;width:20px;height:20px;background:rgb(0,0,255)"></div>
<form onsubmit="document.body.style.background='rgb(0,255,0)';return false">
<input id="field" style="position:absolute;left:10px;top:100px;width:100px;height:30px"></form>
<script>
addEventListener('click', event => {
  mark.style.left = (event.clientX - 10) + 'px'; mark.style.top = (event.clientY - 10 + scrollY) + 'px';
});
field.addEventListener('input', () => { document.title = field.value; });
</script></body>"""

MakeDevice = Callable[..., AppiumDevice]


def context(work_dir: Path) -> RoleContext:
    return RoleContext("run", "node", 0, SystemClock(), random.Random(0), cast(Artefacts, None), work_dir)


@pytest.fixture
def make(appium_server: AppiumServer, tmp_path: Path) -> Iterator[MakeDevice]:
    with contextlib.ExitStack() as stack:

        def made(index: int = 0, **options: object) -> AppiumDevice:
            options.setdefault("servers", (appium_server.url,))
            device = AppiumDevice(AppiumOptions.model_validate(options), context(tmp_path / "work"), index)
            stack.callback(device.close)
            return device

        yield made


@pytest.fixture
def page(tmp_path: Path) -> Task:
    path = tmp_path / "page.html"
    path.write_text(PAGE)
    return Task("page", "page", "train", "tap", 0, 5, parameters={"url": path.as_uri()})


def profiles(tmp_path: Path) -> list[Path]:
    """Profile folders of living sessions; their names are on the browsers' command lines."""
    return sorted((tmp_path / "work").glob("browser-*/profile-*"))


def browsers(tmp_path: Path) -> list[int]:
    return [pid for profile in profiles(tmp_path) for pid in processes_with(f"--user-data-dir={profile}")]


def browser(tmp_path: Path) -> int:
    """The browser's own process; the others with its profile are its children."""
    return min(browsers(tmp_path))


def image(observation: Observation) -> Image.Image:
    assert observation.screenshot is not None
    assert observation.screenshot.media_type == "image/png"
    picture = Image.open(io.BytesIO(observation.screenshot.data)).convert("RGB")
    assert picture.size == (observation.screenshot.width, observation.screenshot.height)
    return picture


def at(observation: Observation, point: tuple[float, float]) -> tuple[int, ...]:
    picture = image(observation)
    colour = picture.getpixel((int(point[0] * picture.width), int(point[1] * picture.height)))
    assert isinstance(colour, tuple)
    return colour


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for the kernel to end processes; bounded."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def test_an_episode_acts_on_the_page(make: MakeDevice, page: Task, tmp_path: Path) -> None:
    device = make()
    device.health()
    observation = device.reset(page, episode="episode-1")
    assert image(observation).size == (360, 639)
    assert (observation.ui_tree, observation.goal) == (None, "")
    assert at(observation, (0.5, 0.7)) == (255, 255, 255)

    result = device.step(Action("tap", point=(0.5, 0.7)))
    assert at(result.observation, (0.5, 0.7)) == (0, 0, 255)
    assert (result.done, result.environment_outcome, device.outcome()) == (False, None, None)

    assert at(device.step(Action("tap", point=(1.0, 1.0))).observation, (0.99, 0.99)) == (0, 0, 255)
    assert device.step(Action("press", key="back")).observation.screenshot == device.observe().screenshot

    before = device.observe()
    scrolled = device.step(Action("swipe", point=(0.8, 0.9), end=(0.8, 0.3))).observation
    assert scrolled.screenshot != before.screenshot
    device.step(Action("swipe", point=(0.8, 0.3), end=(0.8, 0.9)))

    device.step(Action("tap", point=(60 / 160, 115 / 284)))
    typed = device.step(Action("type", text="h\ud800\ue007\x00é😀\n"))
    assert at(typed.observation, (0.5, 0.7)) == (255, 255, 255), "a private code point must not press Enter"
    assert device._session is not None
    assert device._session.script("return field.value") == "hé😀"
    assert at(device.step(Action("press", key="enter")).observation, (0.5, 0.7)) == (0, 255, 0)

    device.finish("episode-1", "finished")
    device.finish("episode-1", "finished")
    device.close()
    ledger = read_ledger(tmp_path / "work")
    assert (ledger.started, ledger.finished) == ({"episode-1"}, {"episode-1"})


def test_close_leaves_nothing_behind(make: MakeDevice, page: Task, tmp_path: Path) -> None:
    device = make()
    device.reset(page, episode="episode")
    (profile,) = profiles(tmp_path)
    sockets = (profile / "SingletonSocket").readlink().parent
    assert browsers(tmp_path)
    device.close()
    device.close()
    until(lambda: not processes_with(f"--user-data-dir={profile}"), "the browser lives on")
    assert not list((tmp_path / "work").glob("browser-*"))
    assert not sockets.exists()
    with pytest.raises(DeviceLostError, match="reset it first"):
        device.observe()


def test_two_sessions_at_once(make: MakeDevice, page: Task, tmp_path: Path) -> None:
    first, second = make(0), make(1)
    assert first.device_id != second.device_id
    with ThreadPoolExecutor(2) as pool:
        # Both sessions are asked for in the same moment, as a collector's workers do.
        assert all(pool.map(lambda device: device.reset(page, episode=device.device_id), (first, second)))
    assert len(profiles(tmp_path)) == 2
    moved = first.step(Action("tap", point=(0.5, 0.7))).observation
    assert at(moved, (0.5, 0.7)) == (0, 0, 255)
    assert at(second.observe(), (0.5, 0.7)) == (255, 255, 255)
    first.close()
    assert at(second.step(Action("tap", point=(0.5, 0.7))).observation, (0.5, 0.7)) == (0, 0, 255)


def test_a_killed_browser_is_lost_and_the_next_reset_brings_it_back(
    make: MakeDevice, page: Task, tmp_path: Path
) -> None:
    device = make()
    device.reset(page, episode="a")
    (profile,) = profiles(tmp_path)
    sockets = (profile / "SingletonSocket").readlink().parent
    os.kill(browser(tmp_path), signal.SIGKILL)
    with pytest.raises(DeviceLostError) as caught:
        device.step(Action("tap", point=(0.5, 0.5)))
    assert caught.value.__cause__ is not None
    assert "\n" not in str(caught.value), "the driver's stack trace belongs to the cause"
    until(lambda: not processes_with(f"--user-data-dir={profile}"), "the browser lives on")
    with pytest.raises(DeviceLostError, match="reset it first"):
        device.step(Action("tap", point=(0.5, 0.5)))
    device.reset(page, episode="b")
    assert not profile.exists()
    assert not sockets.exists()
    assert at(device.step(Action("tap", point=(0.5, 0.7))).observation, (0.5, 0.7)) == (0, 0, 255)


def test_a_browser_that_died_between_episodes_is_replaced_unnoticed(
    make: MakeDevice, page: Task, tmp_path: Path
) -> None:
    device = make()
    device.reset(page, episode="a")
    os.kill(browser(tmp_path), signal.SIGKILL)
    assert at(device.reset(page, episode="b"), (0.5, 0.7)) == (255, 255, 255)


def test_a_frozen_browser_times_out_and_is_killed(make: MakeDevice, page: Task, tmp_path: Path) -> None:
    device = make(step_seconds=5.0)
    device.reset(page, episode="a")
    frozen = browsers(tmp_path)
    os.kill(min(frozen), signal.SIGSTOP)
    with pytest.raises(DeviceTimeoutError, match="no answer within"):
        device.step(Action("tap", point=(0.5, 0.5)))
    until(lambda: not browsers(tmp_path), "the frozen browser lives on")
    device.reset(page, episode="b")
    assert not set(frozen) & set(browsers(tmp_path))
    assert at(device.step(Action("tap", point=(0.5, 0.7))).observation, (0.5, 0.7)) == (0, 0, 255)


def test_a_page_that_hangs_times_out(make: MakeDevice, tmp_path: Path) -> None:
    path = tmp_path / "hangs.html"
    path.write_text("<body onclick='for(;;);'>")
    hangs = Task("page", "page", "train", "tap", 0, 5, parameters={"url": path.as_uri()})
    device = make(step_seconds=5.0)
    device.reset(hangs, episode="a")
    with pytest.raises(DeviceTimeoutError):
        device.step(Action("tap", point=(0.5, 0.5)))
    device.reset(hangs, episode="b")


def test_an_alert_of_the_page_is_no_failure(make: MakeDevice, tmp_path: Path) -> None:
    path = tmp_path / "alert.html"
    path.write_text("<body style='background:rgb(255,0,0)' onclick='alert(1)'>")
    alerts = Task("page", "page", "train", "tap", 0, 5, parameters={"url": path.as_uri()})
    device = make()
    device.reset(alerts, episode="a")
    assert at(device.step(Action("tap", point=(0.5, 0.5))).observation, (0.5, 0.5)) == (255, 0, 0)


def test_a_server_that_is_gone_is_said_so(page: Task, tmp_path: Path) -> None:
    from appium_server import start_appium

    with start_appium(tmp_path / "appium") as server:
        device = AppiumDevice(AppiumOptions(servers=(server.url,)), context(tmp_path / "work"), 0)
        try:
            device.reset(page, episode="a")
            # The server alone, as the kernel would when memory is short: its browsers live on.
            os.kill(server.pid, signal.SIGKILL)
            with pytest.raises(DeviceLostError, match="is gone or not started"):
                device.step(Action("tap", point=(0.5, 0.5)))
            until(lambda: not browsers(tmp_path), "the browser lives on")
            with pytest.raises(DeviceLostError, match="no Appium server answers"):
                device.health()
            with pytest.raises(DeviceLostError, match="is gone or not started"):
                device.reset(page, episode="b")
            server.restart()
            device.health()
            device.reset(page, episode="c")
        finally:
            device.close()


def test_a_server_that_hangs_times_out(page: Task, tmp_path: Path) -> None:
    from appium_server import start_appium

    with start_appium(tmp_path / "appium") as server:
        options = AppiumOptions(servers=(server.url,), step_seconds=2.0, reset_seconds=3.0)
        device = AppiumDevice(options, context(tmp_path / "work"), 0)
        try:
            server.pause()
            with pytest.raises(DeviceTimeoutError):
                device.health()
            with pytest.raises(DeviceTimeoutError, match="open a session"):
                device.reset(page, episode="a")
        finally:
            server.resume()
            device.close()


def test_what_a_crash_left_behind_is_cleared_at_the_next_start(make: MakeDevice, page: Task, tmp_path: Path) -> None:
    make().reset(page, episode="a")
    (profile,) = profiles(tmp_path)
    make()
    until(lambda: not processes_with(f"--user-data-dir={profile}"), "the browser lives on")
    assert not profile.exists()


def test_a_task_without_a_page_is_refused_and_the_session_kept(make: MakeDevice, page: Task, tmp_path: Path) -> None:
    device = make()
    device.reset(page, episode="a")
    (profile,) = profiles(tmp_path)
    with pytest.raises(TaskError, match="parameter 'url'"):
        device.reset(Task("x", "x", "train", "", 0, 1), episode="b")
    device.reset(page, episode="c")
    assert profiles(tmp_path) == [profile]
