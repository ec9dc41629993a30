"""Whether a node lives and takes part: what ``/health/live`` and ``/health/ready`` answer and its signs of life carry.

A thread of its own asks a store that has not been used for a while whether it still answers, and warns of what the role's loop, if
it hangs, no longer can.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

import structlog

from distrl.core.contracts.clock import Clock
from distrl.core.errors import DistrlError
from distrl.core.runtime.activity import Activity
from distrl.core.runtime.endpoint import Answer, Route, json_answer
from distrl.core.runtime.view import NodeView
from distrl.core.runtime.watchdog import Missing

log = structlog.get_logger(__name__)
TICK_S = 1.0
PROBE_S = 10.0
"""A store that nobody has asked for this long is pinged."""
ANSWERED_LATELY_S = 30.0
"""A store counts as there that has answered within this time."""
WARN_S = 60.0
"""The same warning is repeated this often."""
STACK_FRAMES = 12


class Check(NamedTuple):
    """One thing that a node needs."""

    ok: bool
    detail: str


class Health:
    """One node's. Told by the heartbeat and the store, asked from any thread."""

    def __init__(
        self,
        clock: Clock,
        activity: Activity,
        view: NodeView,
        *,
        hang_s: float,
        queue_age_s: float,
        heartbeat_s: float,
    ) -> None:
        """``hang_s``: after so long without coming round, the loop hangs. ``queue_age_s``: a queue older than this is warned of."""
        self._clock = clock
        self._activity = activity
        self._view = view
        self._hang_s = hang_s
        self.queue_age_s = queue_age_s
        self._log_lately_s = max(5 * heartbeat_s, 10.0)
        self._log_answered: float | None = None
        self._store_answered: float | None = None
        self._store_error = ""
        self._begun = clock.monotonic()
        self._warned: dict[str, float] = {}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="health", daemon=True)
        self._ping_store: Callable[[], None] = lambda: None

    # --- told -------------------------------------------------------------------------------------

    def log_answered(self) -> None:
        """The log has acknowledged a sign of life."""
        self._log_answered = self._clock.monotonic()

    def store_answered(self) -> None:
        """The store has done what was asked, or said that it is not there: it answers."""
        self._store_answered = self._clock.monotonic()
        self._store_error = ""
        self._activity.miss("store", None)

    def store_failed(self, error: DistrlError) -> None:
        """The store did not answer."""
        self._store_error = error.message
        self._activity.miss("store", Missing("store", f"the store does not answer: {error.message}"))

    # --- asked ------------------------------------------------------------------------------------

    @property
    def log_age_s(self) -> float:
        """Seconds since the log last acknowledged a sign of life, or since the start."""
        return self._clock.monotonic() - (self._begun if self._log_answered is None else self._log_answered)

    @property
    def store_age_s(self) -> float:
        """Seconds since the store last answered, or since the start."""
        return self._clock.monotonic() - (self._begun if self._store_answered is None else self._store_answered)

    def live(self) -> Check:
        """Whether the role's loop makes progress. While it waits it comes round too, and says what for."""
        age = self._activity.loop_age_s
        waits = self._activity.waiting_for
        if age <= self._hang_s:
            return Check(True, f"waits for {waits}" if waits else self._view.state)
        doing = f"while it waits for {waits}" if waits else f"in its work ({self._view.state})"
        return Check(False, f"the loop has not come round for {age:.0f} s, {doing}: {self._where()}")

    def checks(self) -> dict[str, Check]:
        """What the node needs to take part in the work, each with whether it is there."""
        view, partitions = self._view, self._activity.partitions
        log_there = self._log_answered is not None and self.log_age_s <= self._log_lately_s
        store_there = self._store_answered is not None and self.store_age_s <= ANSWERED_LATELY_S
        checks = {
            "live": self.live(),
            "state": Check(view.state == "running", view.state),
            "log": Check(log_there, f"acknowledged {self.log_age_s:.1f} s ago" if log_there else self._log_silence()),
            "store": Check(
                store_there and not self._store_error,
                self._store_error
                or f"{'answered' if store_there else 'no answer for'} {self.store_age_s:.1f} s"
                + (" ago" if store_there else ""),
            ),
            "plugin": Check(view.built, "built" if view.built else "not built yet"),
        }
        if partitions is not None:
            few = "no partition is assigned: the group is being shared out, or has more members than partitions"
            checks["assignment"] = Check(partitions > 0, f"{partitions} partitions" if partitions else few)
        if view.needs_weights:
            have = f"version {view.version} of epoch {view.epoch}"
            checks["weights"] = Check(view.has_weights, have if view.has_weights else "no weights have come")
        return checks

    @property
    def ready(self) -> bool:
        """Whether the node takes part in the work."""
        return all(check.ok for check in self.checks().values())

    @property
    def missing(self) -> tuple[Missing, ...]:
        """Who is missing: what the role's parts say, and a log that is silent, which nobody else may be able to tell."""
        missing = self._activity.missing
        if self.log_age_s <= self._log_lately_s or any(item.side == "log" for item in missing):
            return missing
        return (*missing, Missing("log", self._log_silence()))

    def queues_too_old(self) -> dict[str, float]:
        """Topics with records that have waited too long, with their ages in seconds."""
        return {topic: age for topic, age in self._activity.queues.ages().items() if age > self.queue_age_s}

    # --- watching ---------------------------------------------------------------------------------

    def start(self, ping_store: Callable[[], None]) -> None:
        """Begin to watch. ``ping_store`` raises when the store does not answer."""
        self._ping_store = ping_store
        self._thread.start()

    def close(self) -> None:
        """Stop watching. Idempotent; does not wait for a store that does not answer."""
        self._closed.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=TICK_S)

    def _run(self) -> None:
        probed = self._clock.monotonic()
        while not self._clock.wait(self._closed, TICK_S):
            now = self._clock.monotonic()
            if min(self.store_age_s, now - probed) >= PROBE_S or (self._store_error and now - probed >= TICK_S):
                probed = now
                try:
                    self._ping_store()
                except DistrlError as error:
                    self._warn("store", "the store does not answer", error=error.message)
            self._watch()

    def _watch(self) -> None:
        live = self.live()
        if not live.ok:
            self._warn("loop", "the role's loop hangs", detail=live.detail)
        if self.log_age_s > self._log_lately_s:
            self._warn("log", "the log does not acknowledge signs of life", seconds=round(self.log_age_s))
        for topic, age in self.queues_too_old().items():
            self._warn(f"queue {topic}", "a queue is too old", topic=topic, seconds=round(age), bound=self.queue_age_s)

    def _warn(self, key: str, event: str, **facts: Any) -> None:
        now = self._clock.monotonic()
        last = self._warned.get(key)
        if last is None or now - last >= WARN_S:
            self._warned[key] = now
            log.warning(event, **facts)

    def _log_silence(self) -> str:
        return f"the log has not acknowledged a sign of life for {self.log_age_s:.0f} s"

    def _where(self) -> str:
        """The innermost calls of the loop's thread."""
        frame = sys._current_frames().get(self._activity.loop_thread)
        if frame is None:
            return "its thread has ended"
        calls = traceback.extract_stack(frame)[-STACK_FRAMES:]
        return " < ".join(f"{call.name} ({call.filename.rpartition('/')[2]}:{call.lineno})" for call in reversed(calls))


def live_route(health: Health) -> Route:
    """``/health/live``: 200 while the loop makes progress, 503 and where it hangs otherwise."""

    def answer(_accept: str) -> Answer:
        check = health.live()
        return json_answer({"live": check.ok, "detail": check.detail}, ok=check.ok)

    return answer


def ready_route(health: Health) -> Route:
    """``/health/ready``: 200 while the node takes part in the work, 503 and what it lacks otherwise."""

    def answer(_accept: str) -> Answer:
        checks = health.checks()
        ready = all(check.ok for check in checks.values())
        missing = [{"side": item.side, "words": item.words} for item in health.missing]
        listed = {name: {"ok": check.ok, "detail": check.detail} for name, check in checks.items()}
        return json_answer({"ready": ready, "checks": listed, "missing": missing}, ok=ready)

    return answer
