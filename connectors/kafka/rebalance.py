"""Runs a consumer's callbacks where the contract promises them: inside ``poll``, in the caller's thread.

kafka-python tells of rebalances on its network thread, which must not block: heartbeats run there too. So the
blocking poll runs in a thread of its own, while the caller's waits for its end and does what the listener asks for; the
listener, a coroutine, leaves the network thread free meanwhile. What it asks for between two polls waits for the next.
"""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from kafka import AsyncConsumerRebalanceListener
from kafka.future import Future as KafkaFuture

from distrl.core.contracts.bus import TopicPartition

T = TypeVar("T")
Action = Callable[[], None]
Wake = Callable[[Action], None]


class Pump:
    """One thread for a consumer's blocking calls."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="kafka-poll")
        self._actions: queue.SimpleQueue[_Asked | None] = queue.SimpleQueue()

    def run(self, call: Callable[[], T]) -> T:
        """Run ``call`` in the other thread and, until it returns, the actions that are asked for in this one."""
        future = self._executor.submit(call)
        future.add_done_callback(lambda _: self._actions.put(None))
        failure: BaseException | None = None
        while True:
            try:
                asked = self._actions.get()
            except BaseException as error:
                failure = error  # a signal's; raised once the call has returned and nothing runs behind our back
                continue
            if asked is None:
                break
            failure = asked.perform() or failure
        if failure is not None:
            raise failure
        return future.result()

    def ask(self, action: Action, wake: Wake) -> Awaitable[bool]:
        """From the network thread: have ``action`` run by the caller of ``run``, now or when it calls again. Whether it was run
        and did not raise; what it raises, ``run`` does. ``wake`` runs something on the network thread from another one."""
        asked = _Asked(action, wake, KafkaFuture())
        self._actions.put(asked)
        waiting: Awaitable[bool] = asked.done
        return waiting

    def close(self) -> None:
        """What was asked for and not done is never done."""
        self._executor.shutdown(wait=True)
        with contextlib.suppress(queue.Empty):
            while True:
                if (asked := self._actions.get_nowait()) is not None:
                    asked.finish(done=False)


@dataclass(frozen=True, slots=True)
class _Asked:
    """An action for the caller of ``run``."""

    action: Action
    wake: Wake
    done: Any

    def perform(self) -> BaseException | None:
        """Run it; what it raised."""
        try:
            self.action()
        except BaseException as error:
            self.finish(done=False)
            return error
        self.finish(done=True)
        return None

    def finish(self, *, done: bool) -> None:
        self.wake(lambda: self.done.success(done))


Move = Callable[[Collection[TopicPartition]], Awaitable[None]]


class Listener(AsyncConsumerRebalanceListener):  # type: ignore[misc]  # kafka-python has no types
    """Hands kafka-python's notices on, with our partitions."""

    def __init__(self, assigned: Move, revoked: Move, lost: Move) -> None:
        self._assigned = assigned
        self._revoked = revoked
        self._lost = lost

    async def on_partitions_assigned(self, assigned: Collection[Any]) -> None:
        await self._assigned(ours(assigned))

    async def on_partitions_revoked(self, revoked: Collection[Any]) -> None:
        await self._revoked(ours(revoked))

    async def on_partitions_lost(self, lost: Collection[Any]) -> None:
        await self._lost(ours(lost))


def ours(partitions: Collection[Any]) -> list[TopicPartition]:
    """kafka-python's partitions as the contract's, sorted."""
    return sorted(TopicPartition(*partition) for partition in partitions)
