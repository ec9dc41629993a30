"""The machine's own time, by which processes that share a log tell whether a member's session has run out.

The wall clock can be set, by hours and in either direction, and would expel everybody. All processes of one machine share its
monotonic clock; a stamp of before its last start lies in the future or is long past, so its session has run out either way.
"""

from __future__ import annotations

from distrl.core.contracts.clock import Clock


def uptime_ms(clock: Clock) -> int:
    """Milliseconds of a clock that nobody can set; only differences mean anything, on one machine."""
    return round(clock.monotonic() * 1000)
