"""The polls of a reader without a group, which cost next to nothing while nothing comes. Used by ``consumer``.

kafka-python changes threads at every poll, and asks the broker again whenever it has held an empty fetch for its time. A thousand
collectors that look for weights fifty times a second would do nothing else. Here a poll that may not wait is left out
while the broker holds the fetch, and a reader of one partition has it held for long. Like ``backdoor``, this reaches behind
kafka-python's public surface.
"""

from __future__ import annotations

from typing import Any

from distrl.connectors.kafka.backdoor import call_on_loop
from distrl.connectors.kafka.connection import FETCH_WAIT_MS
from distrl.core.contracts.clock import Clock

LONG_WAIT_MS = 10_000
"""Longest time the broker holds an empty fetch of a reader that only follows one partition. A record is answered at once all the same."""
FOLLOWS_S = 2.0
"""Who has asked for nothing else for this long only follows: a broker answers the requests of one connection in turn, so
whatever else is asked would wait behind the fetch."""


class QuietPoll:
    """``KafkaConsumer.poll`` for a reader of fixed partitions. Called from one thread at a time."""

    def __init__(self, consumer: Any, clock: Clock, *, partitions: int) -> None:
        self._consumer = consumer
        self._fetcher = consumer._fetcher
        self._clock = clock
        self._alone = partitions == 1
        """With several, one that was sought or resumed would wait for its turn until the fetch of the others ends."""
        self._follows_from = clock.monotonic() + FOLLOWS_S
        self._long = False
        """Whether the last fetch may be held for long."""

    def __call__(self, timeout_ms: int, max_records: int) -> dict[Any, list[Any]]:
        if self._alone:
            self._long = self._clock.monotonic() >= self._follows_from
            self._fetcher.config["fetch_max_wait_ms"] = LONG_WAIT_MS if self._long else FETCH_WAIT_MS
        found: dict[Any, list[Any]] = self._consumer.poll(timeout_ms=timeout_ms, max_records=max_records)
        return found

    def interrupt(self) -> None:
        """Something else will be asked of the brokers: it must not wait behind a fetch that is held for long."""
        self._follows_from = self._clock.monotonic() + FOLLOWS_S
        if self._long and self._fetcher.in_flight_fetches():
            self._long = False
            call_on_loop(self._consumer, self._hang_up)

    def held(self) -> bool:
        """Whether there is nothing to take, and every fetch that was sent is still with a broker: polling would bring nothing."""
        fetcher = self._fetcher
        if fetcher._completed_fetches or fetcher._next_partition_records or fetcher._next_in_line_exception_metadata:
            return False
        if fetcher._paused_completed_fetches or fetcher._paused_partition_records:  # perhaps resumed meanwhile
            return False
        fetches = fetcher._fetch_futures
        return bool(fetches) and not any(fetch.is_done for fetch in fetches)

    def _hang_up(self) -> None:
        for connection in list(self._consumer._manager._conns.values()):
            connection.close()
