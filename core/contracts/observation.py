"""What an agent sees. Made by devices, read by policies; becomes an ``ObservationRecord`` on the log."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Screenshot:
    """Pixels of a screen."""

    width: int
    """Pixels."""
    height: int
    """Pixels."""
    data: bytes
    """A PNG file, or rows of RGB bytes (shape [height, width, 3]) when ``media_type`` is ``image/x-rgb``."""
    media_type: str = "image/png"


@dataclass(frozen=True, slots=True)
class Observation:
    """One look at a device."""

    time_ms: int
    screenshot: Screenshot | None
    ui_tree: str | None = None
    """JSON (``core.contracts.task.UiNode``), where the device has one."""
    goal: str = ""
    """The goal as the device itself states it, where it does (a benchmark that words the goal when the episode starts,
    as MiniWoB++ does): set on what ``reset`` returns, it takes the place of the task's. Else empty."""
