"""A store that counts and times what is asked of it, and tells the node's health whether it answers. Made by ``run_node``."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Protocol, cast

from distrl.core.contracts.clock import Clock
from distrl.core.contracts.metric import STORE_ERRORS, STORE_REQUESTS, STORE_RETRIES, STORE_SECONDS
from distrl.core.contracts.store import BlobStore
from distrl.core.errors import BlobExistsError, BlobNotFoundError, DistrlError, InvalidKeyError
from distrl.core.runtime.activity import Activity

CALLS = {
    "put": "put",
    "put_content": "put",
    "put_file": "put",
    "get": "get",
    "get_file": "get",
    "open": "get",
    "stat": "stat",
    "list": "list",
    "delete": "delete",
    "delete_older": "delete",
    "ping": "ping",
}
"""Which of the store's calls are requests, and of which kind (``OPERATIONS``)."""
ANSWERS = (BlobNotFoundError, BlobExistsError, InvalidKeyError)
"""Errors that are a working store's answers."""


class Listener(Protocol):
    """Who wants to know whether the store can be used: ``Health``."""

    def store_answered(self) -> None: ...

    def store_failed(self, error: DistrlError) -> None: ...


def metered(store: BlobStore, activity: Activity, listener: Listener, clock: Clock) -> BlobStore:
    """``store`` itself, as far as its users can tell."""
    return cast(BlobStore, _Metered(store, activity, listener, clock))


class _Metered:
    """Passes everything on, whatever the contract grows to; requests on their way are counted. Safe for use by several threads."""

    def __init__(self, store: BlobStore, activity: Activity, listener: Listener, clock: Clock) -> None:
        self._store = store
        self._activity = activity
        self._listener = listener
        self._clock = clock
        self._failed = threading.local()
        """A request that follows one of its kind that failed, on the same thread, is a retry."""

    def __getattr__(self, name: str) -> Any:
        target = getattr(self._store, name)
        operation = CALLS.get(name)
        if operation is None:
            return target
        return partial(self._listed if name == "list" else self._called, target, operation)

    def __enter__(self) -> _Metered:
        return self

    def __exit__(self, *exc: object) -> None:
        self._store.close()

    def _called(self, target: Callable[..., Any], operation: str, *arguments: Any, **named: Any) -> Any:
        activity = self._activity
        activity.count(STORE_REQUESTS, 1, operation)
        if getattr(self._failed, "operation", None) == operation:
            activity.count(STORE_RETRIES, 1, operation)
        self._failed.operation = None
        started = self._clock.monotonic()
        try:
            result = target(*arguments, **named)
        except DistrlError as error:
            if error.retriable:
                self._failed.operation = operation
            if not isinstance(error, ANSWERS):
                activity.count(STORE_ERRORS, 1, operation)
            if error.retriable or error.exit_code == 3:
                self._listener.store_failed(error)
            else:
                self._listener.store_answered()
            raise
        finally:
            activity.observe(STORE_SECONDS, self._clock.monotonic() - started, operation)
            activity.came_round()
        self._listener.store_answered()
        return result

    def _listed(self, target: Callable[..., Iterator[Any]], operation: str, *arguments: Any, **named: Any) -> Any:
        """A listing is asked for page by page while it is read: its first page stands for it."""
        items = target(*arguments, **named)
        end = object()
        first = self._called(next, operation, items, end)
        while first is not end:
            yield first
            first = next(items, end)
