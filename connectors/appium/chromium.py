"""Chromium on this machine, driven through Appium's Chromium driver. Made by ``AppiumDevice``.

Each session has a browser of its own: a fresh profile folder and a chromedriver on a port of its own (without one,
Appium lets the second session's chromedriver end the first). The profile's name is on the browser's command line, so what a
lost session leaves behind is found and ended, even if the server that started it is gone.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from distrl.connectors.appium import gesture
from distrl.connectors.appium.option import AppiumOptions
from distrl.connectors.appium.process import kill_processes_with, processes_with
from distrl.connectors.appium.session import Session
from distrl.core.contracts.action import Action
from distrl.core.contracts.clock import Clock
from distrl.core.contracts.task import Task
from distrl.core.errors import TaskError

_GONE_SECONDS = 1.5
"""Longest wait for processes to end by themselves, and for a folder to stay removed."""

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)


class ChromiumPlatform:
    """Implements ``Platform``. A plain task names its page in the parameter ``url``. No UI tree: an agent sees pixels.

    Touch scrolls and taps as on a phone. ``press enter`` is the key; ``press back`` and ``press home`` do nothing: a
    browser's history would leave the task's page for good, which is no mistake that a phone's buttons allow.
    """

    def __init__(self, options: AppiumOptions, clock: Clock, work_dir: Path, name: str) -> None:
        """``name`` is this device's own within ``work_dir``, the same at every start: it finds what a crash left there."""
        self._options = options
        self._clock = clock
        self._folder = work_dir / name
        self._profile: Path | None = None
        self._port = 0
        for left_behind in self._folder.glob("profile-*"):
            self._profile = left_behind
            self.kill()
            self.clear()

    def open(self, server: str, deadline: float) -> Session:
        self._profile = self._folder.resolve() / f"profile-{uuid.uuid4().hex}"
        self._profile.mkdir(parents=True)
        self._port = _free_port()
        return Session(server, self._capabilities(self._profile), self._clock, deadline=deadline)

    def _capabilities(self, profile: Path) -> dict[str, Any]:
        options = self._options
        return {
            "platformName": "linux",
            "appium:automationName": "Chromium",
            "browserName": "chrome",
            # Never executableDir: Appium would run every file in that folder to ask for its version.
            "appium:executable": str(options.driver),
            "appium:chromedriverPort": self._port,
            "appium:autodownloadEnabled": False,
            "appium:disableBuildCheck": True,
            "appium:newCommandTimeout": options.idle_seconds,
            # A page's alert must not make every later command fail.
            "unhandledPromptBehavior": "dismiss",
            # The driver gives up when the client does; by default it tries to load a page for five minutes.
            "timeouts": {"pageLoad": round(options.reset_seconds * 1000), "script": round(options.step_seconds * 1000)},
            "goog:chromeOptions": {
                "binary": str(options.browser),
                "args": [*FLAGS, *options.browser_flags, _profile_argument(profile)],
                "mobileEmulation": {
                    "deviceMetrics": {
                        "width": options.width,
                        "height": options.height,
                        "pixelRatio": options.pixel_ratio,
                        "mobile": False,
                        "touch": False,
                    }
                },
            },
            **options.capabilities,
        }

    def start(self, session: Session, task: Task) -> None:
        url = task.parameters.get("url")
        if not url:
            raise TaskError(f"task {task.task_id} names no page: a task for a browser needs the parameter 'url'")
        session.open(url)

    def act(self, session: Session, action: Action, screen: tuple[int, int]) -> None:
        # Not `screen`: touch counts CSS pixels, a screenshot has pixel_ratio times as many.
        viewport = (self._options.width, self._options.height)
        match action.kind:
            case "tap":
                session.perform(gesture.tap(gesture.pixel(action.point, viewport)))
            case "swipe":
                start, end = gesture.pixel(action.point, viewport), gesture.pixel(action.end, viewport)
                session.perform(gesture.swipe(start, end, self._options.swipe_ms))
            case "type":
                text = gesture.typable(action.text)
                if text:
                    session.perform(gesture.keys(text))
            case "press" if action.key == "enter":
                session.perform(gesture.keys(gesture.ENTER))
            case _:
                pass

    def ui_tree(self, session: Session, screen: tuple[int, int]) -> str | None:
        return None

    def kill(self) -> None:
        if self._profile is not None:
            kill_processes_with(_profile_argument(self._profile))

    def clear(self) -> None:
        profile = self._profile
        if profile is None:
            return
        marks = [_profile_argument(profile)]
        if self._port:
            marks.append(f"--port={self._port}")  # the chromedriver's
        # What ends in order removes its own temporary folders, and is still at it when the server has answered.
        if not self._wait(lambda: not any(map(processes_with, marks))):
            for mark in marks:
                kill_processes_with(mark)
        with contextlib.suppress(OSError):
            # A browser that was killed leaves the folder of its socket in the system's temporary folder.
            socket_folder = (profile / "SingletonSocket").readlink().parent
            if socket_folder.name.startswith((".org.chromium.Chromium.", "org.chromium.Chromium.")):
                shutil.rmtree(socket_folder, ignore_errors=True)
        self._wait(lambda: _removed(profile))
        with contextlib.suppress(OSError):
            self._folder.rmdir()
        self._profile, self._port = None, 0

    def _wait(self, condition: Callable[[], bool]) -> bool:
        """Whether the condition came true within a bound."""
        deadline = self._clock.monotonic() + _GONE_SECONDS
        while not condition():
            if self._clock.monotonic() > deadline:
                return False
            self._clock.sleep(0.02)
        return True


def _removed(folder: Path) -> bool:
    """Remove a folder; false if it is still there: a killed browser's helpers may write a little longer."""
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


def _profile_argument(profile: Path) -> str:
    return f"--user-data-dir={profile}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
