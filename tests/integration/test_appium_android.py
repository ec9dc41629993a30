"""Android through Appium, as far as it can be tested without a phone.

What the device sends is read off a small WebDriver server that records commands; that real Appium takes such a session is
tried with Appium's own fake driver.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import random
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from PIL import Image

from distrl.connectors.appium.android import AndroidPlatform
from distrl.connectors.appium.device import AppiumDevice
from distrl.connectors.appium.option import AppiumOptions
from distrl.core.contracts.action import Action
from distrl.core.contracts.clock import SystemClock
from distrl.core.contracts.role import Artefacts, RoleContext
from distrl.core.contracts.task import Task
from distrl.core.errors import ConfigError, DeviceLostError, DeviceTimeoutError

if TYPE_CHECKING:
    from appium_server import AppiumServer

HIERARCHY = (
    '<hierarchy width="100" height="200"><node class="android.widget.EditText" text="milk" '
    'resource-id="com.example:id/query" bounds="[10,20][90,40]"/></hierarchy>'
)
APP = Task("a", "a", "train", "go", 0, 5, parameters={"app_package": "com.example", "app_activity": ".MainActivity"})


def screenshot() -> str:
    data = io.BytesIO()
    Image.new("RGB", (100, 200)).save(data, "PNG")
    return base64.b64encode(data.getvalue()).decode()


class Recorder(ThreadingHTTPServer):
    """Answers as a WebDriver server does, and keeps every command."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.commands: list[tuple[str, str, Any]] = []
        self.answers: dict[tuple[str, str], tuple[int, bytes]] = {}
        """What to answer to a command instead of the usual."""
        self.hold = threading.Event()
        """While this is clear, nothing is answered."""
        self.hold.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def of(self, path: str) -> list[Any]:
        return [body for _, called, body in self.commands if called == path]


class Handler(BaseHTTPRequestHandler):
    def answer(self) -> None:
        assert isinstance(self.server, Recorder)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = self.path.replace("/session/s1", "")
        self.server.commands.append((self.command, path, json.loads(body) if body else None))
        self.server.hold.wait(30)
        value: Any = None
        match self.command, path:
            case "POST", "/session":
                value = {"sessionId": "s1", "capabilities": {"platformName": "Android"}}
            case "GET", "/screenshot":
                value = screenshot()
            case "GET", "/source":
                value = HIERARCHY
            case "GET", "/status":
                value = {"ready": True}
        usual = 200, json.dumps({"value": value}).encode()
        status, data = self.server.answers.get((self.command, path), usual)
        with contextlib.suppress(OSError):
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    do_GET = do_POST = do_DELETE = answer

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    with Recorder() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        yield server
        server.hold.set()
        server.shutdown()
        thread.join()


def device(server: str, tmp_path: Path, index: int = 0, **options: Any) -> AppiumDevice:
    context = RoleContext("run", "node", 0, SystemClock(), random.Random(0), cast(Artefacts, None), tmp_path)
    settings = AppiumOptions.model_validate({"platform": "android", "servers": (server,), **options})
    return AppiumDevice(settings, context, index)


def test_an_episode_in_an_app(recorder: Recorder, tmp_path: Path) -> None:
    phone = device(recorder.url, tmp_path, udids=("emulator-5554",), capabilities={"appium:noReset": False})
    assert phone.device_id == "emulator-5554"
    phone.health()
    observation = phone.reset(APP, episode="e")
    assert observation.screenshot is not None
    assert (observation.screenshot.width, observation.screenshot.height) == (100, 200)
    tree = json.loads(observation.ui_tree or "")
    assert tree["children"][0]["text"] == "milk"
    assert tree["children"][0]["bounds"] == [0.1, 0.1, 0.9, 0.2]
    for action in (
        Action("tap", point=(0.5, 0.5)),
        Action("swipe", point=(0.5, 0.8), end=(0.5, 0.2)),
        Action("type", text="two\ue007 words"),
        Action("press", key="back"),
        Action("press", key="home"),
        Action("press", key="enter"),
        Action("done"),
    ):
        result = phone.step(action)
        assert (result.done, result.environment_outcome) == (False, None)
    assert phone.outcome() is None
    phone.reset(APP, episode="f")
    phone.close()

    (session,) = recorder.of("/session")
    wanted = session["capabilities"]["alwaysMatch"]
    assert wanted["platformName"] == "Android"
    assert wanted["appium:automationName"] == "UiAutomator2"
    assert wanted["appium:udid"] == "emulator-5554"
    assert wanted["appium:noReset"] is False

    tap, swipe = recorder.of("/actions")
    assert [(move["x"], move["y"]) for move in tap["actions"][0]["actions"] if "x" in move] == [(50, 100)]
    assert [(move["x"], move["y"]) for move in swipe["actions"][0]["actions"] if "x" in move] == [(50, 160), (50, 40)]
    start = [
        ("mobile: terminateApp", {"appId": "com.example"}),
        ("mobile: startActivity", {"component": "com.example/.MainActivity", "wait": True}),
    ]
    assert [(call["script"], *call["args"]) for call in recorder.of("/execute/sync")] == [
        *start,
        ("mobile: type", {"text": "two words"}),
        ("mobile: pressKey", {"keycode": 4}),
        ("mobile: pressKey", {"keycode": 3}),
        ("mobile: pressKey", {"keycode": 66}),
        *start,
    ]
    assert recorder.commands[-1][:2] == ("DELETE", "")


