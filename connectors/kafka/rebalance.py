"""Runs a consumer's callbacks where the contract promises them: inside ``poll``, in the caller's thread.

kafka-python tells of rebalances on its network thread, which must not block: heartbeats run there too. So the
blocking poll runs in a thread of its own, while the caller's waits for its end and does what the listener asks for; the
listener, a coroutine, leaves the network thread free meanwhile.
"""

from __future__ import annotations

import queue
from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from kafka import AsyncConsumerRebalanceListener
from kafka.future import Future as KafkaFuture

from distrl.core.contracts.bus import TopicPartition

T = TypeVar("T")
Action = Callable[[], None]


class Pump:
    """One thread for a consumer's blocking calls."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="kafka-poll")
        self._actions: queue.SimpleQueue[Action | None] = queue.SimpleQueue()
        self.failure: BaseException | None = None
        """What an action raised; kafka-python hides it behind an error of its own."""

    def run(self, call: Callable[[], T]) -> T:
        """Run ``call`` in the other thread and, until it returns, the actions that are asked for in this one."""
        self.failure = None
        future = self._executor.submit(call)
        future.add_done_callback(lambda _: self._actions.put(None))
        interrupt: BaseException | None = None
        while True:
            try:
                action = self._actions.get()
            except BaseException as error:
                interrupt = error  # a signal's; raised once the call has returned and nothing runs behind our back
                continue
            if action is None:
                break
            action()
        if interrupt is not None:
            raise interrupt
        if self.failure is not None:
            raise self.failure
        return future.result()

    def ask(self, action: Action, wake: Callable[[Action], None]) -> Awaitable[None]:
        """From the network thread: have ``action`` run by the caller of ``run``. ``wake`` runs something on the network
        thread from another one."""
        done = KafkaFuture()

        def perform() -> None:
            try:
                action()
            except BaseException as error:
                self.failure = error
                failed = RuntimeError("a rebalance callback failed")
                wake(lambda: done.failure(failed))
            else:
                wake(lambda: done.success(None))

        self._actions.put(perform)
        waiting: Awaitable[None] = done
        return waiting

    def close(self) -> None:
        self._executor.shutdown(wait=True)


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
