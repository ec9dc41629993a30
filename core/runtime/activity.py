"""What a node spends its time on, its counters, and whom it misses: the numbers on the topic ``metrics`` and at ``/metrics``.

One ``Activity`` a node. The role's loop marks spans and counts; the heartbeat thread takes the interval's numbers, the
endpoint those since the start.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from distrl.core.contracts.clock import Clock
from distrl.core.contracts.metric import (
    BUCKETS_S,
    BUSY_SHARE,
    CHECKPOINT_AGE,
    HANDLER_SECONDS,
    IN_FLIGHT_BYTES,
    IN_FLIGHT_RECORDS,
    QUEUE_AGE_MS,
    WAIT_SHARE,
    WAITS,
)
from distrl.core.runtime.queue_age import QueueAges
from distrl.core.runtime.watchdog import Missing

Labelled = tuple[str, str]
"""A number's name and the value of its label; empty without one."""
InFlight = Callable[[], tuple[int, int]]


@dataclass(slots=True)
class Histogram:
    """Durations in seconds: how many fell into each bucket of ``BUCKETS_S`` and beyond, and their sum."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))
    sum: float = 0.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The numbers of a node since it started."""

    seconds: Mapping[str, float]
    """Spent in ``busy`` and in each cause of waiting."""
    counts: Mapping[Labelled, int]
    gauges: Mapping[str, float]
    histograms: Mapping[Labelled, Histogram]
    queue_ages: Mapping[str, float]
    """Seconds, by topic."""
    waiting: tuple[str, float]
    """What the node waits for and for how many seconds it has; the cause is empty when it works."""
    missing: tuple[Missing, ...]


