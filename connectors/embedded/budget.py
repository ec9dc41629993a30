"""The bound on what a producer has in flight: so many records and so many bytes, then ``send`` waits. Used by ``producer``."""

from __future__ import annotations

import threading

from distrl.core.contracts.clock import Clock
from distrl.core.errors import BusBackpressureError


class Budget:
    """Counts records and bytes in flight. Safe for use by several threads.

    A record larger than the whole bound passes when nothing else is in flight.
    """

    def __init__(self, *, records: int, size: int, clock: Clock) -> None:
        self._max_records = records
        self._max_size = size
        self._clock = clock
        self._changed = threading.Condition()
        self.records = 0
        self.size = 0
        self._unsettled = 0

    def acquire(self, size: int, timeout_s: float) -> None:
        """Wait for room for one record of ``size`` bytes; raises ``BusBackpressureError`` after ``timeout_s`` seconds."""
        deadline = self._clock.monotonic() + timeout_s
        with self._changed:
            while self.records and (self.records >= self._max_records or self.size + size > self._max_size):
                remaining = deadline - self._clock.monotonic()
                if remaining <= 0:
                    raise BusBackpressureError(
                        f"{self.records} records ({self.size} bytes) are in flight and none was acknowledged within "
                        f"{timeout_s:g} s: the log is slower than its writers, or stalled"
                    )
                self._changed.wait(remaining)
            self.records += 1
            self.size += size
            self._unsettled += 1

    def in_flight(self) -> tuple[int, int]:
        """Records and bytes that are neither acknowledged nor failed."""
        with self._changed:
            return self.records, self.size

    def release(self, records: int, size: int) -> None:
        """So much has been acknowledged or has failed: there is room again."""
        with self._changed:
            self.records -= records
            self.size -= size
            self._changed.notify_all()

    def settle(self, records: int) -> None:
        """So many futures have been resolved. After ``release``, so that a future's callback may send."""
        with self._changed:
            self._unsettled -= records
            self._changed.notify_all()

    def drained(self, timeout_s: float) -> bool:
        """Wait until every future is resolved; whether that came about within ``timeout_s`` seconds."""
        deadline = self._clock.monotonic() + timeout_s
        with self._changed:
            while self._unsettled:
                remaining = deadline - self._clock.monotonic()
                if remaining <= 0:
                    return False
                self._changed.wait(remaining)
            return True
