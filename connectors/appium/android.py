"""Android phones and emulators, driven through Appium's UiAutomator2 driver. Made by ``AppiumDevice``."""

from __future__ import annotations

from typing import Any

from distrl.connectors.appium import gesture
from distrl.connectors.appium.hierarchy import read_hierarchy
from distrl.connectors.appium.option import AppiumOptions
from distrl.connectors.appium.session import Session
from distrl.core.contracts.action import Action, Key
from distrl.core.contracts.clock import Clock
from distrl.core.contracts.task import Task

KEYCODES: dict[Key, int] = {"back": 4, "home": 3, "enter": 66}
"""Of ``android.view.KeyEvent``."""


class AndroidPlatform:
    """Implements ``Platform``. A task may name an app in the parameters ``app_package`` and ``app_activity``.

    Such an app is ended and started anew at each reset; its data stays as it is. A task without an app starts on the
    home screen.
    """

    def __init__(self, options: AppiumOptions, clock: Clock, udid: str) -> None:
        """``udid``: the phone's serial number; empty for whichever is connected."""
        self._options = options
        self._clock = clock
        self._udid = udid

    def open(self, server: str, deadline: float) -> Session:
        return Session(server, self._capabilities(), self._clock, deadline=deadline)

    def _capabilities(self) -> dict[str, Any]:
        options = self._options
        milliseconds = round(options.step_seconds * 1000)
        return {
            "platformName": "Android",
            "appium:automationName": "UiAutomator2",
            "appium:newCommandTimeout": options.idle_seconds,
            "appium:adbExecTimeout": milliseconds,
            "appium:uiautomator2ServerReadTimeout": milliseconds,
            # The phone is the user's: Appium neither installs a settings app's animations nor wipes what is on it.
            "appium:noReset": True,
            "appium:disableWindowAnimation": True,
            **({"appium:udid": self._udid} if self._udid else {}),
            **options.capabilities,
        }

    def start(self, session: Session, task: Task) -> None:
        package = task.parameters.get("app_package", "")
        if not package:
            self._press(session, "home")
            return
        session.script("mobile: terminateApp", {"appId": package})
        activity = task.parameters.get("app_activity", "")
        if activity:
            session.script("mobile: startActivity", {"component": f"{package}/{activity}", "wait": True})
        else:
            session.script("mobile: activateApp", {"appId": package})

    def act(self, session: Session, action: Action, screen: tuple[int, int]) -> None:
        match action.kind:
            case "tap":
                session.perform(gesture.tap(gesture.pixel(action.point, screen)))
            case "swipe":
                start, end = gesture.pixel(action.point, screen), gesture.pixel(action.end, screen)
                session.perform(gesture.swipe(start, end, self._options.swipe_ms))
            case "type":
                text = gesture.typable(action.text)
                if text:
                    session.script("mobile: type", {"text": text})
            case "press":
                self._press(session, action.key)
            case _:
                pass

    @staticmethod
    def _press(session: Session, key: Key) -> None:
        session.script("mobile: pressKey", {"keycode": KEYCODES[key]})

    def ui_tree(self, session: Session, screen: tuple[int, int]) -> str | None:
        return read_hierarchy(session.source(), screen)

    def kill(self) -> None:
        """Nothing of a session runs on this machine."""

    def clear(self) -> None:
        """Nothing of a session lies on this machine."""
