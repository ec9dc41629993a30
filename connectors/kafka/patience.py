"""Calls of kafka-python that may block for long, made so that deadlines go on meanwhile. Used by ``producer`` and ``transaction``."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

T = TypeVar("T")


def patiently(call: Callable[[], T], tick: Callable[[], None], every_s: float) -> T:
    """Run ``call`` in a thread of its own, and ``tick`` in this one every ``every_s`` seconds until it has returned."""
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, name="kafka-patience", daemon=True).start()
    while not wait([outcome], every_s).done:
        tick()
    return outcome.result()
