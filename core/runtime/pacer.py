"""The learner's half of pacing: how many episodes each living collector may start, and when to say so again.

All numbers come from the one ``StalenessPolicy`` that collectors ask too. The property test in ``tests/unit/test_pacing.py``
lets collectors join and die at will and shows that neither side waits for the other for ever.
"""

from __future__ import annotations

from distrl.core.contracts.clock import Clock
from distrl.core.contracts.role import Wanted
from distrl.core.contracts.staleness import StalenessPolicy

SETTLE_S = 1.0
"""After a change among the collectors, wait this long before announcing anew: several tend to come at once."""


class Pacer:
    """Counts what has come and decides on announcements. Used from the learner's thread."""

    def __init__(self, policy: StalenessPolicy, clock: Clock) -> None:
        self._policy = policy
        self._clock = clock
        self._fresh = 0
        self._announced_at = clock.monotonic()
        self._arrived_at = self._announced_at
        self._live = -1
        self._allowance = -1

    def arrived(self, policy_trajectories: int) -> None:
        """New trajectories of the policy were ingested."""
        self._fresh += policy_trajectories
        self._arrived_at = self._clock.monotonic()

    def consumed(self) -> None:
        """A version was made of one batch."""
        self._fresh = max(0, self._fresh - self._policy.batch)

    def allowance(self, wanted: Wanted, *, live: int, on_the_way: int, patient: bool = True) -> int:
        """Episodes that each of ``live`` collectors may start; -1 without bound.

        ``on_the_way``: trajectories on the log that are not ingested yet. ``patient`` trusts them to arrive; an
        announcement that is overdue does not.
        """
        if wanted.demonstrations:
            return 0
        if not patient:
            on_the_way = 0
        return self._policy.allowance(
            live_collectors=live,
            lacking=max(0, wanted.policy - on_the_way),
            backlog=on_the_way + self._fresh,
        )

    def announced(self, *, live: int, allowance: int) -> None:
        """The collectors were told."""
        self._announced_at = self._clock.monotonic()
        self._live = live
        self._allowance = allowance

    def overdue(self) -> bool:
        """Whether nothing has come and nothing was announced for so long that what is on its way counts as lost."""
        return self._clock.monotonic() - max(self._announced_at, self._arrived_at) >= self._policy.renew_s

    def must_renew(self, wanted: Wanted, *, live: int) -> bool:
        """Whether a learner that lacks ``wanted`` should announce again."""
        if wanted.demonstrations or not wanted.policy or not live:
            return False
        since = self._clock.monotonic() - self._announced_at
        settled = since >= min(SETTLE_S, self._policy.renew_s)
        return self.overdue() or (settled and (live != self._live or self._allowance == 0))
