"""What ``AppiumDevice`` asks of a platform. Implemented by ``chromium`` and ``android``."""

from __future__ import annotations

from typing import Protocol

from distrl.connectors.appium.session import Session
from distrl.core.contracts.action import Action
from distrl.core.contracts.task import Task


class Platform(Protocol):
    """One device of a platform. All but ``release`` raise ``DeviceError``; ``screen`` is [width, height] of a screenshot in pixels."""

    def open(self, server: str, deadline: float) -> Session:
        """A new session, ready for a task. If this raises, ``release`` clears away what was begun."""

    def start(self, session: Session, task: Task) -> None:
        """Bring the device to the start of a task that no benchmark sets up."""

    def act(self, session: Session, action: Action, screen: tuple[int, int]) -> None:
        """Carry out a tap, a swipe, typing or a key; ``wait``, ``done`` and ``fail`` never come here."""

    def ui_tree(self, session: Session, screen: tuple[int, int]) -> str | None:
        """The UI tree as JSON (``core.contracts.task.UiNode``); ``None`` where the platform has none."""

    def release(self) -> None:
        """Leave no process and no folder of the last session behind. Idempotent, never raises."""
