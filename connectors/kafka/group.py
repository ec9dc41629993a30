"""A group member's polls, with its rebalances run to their end behind them. Used by ``consumer``.

kafka-python joins inside ``poll``: a join that outlasts one poll is begun again or forgotten by the next, no sign of life is given
until a poll ends it, and meanwhile nothing is read, not even what a cooperative rebalance leaves where it is. Here a join
is a task of the network thread, and polls read on. Like ``backdoor``, this reaches behind kafka-python's public surface.
"""

from __future__ import annotations

from typing import Any

from kafka import errors
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.util import Timer

from distrl.core.contracts.bus import Assignment

LOOK_MS = 20
"""How often a poll looks for records while a join goes on."""


def assignor(assignment: Assignment) -> Any:
    """kafka-python's object that shares partitions in this way."""
    return RangePartitionAssignor() if assignment == "together" else CooperativeStickyAssignor()


class GroupPoll:
    """``KafkaConsumer.poll`` for a member whose partitions ``shares`` gives out. Called from one thread at a time."""

    def __init__(self, consumer: Any, shares: Any) -> None:
        self._consumer = consumer
        self._coordinator = consumer._coordinator
        self._shares = shares
        self._cooperative = isinstance(shares, CooperativeStickyAssignor)
        self._joining: Any = None
        """The future of the join that is under way."""
        self._coordinator.poll = self._settled  # what kafka-python's poll calls, and may find that a join is due

    def __call__(self, timeout_ms: float, max_records: int) -> dict[Any, list[Any]]:
        timer = Timer(timeout_ms)
        while True:
            records: dict[Any, list[Any]] = {}
            if self._settled():
                records = self._consumer._poll_once(timer, max_records)
            else:
                if self._cooperative:
                    records = self._consumer._net.run(self._drain, max_records)
                if not records:
                    self._wait(timer)
            if records or timer.expired:
                return records

    @property
    def joining(self) -> bool:
        """Whether a join is under way."""
        return self._joining is not None

    def forget(self) -> None:
        """The member was expelled: it must not tell its group that it owns what others have by now."""
        if self._cooperative:
            self._shares.member_assignment = None

    def _settled(self, timeout_ms: float | None = None) -> bool:
        """Whether this is a member and no join is under way; begins one that is due. Raises what ended one."""
        self._coordinator.poll_heartbeat()
        if self._joining is not None and self._joining.is_done:
            joining, self._joining = self._joining, None
            if joining.exception is not None:
                raise joining.exception
        if self._joining is None and (self._coordinator.rejoining or self._coordinator.need_rejoin()):
            # By name, because some of its reasons are gone after a first try that failed.
            self._coordinator.request_rejoin()
            self._joining = self._consumer._manager.call_soon(self._coordinator.ensure_active_group_async)
        return self._joining is None

    async def _drain(self, max_records: int) -> dict[Any, list[Any]]:
        """Records of what this member has throughout. Runs on the network thread, which changes what it has."""
        if not self._coordinator.rejoining:
            return {}  # the new assignment is about to be told of
        fetcher = self._consumer._fetcher
        records, partial = fetcher.fetched_records(max_records)
        if not partial:
            await fetcher._send_fetches_async()
        found: dict[Any, list[Any]] = records
        return found

    def _wait(self, timer: Any) -> None:
        left = LOOK_MS if timer.timeout_ms is None else min(timer.timeout_ms, LOOK_MS)
        try:
            self._consumer._net.run(self._consumer._manager.wait_for, self._joining, left)
        except errors.KafkaTimeoutError:
            return
        except Exception:
            if not self._joining.is_done:  # else it is there for ``_settled`` to raise
                raise
