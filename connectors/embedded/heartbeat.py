"""Keeps the sessions of a bus's group members alive, in a thread of its own. Started by ``bus``.

A consumer that handles a batch for long must not lose its partitions; one whose loop hangs must. So the thread beats only
for members that have polled lately.
"""

from __future__ import annotations

import threading
from pathlib import Path

import structlog

from distrl.connectors.embedded.catalogue import Catalogue
from distrl.connectors.embedded.database import Synchronous
from distrl.connectors.embedded.uptime import uptime_ms
from distrl.core.contracts.clock import Clock
from distrl.core.errors import DistrlError

log = structlog.get_logger(__name__)


class Heartbeat:
    """Beats for the members that are registered and polled within ``poll_limit_s``; the first one starts the thread."""

    def __init__(
        self, folder: Path, *, synchronous: Synchronous, session_s: float, poll_limit_s: float, clock: Clock
    ) -> None:
        self._folder = folder
        self._synchronous: Synchronous = synchronous
        self._interval_s = session_s / 4
        self._poll_limit_s = poll_limit_s
        self._clock = clock
        self._lock = threading.Lock()
        self._polled: dict[str, float] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def touch(self, incarnation: str) -> None:
        """This member has polled just now. Registers it."""
        with self._lock:
            self._polled[incarnation] = self._clock.monotonic()
            if self._thread is None and not self._stop.is_set():
                self._thread = threading.Thread(target=self._run, name="distrl-heartbeat", daemon=True)
                self._thread.start()

    def forget(self, incarnation: str) -> None:
        """This member has left or was replaced."""
        with self._lock:
            self._polled.pop(incarnation, None)

    def _run(self) -> None:
        catalogue: Catalogue | None = None
        try:
            while not self._clock.wait(self._stop, self._interval_s):
                try:
                    if catalogue is None:
                        catalogue = Catalogue(self._folder, synchronous=self._synchronous, wait_s=self._interval_s)
                    self._beat(catalogue)
                except DistrlError as error:
                    # The next beat may get through; if none does, the session ends and the consumer joins again.
                    log.warning("a heartbeat failed", error=str(error))
        finally:
            if catalogue is not None:
                catalogue.close()

    def _beat(self, catalogue: Catalogue) -> None:
        limit = self._clock.monotonic() - self._poll_limit_s
        with self._lock:
            alive = [incarnation for incarnation, polled in self._polled.items() if polled >= limit]
        if alive:
            now = uptime_ms(self._clock)
            with catalogue.database.transaction():
                catalogue.database.execute_many(
                    "UPDATE members SET heartbeat_ms = ? WHERE incarnation = ?", [(now, name) for name in alive]
                )
        # Members are who writes to the catalogue, commits above all; nobody else moves its write-ahead log into its file.
        catalogue.database.checkpoint_if_large()

    def close(self) -> None:
        """Stop the thread. Idempotent."""
        self._stop.set()
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
