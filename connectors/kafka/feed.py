"""Puts records into kafka-python's batches itself. Used by ``producer`` and ``transaction``.

``KafkaProducer.send`` checks every record, makes it a future with a lock of its own and calls its callbacks one by one. Here
a record is checked once, by ``delivery``, and the records of a batch are told of together: that halves what a small record
costs. It chooses each batch's compression, too. Like ``backdoor`` it reaches behind kafka-python's public surface.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from kafka import TopicPartition as KafkaTopicPartition
from kafka import errors
from kafka.producer.producer_batch import ProducerBatch
from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.record.memory_records import MemoryRecordsBuilder

from distrl.connectors.kafka.compression import Compression
from distrl.connectors.kafka.delivery import Delivery
from distrl.connectors.kafka.failure import refused

_FORMAT = 2
"""Of record batches; brokers know it since 0.11."""

Written = Callable[[Sequence[Delivery], int], None]
"""Told of records of one partition that are written: they, and the offset of the first."""
Failed = Callable[[Sequence[Delivery], Exception], None]
"""Told of records that the client gave up, and why."""
Outcome = tuple[int, int, Callable[[int], Exception] | None]
"""kafka-python's, of a batch: the first offset, the broker's time, and what tells each record's error if it failed."""


class Feed:
    """The intake of one ``KafkaProducer``. ``written`` and ``failed`` are called once a batch, on its network thread.

    The caller sees to it that nothing is put once the client is being discarded.
    """

    def __init__(self, producer: Any, compression: Compression, written: Written, failed: Failed) -> None:
        self.producer = producer
        self._compression = compression
        self._written = written
        self._failed = failed
        self._accumulator = producer._accumulator
        self._sender = producer._sender
        transactions = producer._transaction_manager
        self._join = transactions.maybe_add_partition_to_transaction if transactions.is_transactional() else None
        self._lanes: dict[tuple[str, int], tuple[Any, Any, Any]] = {}
        """By topic and partition: kafka-python's name for it, its lock, its batches."""

    def knows(self, topic: str) -> bool:
        """Whether the client knows where the topic's partitions are."""
        return self.producer._metadata.partitions_for_topic(topic) is not None

    def learn(self, topic: str) -> None:
        """Ask the brokers where the topic's partitions are. Waits; raises ``KafkaError``."""
        self.producer._wait_on_metadata(topic, self.producer.config["max_block_ms"])

    def put(self, delivery: Delivery) -> bool:
        """Append a record to its partition's last batch; never waits. False if its topic must be learnt first. Raises
        ``KafkaError`` if the client is of no more use."""
        lane = self._lanes.get((delivery.topic, delivery.partition))
        if lane is None:
            if not self.knows(delivery.topic):
                return False
            lane = self._lane(delivery)
        partition, lock, batches = lane
        if self._join is not None:
            self._join(partition)
        content = delivery.timestamp_ms, delivery.key, delivery.value, delivery.headers
        with lock:
            if batches:
                members = batches[-1]._record_futures
                # A batch that kafka-python has made is not added to: it would tell nobody of the record.
                if type(members) is _Members and batches[-1].records.append(*content) is not None:
                    members.deliveries.append(delivery)
                    return True
            if self._accumulator._closed:
                raise errors.IllegalStateError("the client is closed")
            batch = self._batch(partition)
            batch.records.append(*content)
            batch._record_futures.deliveries.append(delivery)
            batches.append(batch)
            self._accumulator._incomplete.add(batch)
        self._sender.wakeup()  # the batch before is full, or there was none
        return True

    def _lane(self, delivery: Delivery) -> tuple[Any, Any, Any]:
        partition = KafkaTopicPartition(delivery.topic, delivery.partition)
        lane = partition, self._accumulator._tp_lock(partition), self._accumulator._batches[partition]
        self._lanes[delivery.topic, delivery.partition] = lane
        return lane

    def _batch(self, partition: Any) -> Any:
        size = self._accumulator.config["batch_size"]
        records = MemoryRecordsBuilder(_FORMAT, 0, size)
        records._builder = _BatchBuilder(size, partial(self._compression.pack, partition.topic))
        batch = ProducerBatch(partition, records)
        batch._record_futures = _Members(self)
        batch.produce_future.add_callback(partial(self._done, batch._record_futures.deliveries))
        return batch

    def _done(self, deliveries: Sequence[Delivery], outcome: Outcome) -> None:
        first, _, error_of = outcome
        if error_of is None:
            self._written(deliveries, first)
        else:
            # Often one of them is at fault, and the others are told only that one was.
            causes = [error_of(index) for index in range(len(deliveries))]
            self._failed(deliveries, next(filter(refused, causes), causes[0]))


class _Members:
    """The records of a batch, where kafka-python keeps their futures. It looks one up only to move it into another batch, when
    the broker has found this one too large."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self.deliveries: list[Delivery] = []

    def __len__(self) -> int:
        return len(self.deliveries)

    def __getitem__(self, index: int) -> _Moved:
        return _Moved(self._feed, self.deliveries[index])


class _Moved:
    """A record in a batch that kafka-python has made."""

    def __init__(self, feed: Feed, delivery: Delivery) -> None:
        self._feed = feed
        self._delivery = delivery

    def rebind(self, produce_future: Any, index: int) -> None:
        """kafka-python's: the record is number ``index`` of the batch which that future belongs to."""

        def done(outcome: Outcome) -> None:
            first, time_ms, error_of = outcome
            alone = None if error_of is None else partial(_at, error_of, index)
            self._feed._done([self._delivery], (first + index, time_ms, alone))

        produce_future.add_callback(done)


def _at(error_of: Callable[[int], Exception], index: int, _: int) -> Exception:
    return error_of(index)


class _BatchBuilder(DefaultRecordBatchBuilder):  # type: ignore[misc]  # kafka-python has no types
    """A batch that asks how to be compressed when it is closed."""

    def __init__(self, batch_size: int, pack: Callable[[memoryview], tuple[int, bytes] | None]) -> None:
        super().__init__(_FORMAT, 0, False, -1, -1, -1, batch_size)
        self._pack = pack

    def _maybe_compress(self) -> bool:
        size = self.HEADER_STRUCT.size
        with memoryview(self._buffer) as whole, whole[size:] as body:
            packed = self._pack(body)
        if packed is None:
            return False
        self._compression_type, self._buffer[size:] = packed
        return True
