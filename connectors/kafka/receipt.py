"""The future that a sender gets. A ``concurrent.futures.Future`` that costs little while nobody waits for it. Used by ``delivery``.

The standard one makes a condition, which is a lock and more, for every record. Most records are acknowledged a batch at a time
before anybody looks at their futures; only one that is waited for needs a condition.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from distrl.core.contracts.bus import RecordPosition

_PENDING, _FINISHED = "PENDING", "FINISHED"
"""The states of ``concurrent.futures`` that a receipt knows: it is never cancelled."""

_short = threading.Lock()
"""Held for a few steps only: decides whether a receipt is resolved first or gets a condition first."""


class Receipt(Future[RecordPosition]):
    """Resolved by ``resolve``, never cancelled: a sender cannot take back what may be written already."""

    def __init__(self) -> None:
        # What the base class makes, without its condition: that is the property below.
        self._state = _PENDING
        self._result = None
        self._exception = None
        self._waiters: list[Any] = []
        self._done_callbacks: list[Callable[[Future[RecordPosition]], object]] = []
        self._made: threading.Condition | None = None

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        with _short:
            if self._made is None:
                self._made = threading.Condition()
            return self._made

    def cancel(self) -> bool:
        return False

    def done(self) -> bool:
        return self._state == _FINISHED

    def result(self, timeout: float | None = None) -> RecordPosition:
        if self._state == _FINISHED and self._exception is None:
            position: RecordPosition = self._result  # type: ignore[assignment]  # there is one when it is finished
            return position
        return super().result(timeout)


def resolve(receipts: Sequence[Receipt], outcomes: Sequence[RecordPosition | BaseException]) -> None:
    """Give each its outcome, once, and run the callbacks of those that have some."""
    watched: list[tuple[Receipt, RecordPosition | BaseException]] = []
    with _short:
        for receipt, outcome in zip(receipts, outcomes, strict=True):
            if receipt._made is not None:
                watched.append((receipt, outcome))
            elif isinstance(outcome, RecordPosition):
                receipt._result = outcome
                receipt._state = _FINISHED
            else:
                receipt._exception = outcome
                receipt._state = _FINISHED
    for receipt, outcome in watched:
        if isinstance(outcome, RecordPosition):
            receipt.set_result(outcome)
        else:
            receipt.set_exception(outcome)
