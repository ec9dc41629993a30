"""Every wait has an end: a role that waits says for what, and stops with an error after a bound."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from distrl.core.contracts.clock import Clock
from distrl.core.errors import StarvedError

log = structlog.get_logger(__name__)


class Watchdog:
    """Watches one role's waiting. ``fed`` on progress, ``hungry`` while there is none."""

    def __init__(self, clock: Clock, *, bound_s: float, warn_s: float | None = None) -> None:
        self._clock = clock
        self._bound = bound_s
        self._warn = min(bound_s / 4, 15.0) if warn_s is None else warn_s
        self._since: float | None = None
        self._warned = 0.0

    def fed(self) -> None:
        """There was progress."""
        self._since = None

    def hungry(self, describe: Callable[[], str]) -> None:
        """There is none; ``describe`` names the side that is missing. Warns now and then; raises ``StarvedError``
        when the bound is reached."""
        now = self._clock.monotonic()
        if self._since is None:
            self._since = self._warned = now
            return
        waited = now - self._since
        if waited >= self._bound:
            raise StarvedError(f"waited {waited:.0f} s in vain: {describe()}")
        if now - self._warned >= self._warn:
            self._warned = now
            log.warning("still waiting", seconds=round(waited), missing=describe())
