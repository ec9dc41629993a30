"""The thread that a role's plugin lives in, so that the role's own thread can keep its consumer alive while the plugin works long.

A plugin is made there and called there, by one thread alone: what it holds may belong to its thread (a database connection, a
browser, torch's settings). Used by the evaluator's and the prioritizer's loop, through ``EventReader.attend``.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self, TypeVar

T = TypeVar("T")


class Worker:
    """One thread. Closing it waits for what it does."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    def call(self, work: Callable[[], T]) -> T:
        """Do it there and wait for it."""
        return self.submit(work).result()

    def submit(self, work: Callable[[], T]) -> Future[T]:
        return self._executor.submit(work)

    def close(self) -> None:
        self._executor.shutdown(wait=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
