"""Every wait has an end: a role that waits says for what and who is missing, and stops with an error after a bound."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import structlog

from distrl.core.contracts.clock import Clock
from distrl.core.errors import StarvedError

log = structlog.get_logger(__name__)
TELL_S = 3.0
"""A wait of this length is told: shorter ones are how an asynchronous run works."""
AGAIN_S = 1.0
"""How often who is missing is looked at again."""


class Missing(NamedTuple):
    """Who or what is missing while a role waits."""

    side: str
    """One of ``core.contracts.metric.SIDES``."""
    words: str
    """The same for people, with what to do."""


class Board(Protocol):
    """Where a watchdog says who is missing: ``Activity``."""

    def miss(self, owner: str, missing: Missing | None) -> None:
        """``owner`` misses somebody, or nobody any more."""


class Watchdog:
    """Watches one role's waiting. ``fed`` on progress, ``hungry`` while there is none."""

    def __init__(
        self,
        clock: Clock,
        *,
        bound_s: float,
        board: Board | None = None,
        owner: str = "loop",
        ends: bool = True,
        warn_s: float | None = None,
    ) -> None:
        """``ends``: whether a wait of ``bound_s`` is an error; for a role that may well have nothing to do it is not, and it
        only says so. ``owner``: tells this watchdog apart from others on the same board."""
        self._clock = clock
        self.bound_s = bound_s
        self._board = board
        self._owner = owner
        self._ends = ends
        self._warn = min(bound_s / 4, 15.0) if warn_s is None else warn_s
        self._since: float | None = None
        self._looked = 0.0
        self._warned = 0.0
        self._told = False

    @property
    def waited_s(self) -> float:
        """How long there has been no progress."""
        return 0.0 if self._since is None else self._clock.monotonic() - self._since

    def fed(self) -> None:
        """There was progress."""
        self._since = None
        self._say(None)

    def hungry(self, describe: Callable[[], Missing | None]) -> None:
        """There is none; ``describe`` says who is missing, ``None`` for nobody. Warns now and then; raises ``StarvedError``
        when the bound is reached, if the wait is one that ends."""
        now = self._clock.monotonic()
        if self._since is None:
            self._since = self._warned = self._looked = now
            return
        waited = now - self._since
        if waited < min(TELL_S, self.bound_s) or (now - self._looked < AGAIN_S and waited < self.bound_s):
            return
        self._looked = now
        missing = describe()
        self._say(missing)
        if missing is None:
            return
        if self._ends and waited >= self.bound_s:
            raise StarvedError(f"waited {waited:.0f} s in vain: {missing.words}")
        if now - self._warned >= self._warn:
            self._warned = now
            log.warning("still waiting", seconds=round(waited), missing=missing.words)

    def _say(self, missing: Missing | None) -> None:
        if self._board is not None and (missing is not None or self._told):
            self._told = missing is not None
            self._board.miss(self._owner, missing)
