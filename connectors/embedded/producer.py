"""The producer of the embedded log: ``send`` hands over, a thread writes. Made by ``bus``.

What is sent while a transaction commits goes into the next one: a lone record is written at once, and
under load the batches grow by themselves. Futures resolve in the writing thread, after the commit.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Self

import structlog

from distrl.connectors.embedded.budget import Budget
from distrl.connectors.embedded.catalogue import Catalogue, Topic
from distrl.connectors.embedded.fence import Fence
from distrl.connectors.embedded.partition import Entry, Partition, pack_headers
from distrl.connectors.partitioner import partition_of
from distrl.core.contracts.bus import Headers, RecordPosition
from distrl.core.contracts.clock import Clock
from distrl.core.errors import (
    BusError,
    BusUnavailableError,
    DeliveryError,
    DistrlError,
    FencedError,
    RecordTooLargeError,
    UnknownTopicError,
)

log = structlog.get_logger(__name__)

BATCH_RECORDS = 2000
BATCH_BYTES = 8_000_000
"""What one transaction writes at most (one record may be larger)."""

RETRY_S = 0.05
"""Pause before a locked partition is tried again, if nothing else is to be written."""

TEND_S = 10.0
"""A partition that is written to is looked after (retention, compaction) this often."""


@dataclass(slots=True)
class Pending:
    """One record in flight."""

    entry: Entry
    size: int
    deadline: float
    future: Future[RecordPosition]


@dataclass(slots=True)
class Lane:
    """What is in flight for one partition, and the file it goes to. Lane by lane order is kept."""

    topic: Topic
    index: int
    queue: deque[Pending] = field(default_factory=deque)
    partition: Partition | None = None
    """Opened and used by the writing thread alone."""
    next_tend: float = 0.0


class EmbeddedProducer:
    """Implements ``Producer``. Safe for use by several threads."""

    def __init__(
        self,
        catalogue: Catalogue,
        *,
        budget: Budget,
        send_s: float,
        delivery_s: float,
        clock: Clock,
        fence: Fence | None = None,
        on_close: Callable[[EmbeddedProducer], None],
    ) -> None:
        self._catalogue = catalogue
        self._budget = budget
        self._send_s = send_s
        self._delivery_s = delivery_s
        self._clock = clock
        self._fence = fence
        self._on_close = on_close
        self._turn = itertools.count()
        self._topics: dict[str, Topic] = {}
        self._lanes: dict[tuple[int, int], Lane] = {}  # by the topic's number, which no two topics ever share
        self._work = threading.Condition()
        self._queued = False
        self._closed = False
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="distrl-producer", daemon=True)
        self._thread.start()

    # --- the sender's side ------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Future[RecordPosition]:
        self._refuse_closed()
        found = self._topics.get(topic)
        if found is None:
            found = self._topics[topic] = self._catalogue.topic(topic)
        entry = Entry(
            self._clock.time_ms() if timestamp_ms is None else timestamp_ms, key, pack_headers(headers), value
        )
        size = entry.size()
        if size > found.spec.max_record_bytes:  # what is known may be old: look again before a record is refused
            found = self._topics[topic] = self._catalogue.topic(topic)
        if size > found.spec.max_record_bytes:
            raise RecordTooLargeError(
                f"a record of {size} bytes exceeds the {found.spec.max_record_bytes} that topic {topic!r} takes: "
                "put what is large into the store and send a reference"
            )
        count = found.spec.partitions
        if partition is None:
            partition = partition_of(key, count) if key is not None else next(self._turn) % count
        elif not 0 <= partition < count:
            raise BusError(f"topic {topic!r} has no partition {partition}, only 0 to {count - 1}")
        self._budget.acquire(size, self._send_s)
        future: Future[RecordPosition] = Future()
        future.set_running_or_notify_cancel()  # what is handed over can no longer be cancelled
        with self._work:
            try:
                self._refuse_closed()
            except BusError:
                self._budget.release(1, size)
                self._budget.settle(1)
                raise
            lane = self._lanes.get((found.number, partition))
            if lane is None:
                lane = self._lanes[found.number, partition] = Lane(found, partition)
            deadline = self._clock.monotonic() + self._delivery_s  # in here, so that a lane's deadlines grow
            lane.queue.append(Pending(entry, size, deadline, future))
            if not self._queued:
                self._queued = True
                self._work.notify()
        return future

    def _refuse_closed(self) -> None:
        if self._closed:
            raise BusError("the producer is closed")

    def in_flight(self) -> tuple[int, int]:
        return self._budget.in_flight()

    def flush(self, timeout_s: float) -> None:
        if not self._budget.drained(timeout_s):
            raise DeliveryError(f"{self._budget.records} records are still in flight after {timeout_s:g} s")

    def close(self, timeout_s: float = 10.0) -> None:
        with self._work:
            if self._closed:
                return
            self._closed = True
        try:
            self.flush(timeout_s)
        finally:
            with self._work:
                self._stopping = True
                self._work.notify()
            self._thread.join()
            self._on_close(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # --- the writing thread -----------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while True:
                with self._work:
                    while not self._queued and not self._stopping:
                        self._work.wait()
                    if self._stopping:
                        break
                    self._queued = False
                    lanes = [lane for lane in self._lanes.values() if lane.queue]
                stuck = [lane for lane in lanes if not self._write(lane)]
                if stuck:
                    with self._work:
                        if not self._queued:
                            self._work.wait(RETRY_S)
                            self._queued = True
        finally:
            for lane in list(self._lanes.values()):
                self._fail(
                    lane, list(lane.queue), DeliveryError("the producer was closed before the record was written")
                )
                if lane.partition is not None:
                    lane.partition.close()
            if self._fence is not None:
                self._fence.close()
            self._catalogue.close()

    def _write(self, lane: Lane) -> bool:
        """Write all that the lane holds now; ``False`` if its file is locked and it must be tried again."""
        for _ in range(len(lane.queue)):  # at most: what others add meanwhile waits for its turn
            batch = self._batch(lane)
            if not batch:
                break
            try:
                first = self._append(lane, batch)
            except BusUnavailableError as error:
                now = self._clock.monotonic()
                self._fail(lane, [pending for pending in batch if pending.deadline <= now], error)
                return not lane.queue
            except UnknownTopicError as error:
                self._drop(lane, error)
                return True
            except DistrlError as error:
                self._fail(lane, list(lane.queue) if isinstance(error, FencedError) else batch, error)
                continue
            except Exception as error:  # a bug, or memory: the record's sender must hear of it, whatever it is
                self._fail(lane, batch, BusError(f"writing to {lane.topic.spec.name!r} failed: {error!r}"))
                continue
            for _ in batch:
                lane.queue.popleft()
            self._budget.release(len(batch), sum(pending.size for pending in batch))
            topic = lane.topic.spec.name
            for offset, pending in enumerate(batch, first):
                pending.future.set_result(RecordPosition(topic, lane.index, offset))
            self._budget.settle(len(batch))
            self._tend(lane)
        return True

    def _batch(self, lane: Lane) -> list[Pending]:
        batch: list[Pending] = []
        size = 0
        with self._work:
            head = list(itertools.islice(lane.queue, BATCH_RECORDS))
        for pending in head:
            size += pending.size
            if batch and size > BATCH_BYTES:
                break
            batch.append(pending)
        return batch

    def _append(self, lane: Lane, batch: list[Pending]) -> int:
        if lane.partition is None:
            lane.partition = self._open(lane)
        entries = [pending.entry for pending in batch]
        if self._fence is None:
            return lane.partition.append(entries)
        with self._fence.held():
            return lane.partition.append(entries)

    def _open(self, lane: Lane) -> Partition:
        if not self._catalogue.path(lane.topic, lane.index).exists():
            raise UnknownTopicError(f"topic {lane.topic.spec.name!r} has been deleted")
        return self._catalogue.open(lane.topic, lane.index)

    def _tend(self, lane: Lane) -> None:
        """Now and then: retention, compaction, and moving the write-ahead log into the file."""
        assert lane.partition is not None
        now = self._clock.monotonic()
        try:
            if now >= lane.next_tend:
                lane.next_tend = now + TEND_S
                spec = self._catalogue.topic(lane.topic.spec.name).spec  # as it stands: settings change under us
                lane.partition.tend(spec, self._clock.time_ms())
            lane.partition.checkpoint_if_large()
        except DistrlError as error:  # the records are written all the same, and the next time tries again
            log.warning("housekeeping failed", topic=lane.topic.spec.name, partition=lane.index, error=str(error))

    def _drop(self, lane: Lane, error: DistrlError) -> None:
        """The lane's topic is gone: so is the lane. A topic made anew under the name has another number."""
        with self._work:
            del self._lanes[lane.topic.number, lane.index]
            self._topics.pop(lane.topic.spec.name, None)
        self._fail(lane, list(lane.queue), error)
        if lane.partition is not None:
            lane.partition.close()

    def _fail(self, lane: Lane, failed: list[Pending], error: DistrlError) -> None:
        """Give up the first records of a lane. Each sender gets an error of its own: raised in several threads, one object would
        collect their tracebacks."""
        for _ in failed:
            lane.queue.popleft()
        self._budget.release(len(failed), sum(pending.size for pending in failed))
        for pending in failed:
            own = type(error)(error.message)
            own.__cause__ = error.__cause__
            pending.future.set_exception(own)
        self._budget.settle(len(failed))