def test_a_task_without_an_app_starts_on_the_home_screen(recorder: Recorder, tmp_path: Path) -> None:
    phone = device(recorder.url, tmp_path)
    phone.reset(Task("a", "a", "train", "go", 0, 5), episode="e")
    phone.close()
    assert [call["args"] for call in recorder.of("/execute/sync")] == [[{"keycode": 3}]]


def test_more_devices_than_phones_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="udids names 1"):
        device("http://127.0.0.1:1", tmp_path, index=1, udids=("emulator-5554",))


def test_no_phone_is_said_as_appium_says_it(recorder: Recorder, tmp_path: Path) -> None:
    error = {"error": "unknown error", "message": "Could not find a connected Android device\nstack", "stacktrace": ""}
    recorder.answers["POST", "/session"] = 500, json.dumps({"value": error}).encode()
    phone = device(recorder.url, tmp_path)
    with pytest.raises(DeviceLostError, match=r"Could not find a connected Android device$"):
        phone.reset(APP, episode="e")
    phone.close()


GARBAGE = [
    (404, json.dumps({"value": {"error": "invalid session id", "message": "gone", "stacktrace": ""}}).encode()),
    (502, b"<html>bad gateway</html>"),
    (200, b"not json"),
    (200, b'{"value": "not base64!"}'),
    (200, b'{"value": null}'),
    (200, b"[]"),
    (200, b'{"value": "aGVsbG8="}'),
    (200, b"\xff\xfe"),
]


@pytest.mark.parametrize(("status", "data"), GARBAGE)
def test_a_wrong_answer_loses_the_device_and_a_new_session_brings_it_back(
    recorder: Recorder, tmp_path: Path, status: int, data: bytes
) -> None:
    phone = device(recorder.url, tmp_path)
    phone.reset(APP, episode="e")
    recorder.answers["GET", "/screenshot"] = status, data
    with pytest.raises(DeviceLostError):
        phone.observe()
    recorder.answers.clear()
    phone.reset(APP, episode="f")
    assert len(recorder.of("/session")) == 2
    phone.close()


def test_a_request_that_is_not_answered_is_sent_once_and_ends_in_time(recorder: Recorder, tmp_path: Path) -> None:
    phone = device(recorder.url, tmp_path, step_seconds=1.5)
    phone.reset(APP, episode="e")
    before = len(recorder.of("/screenshot"))
    recorder.hold.clear()
    with pytest.raises(DeviceTimeoutError, match="no answer within"):
        phone.observe()
    assert len(recorder.of("/screenshot")) == before + 1, "the client's own retries must be off"
    recorder.hold.set()
    phone.close()


def test_the_calls_of_one_step_share_its_time(recorder: Recorder, tmp_path: Path) -> None:
    clock = Leaping()
    context = RoleContext("run", "node", 0, clock, random.Random(0), cast(Artefacts, None), tmp_path)
    options = AppiumOptions(platform="android", servers=(recorder.url,), step_seconds=10.0, settle_seconds=4.0)
    phone = AppiumDevice(options, context, 0)
    phone.reset(APP, episode="e")
    clock.leap = 11.0
    with pytest.raises(DeviceTimeoutError, match="did not answer in time"):
        phone.step(Action("tap", point=(0.5, 0.5)))
    clock.leap = 0.0
    phone.close()


class Leaping(SystemClock):
    """A clock that passes more time than it sleeps."""

    def __init__(self) -> None:
        self.now = time.monotonic()
        self.leap = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds + self.leap


@pytest.mark.appium
def test_real_appium_takes_such_a_session(appium_server: AppiumServer, tmp_path: Path) -> None:
    app = tmp_path / "app.xml"
    app.write_text(HIERARCHY)
    options = AppiumOptions(
        platform="android",
        capabilities={
            "platformName": "Fake",
            "appium:automationName": "Fake",
            "appium:deviceName": "Fake",
            "appium:app": str(app),
        },
    )
    clock = SystemClock()
    platform = AndroidPlatform(options, clock, "")
    session = platform.open(appium_server.url, clock.monotonic() + 60)
    try:
        assert session.screenshot()
        platform.act(session, Action("tap", point=(0.5, 0.5)), (100, 200))
        tree = json.loads(platform.ui_tree(session, (100, 200)) or "")
        assert tree["children"][0]["resource_id"] == "com.example:id/query"
    finally:
        session.quit()
