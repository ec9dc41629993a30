"""Ages of what carries a wall-clock time, right over jumps of the wall clock. Used for queue ages and signs of life."""

from __future__ import annotations

from distrl.core.contracts.clock import Clock

JUMP_MS = 1_000
"""Wall and monotonic time that drift apart by more than this between two looks: the wall clock was set."""
JUMPS_KEPT = 8


class WallClock:
    """Tells how old a time is. Notices when the wall clock is set, against the monotonic one. Not safe for use by several threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset = self._now_offset()
        self._jumps: list[tuple[int, float]] = []
        """Of each jump: the time that the clock had come to, and by how many milliseconds it was set forward."""

    def age_s(self, time_ms: int) -> float:
        """Seconds since ``time_ms``, at least 0. A time that was taken before this machine's clock was set is corrected."""
        offset = self._now_offset()
        now = self._clock.time_ms()
        jump = offset - self._offset
        if abs(jump) > JUMP_MS:
            self._jumps = [*self._jumps, (round(now - jump), jump)][-JUMPS_KEPT:]
        self._offset = offset
        age = float(now - time_ms)
        for reached, jump in self._jumps:
            # After a step back the same times come again: only one that is still to come is surely of before.
            if time_ms <= reached and (jump > 0 or time_ms > now):
                age -= jump
        return max(age, 0.0) / 1000

    def _now_offset(self) -> float:
        return self._clock.time_ms() - self._clock.monotonic() * 1000