class Activity:
    """Accounts time to ``busy`` or to one cause of waiting. Safe for use by several threads; spans come from one."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._loop_thread = threading.get_ident()
        self._state = ""
        self._since = clock.monotonic()
        self._interval_start = self._round = self._since
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._interval_seconds: defaultdict[str, float] = defaultdict(float)
        self._counts: defaultdict[str, int] = defaultdict(int)
        self._totals: defaultdict[Labelled, int] = defaultdict(int)
        self._gauges: dict[str, float] = {}
        self._histograms: defaultdict[Labelled, Histogram] = defaultdict(Histogram)
        self._in_flight: list[InFlight] = []
        self._checkpoint: float | None = None
        self._waiting = ("", self._since)
        self._missing: dict[str, Missing] = {}
        self.queues = QueueAges(clock)
        self.partitions: int | None = None
        """Partitions that the role's consumer has; ``None`` for a role that shares no partitions."""

    # --- time -------------------------------------------------------------------------------------

    @property
    def waiting_for(self) -> str:
        """The cause that the role waits for now; empty when it does not wait."""
        with self._lock:
            return self._state if self._state in WAITS else ""

    def enter(self, state: str) -> str:
        """Account time to ``state`` (``busy``, a cause of ``WAITS``, or empty) from now on; return the former one.

        From the loop's thread it also says that the loop makes progress.
        """
        if state not in (*WAITS, "busy", ""):
            raise ValueError(f"unknown activity {state!r}")
        with self._lock:
            former = self._state
            self._account()
            self._state = state
            if state and state != self._waiting[0]:
                self._waiting = (state if state in WAITS else "", self._since)
            if threading.get_ident() == self._loop_thread:
                self._round = self._since
            return former

    @contextmanager
    def span(self, state: str) -> Iterator[None]:
        """Account the time of a block to ``state``, then return to the former one."""
        former = self.enter(state)
        try:
            yield
        finally:
            self.enter(former)

    def came_round(self) -> None:
        """The role's loop makes progress. Ignored from any other thread."""
        with self._lock:
            if threading.get_ident() == self._loop_thread:
                self._round = self._clock.monotonic()

    @property
    def loop_age_s(self) -> float:
        """Seconds since the loop's last progress."""
        with self._lock:
            return self._clock.monotonic() - self._round

    @property
    def loop_thread(self) -> int:
        """Ident of the thread that the role's loop runs in."""
        return self._loop_thread

    @contextmanager
    def timed(self, handler: str) -> Iterator[None]:
        """Note how long a block takes that succeeds. ``handler``: one of ``HANDLERS``."""
        started = self._clock.monotonic()
        yield
        self.took(handler, self._clock.monotonic() - started)

    def took(self, handler: str, seconds: float) -> None:
        """The same for what was timed elsewhere."""
        self.observe(HANDLER_SECONDS, seconds, handler)

    # --- numbers ----------------------------------------------------------------------------------

    def count(self, name: str, by: int = 1, label: str = "") -> None:
        """Add to a counter of the interval and of the node's life."""
        with self._lock:
            self._counts[name] += by
            self._totals[name, label] += by

    def gauge(self, name: str, value: float) -> None:
        """Set a number that stands until it is set again."""
        with self._lock:
            self._gauges[name] = value

    def observe(self, name: str, seconds: float, label: str = "") -> None:
        """Add a duration to a histogram."""
        with self._lock:
            histogram = self._histograms[name, label]
            histogram.counts[bisect_left(BUCKETS_S, seconds)] += 1
            histogram.sum += seconds

    def checkpointed(self) -> None:
        """A checkpoint was kept just now."""
        with self._lock:
            self._checkpoint = self._clock.monotonic()

    def follow(self, in_flight: InFlight) -> None:
        """Count what this producer has in flight: records and bytes."""
        with self._lock:
            self._in_flight.append(in_flight)

    def totals(self) -> Mapping[str, int]:
        """The counters since the node started, over all labels."""
        with self._lock:
            totals: defaultdict[str, int] = defaultdict(int)
            for (name, _), count in self._totals.items():
                totals[name] += count
            return dict(totals)

    # --- whom it misses ---------------------------------------------------------------------------

    def miss(self, owner: str, missing: Missing | None) -> None:
        """``owner``, a part of the node, misses somebody, or nobody any more."""
        with self._lock:
            if missing is None:
                self._missing.pop(owner, None)
            else:
                self._missing[owner] = missing

    @property
    def missing(self) -> tuple[Missing, ...]:
        """Who is missing now."""
        with self._lock:
            return tuple(dict.fromkeys(self._missing.values()))

    # --- telling ----------------------------------------------------------------------------------

    def take(self) -> tuple[int, dict[str, float]]:
        """The interval's length in milliseconds and its numbers; a new interval begins."""
        ages = self.queues.take()
        flying = self._flying()
        with self._lock:
            self._account()
            now = self._since
            interval = max(now - self._interval_start, 1e-9)
            seconds = self._interval_seconds
            values: dict[str, float] = {BUSY_SHARE: min(seconds["busy"] / interval, 1.0)}
            for cause in WAITS:
                if seconds[cause]:
                    values[WAIT_SHARE + cause] = min(seconds[cause] / interval, 1.0)
            values.update({name: float(count) for name, count in self._counts.items()})
            values.update(self._numbers(flying))
            values[QUEUE_AGE_MS] = round(max(ages.values(), default=0.0) * 1000)
            self._interval_start = now
            seconds.clear()
            self._counts.clear()
            return round(interval * 1000), values

    def snapshot(self) -> Snapshot:
        """All numbers since the start, for ``/metrics``; begins no interval."""
        ages = self.queues.ages()
        flying = self._flying()
        with self._lock:
            self._account()
            cause, since = self._waiting
            return Snapshot(
                seconds=dict(self._seconds),
                counts=dict(self._totals),
                gauges=self._numbers(flying),
                histograms={
                    place: Histogram(list(histogram.counts), histogram.sum)
                    for place, histogram in self._histograms.items()
                },
                queue_ages=ages,
                waiting=(cause, self._since - since if cause else 0.0),
                missing=tuple(dict.fromkeys(self._missing.values())),
            )

    def _numbers(self, flying: tuple[int, int]) -> dict[str, float]:
        numbers = {**self._gauges, IN_FLIGHT_RECORDS: float(flying[0]), IN_FLIGHT_BYTES: float(flying[1])}
        if self._checkpoint is not None:
            numbers[CHECKPOINT_AGE] = self._since - self._checkpoint
        return numbers

    def _flying(self) -> tuple[int, int]:
        with self._lock:
            producers = list(self._in_flight)
        counts = [count() for count in producers]  # they have locks of their own
        return sum(records for records, _ in counts), sum(size for _, size in counts)

    def _account(self) -> None:
        now = self._clock.monotonic()
        if self._state:
            self._seconds[self._state] += now - self._since
            self._interval_seconds[self._state] += now - self._since
        self._since = now
