"""Time, injected. Every part that reads a clock or sleeps takes a ``Clock``, so tests can steer it."""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """Wall time for records, monotonic time for durations, and sleeping that a stop can end."""

    def time_ms(self) -> int:
        """Wall-clock time in milliseconds since the epoch (UTC)."""

    def monotonic(self) -> float:
        """Seconds of a clock that never goes back; only differences mean anything."""

    def sleep(self, seconds: float) -> None:
        """Block for ``seconds``."""

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Block until ``event`` is set or ``seconds`` passed; return whether it is set."""


class SystemClock:
    """The machine's own clocks."""

    def time_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def wait(self, event: threading.Event, seconds: float) -> bool:
        return event.wait(seconds)
