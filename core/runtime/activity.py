"""What a node spends its time on, and its counters: the numbers behind ``busy_share`` and ``wait_share.*``.

One ``Activity`` a node. The role's loop marks spans; the heartbeat thread takes the interval's numbers.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from distrl.core.contracts.clock import Clock
from distrl.core.contracts.metric import BUSY_SHARE, QUEUE_AGE_MS, WAIT_SHARE, WAITS


class Activity:
    """Accounts time to ``busy`` or to one cause of waiting. Safe for use by several threads; spans come from one."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._state = ""
        self._since = clock.monotonic()
        self._interval_start = self._since
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._counts: Counter[str] = Counter()
        self._totals: Counter[str] = Counter()
        self._gauges: dict[str, float] = {}
        self._queue_age_ms = 0.0

    @property
    def waiting_for(self) -> str:
        """The cause that the role waits for now; empty when it does not wait."""
        with self._lock:
            return self._state if self._state in WAITS else ""

    def enter(self, state: str) -> str:
        """Account time to ``state`` (``busy``, a cause of ``WAITS``, or empty) from now on; return the former one."""
        if state not in (*WAITS, "busy", ""):
            raise ValueError(f"unknown activity {state!r}")
        with self._lock:
            former = self._state
            self._account()
            self._state = state
            return former

    @contextmanager
    def span(self, state: str) -> Iterator[None]:
        """Account the time of a block to ``state``, then return to the former one."""
        former = self.enter(state)
        try:
            yield
        finally:
            self.enter(former)

    def count(self, name: str, by: int = 1) -> None:
        """Add to a counter of the interval and of the node's life."""
        with self._lock:
            self._counts[name] += by
            self._totals[name] += by

    def gauge(self, name: str, value: float) -> None:
        """Set a number that stands until it is set again."""
        with self._lock:
            self._gauges[name] = value

    def queue_age(self, milliseconds: float) -> None:
        """Note how old a record was when it was handled; the interval's oldest is kept."""
        with self._lock:
            self._queue_age_ms = max(self._queue_age_ms, milliseconds)

    def totals(self) -> Mapping[str, int]:
        """The counters since the node started."""
        with self._lock:
            return dict(self._totals)

    def take(self) -> tuple[int, dict[str, float]]:
        """The interval's length in milliseconds and its numbers; a new interval begins."""
        with self._lock:
            self._account()
            now = self._since
            interval = max(now - self._interval_start, 1e-9)
            values: dict[str, float] = {BUSY_SHARE: min(self._seconds["busy"] / interval, 1.0)}
            for cause in WAITS:
                if self._seconds[cause]:
                    values[WAIT_SHARE + cause] = min(self._seconds[cause] / interval, 1.0)
            values.update({name: float(count) for name, count in self._counts.items()})
            values.update(self._gauges)
            values[QUEUE_AGE_MS] = self._queue_age_ms
            self._interval_start = now
            self._seconds.clear()
            self._counts.clear()
            self._queue_age_ms = 0.0
            return round(interval * 1000), values

    def _account(self) -> None:
        now = self._clock.monotonic()
        if self._state:
            self._seconds[self._state] += now - self._since
        self._since = now
