"""What ``AppiumDevice`` asks of a platform. Implemented by ``chromium`` and ``android``."""

from __future__ import annotations

from typing import Protocol

from distrl.connectors.appium.session import Session
from distrl.core.contracts.action import Action
from distrl.core.contracts.task import Task


class Platform(Protocol):
    """One device of a platform. All but ``kill`` and ``clear`` raise ``DeviceError``; ``screen`` is [width, height] of a screenshot in pixels."""

    def open(self, server: str, deadline: float) -> Session:
        """A new session, ready for a task. If this raises, ``clear`` takes away what was begun."""

    def start(self, session: Session, task: Task) -> None:
        """Bring the device to the start of a task that no benchmark sets up."""

    def act(self, session: Session, action: Action, screen: tuple[int, int]) -> None:
        """Carry out a tap, a swipe, typing or a key; ``wait``, ``done`` and ``fail`` never come here."""

    def ui_tree(self, session: Session, screen: tuple[int, int]) -> str | None:
        """The UI tree as JSON (``core.contracts.task.UiNode``); ``None`` where the platform has none."""

    def kill(self) -> None:
        """End at once what a session that was given up runs on this machine. Waits for nothing, never raises."""

    def clear(self) -> None:
        """The session is ended on the server, or never will be: leave no process and no folder of it. Idempotent, never raises."""
