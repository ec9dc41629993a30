"""A thread for each device, and the box where what the threads finish is picked up. Used by the episode collector.

The threads are daemons, unlike those of ``concurrent.futures``: a device that never returns from a
call must not keep the process from ending.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

import structlog

from distrl.core.contracts.clock import Clock

log = structlog.get_logger(__name__)
ItemT = TypeVar("ItemT")


class Inbox(Generic[ItemT]):
    """Items put by many threads and picked up by one."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._items: list[ItemT] = []
        self._arrived = threading.Event()

    def put(self, item: ItemT) -> None:
        with self._lock:
            self._items.append(item)
        self._arrived.set()

    def take(self, expected: int, *, wait_s: float, settle_s: float) -> list[ItemT]:
        """What has arrived: waits up to ``wait_s`` for a first item, then up to ``settle_s`` until ``expected`` are there."""
        if expected and not self._filled(1):
            self._clock.wait(self._arrived, wait_s)
        if settle_s > 0 and self._filled(1):
            deadline = self._clock.monotonic() + settle_s
            while not self._filled(expected) and (left := deadline - self._clock.monotonic()) > 0:
                self._clock.wait(self._arrived, left)
        with self._lock:
            items, self._items = self._items, []
            self._arrived.clear()
        return items

    def _filled(self, expected: int) -> bool:
        """Whether so many are there; if not, the event tells of the next one."""
        with self._lock:
            self._arrived.clear()
            return len(self._items) >= expected


class Worker:
    """Runs jobs one after the other in a thread of its own."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], object]) -> None:
        """Queue ``job``; what it raises is logged and otherwise ignored."""
        self._jobs.put(job)

    def call(self, job: Callable[[], object], clock: Clock, seconds: float) -> bool:
        """Queue ``job`` and wait for it; whether it ended in time (it still runs later if not). Raises what it raises."""
        done = threading.Event()
        failures: list[BaseException] = []

        def run() -> None:
            try:
                job()
            except BaseException as error:
                failures.append(error)
            finally:
                done.set()

        self.submit(run)
        in_time = clock.wait(done, seconds)
        if failures:
            raise failures[0]
        return in_time

    def stop(self) -> None:
        """End the thread after what is queued."""
        self._jobs.put(None)

    def join(self, seconds: float) -> bool:
        """Wait for the thread's end; whether it has ended."""
        self._thread.join(max(0.0, seconds))
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Exception as error:
                log.error("a device's job failed", thread=self._thread.name, error=repr(error), exc_info=True)
