"""The embedded log against a model of it, in whatever order things happen: what goes in comes out, once a reader at least.

Hypothesis drives producers, broadcast readers and members of a group on one folder; the model is a list a partition.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from distrl.connectors.embedded import EmbeddedBus
from distrl.core.contracts.bus import Consumer, Headers, Record, TopicPartition, TopicSpec

TOPIC = "distrl.model.records"
PARTITIONS = 3
NAMES = [TopicPartition(TOPIC, index) for index in range(PARTITIONS)]

Sent = tuple[bytes | None, bytes | None, Headers, int]
"""Key, value, headers, timestamp."""


def content(record: Record) -> Sent:
    return (record.key, record.value, record.headers, record.timestamp_ms)


class Log(RuleBasedStateMachine):
    """Rules are what processes do; the invariants are what the contract promises at any time."""

    members = Bundle("members")
    readers = Bundle("readers")

    def __init__(self) -> None:
        super().__init__()
        self._stack = contextlib.ExitStack()
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        # A session longer than any example: members leave when they are told to.
        self._buses = [self._stack.enter_context(EmbeddedBus(folder, session_s=600.0)) for _ in range(2)]
        self._buses[0].admin().create([TopicSpec(TOPIC, partitions=PARTITIONS)])
        self._producers = [self._stack.enter_context(bus.producer()) for bus in self._buses]
        self._log: dict[int, list[Sent]] = {index: [] for index in range(PARTITIONS)}
        self._first = dict.fromkeys(range(PARTITIONS), 0)
        self._homes: dict[bytes, int] = {}
        self._read: dict[Consumer, dict[int, list[Sent]]] = {}
        self._acked: dict[int, set[int]] = defaultdict(set)
        self._delivered: dict[Consumer, list[Record]] = {}
        self._committed: dict[TopicPartition, int] = {}

    @initialize(target=readers)
    def a_reader_from_the_start(self) -> Consumer:
        return self._open_reader(0)

    @rule(target=readers, bus=st.integers(0, 1))
    def open_reader(self, bus: int) -> Consumer:
        return self._open_reader(bus)

    def _open_reader(self, bus: int) -> Consumer:
        consumer = self._stack.enter_context(self._buses[bus].consumer([TOPIC]))
        self._read[consumer] = {index: self._log[index][: self._first[index]] for index in range(PARTITIONS)}
        return consumer

    @rule(
        producer=st.integers(0, 1),
        batch=st.lists(
            st.tuples(
                st.sampled_from([None, b"", b"a", b"b", b"c", b"d"]),
                st.none() | st.binary(max_size=20),
                st.lists(st.tuples(st.text("xy", max_size=2), st.binary(max_size=2)), max_size=2).map(tuple),
                st.integers(0, 2**41),
            ),
            min_size=1,
            max_size=8,
        ),
    )
    def send(self, producer: int, batch: list[Sent]) -> None:
        futures = [
            self._producers[producer].send(TOPIC, value, key=key, headers=headers, timestamp_ms=timestamp)
            for key, value, headers, timestamp in batch
        ]
        for sent, future in zip(batch, futures, strict=True):
            position = future.result(30.0)
            log = self._log[position.partition]
            assert position.offset == len(log)
            log.append(sent)
            if sent[0] is not None:
                assert self._homes.setdefault(sent[0], position.partition) == position.partition

    @rule(consumer=readers, most=st.integers(1, 7))
    def read(self, consumer: Consumer, most: int) -> None:
        records = consumer.poll(0.0, most)
        assert len(records) <= most
        for record in records:
            so_far = self._read[consumer][record.partition]
            # Nothing is skipped but what was let go of.
            assert len(so_far) == record.offset or len(so_far) < record.offset == self._first[record.partition]
            so_far.extend(self._log[record.partition][len(so_far) : record.offset])
            so_far.append(content(record))

    @rule(partition=st.integers(0, PARTITIONS - 1), share=st.floats(0, 1))
    def delete_records(self, partition: int, share: float) -> None:
        before = round(share * len(self._log[partition]))
        self._buses[0].admin().delete_records({NAMES[partition]: before})
        self._first[partition] = max(self._first[partition], before)

    @rule(target=members, bus=st.integers(0, 1))
    def join(self, bus: int) -> Consumer:
        consumer = self._stack.enter_context(self._buses[bus].consumer([TOPIC], group="g"))
        self._delivered[consumer] = []
        return consumer

    @rule(consumer=members, most=st.integers(1, 7))
    def take(self, consumer: Consumer, most: int) -> None:
        for record in consumer.poll(0.0, most):
            assert content(record) == self._log[record.partition][record.offset]
            self._delivered[consumer].append(record)

    @rule(consumer=members, data=st.data())
    def ack(self, consumer: Consumer, data: st.DataObject) -> None:
        records = self._delivered[consumer]
        if records:
            record = records.pop(data.draw(st.integers(0, len(records) - 1)))
            consumer.ack(record)
            self._acked[record.partition].add(record.offset)

    @rule(consumer=members)
    def commit(self, consumer: Consumer) -> None:
        consumer.commit()

    @rule(target=members, consumer=consumes(members), leave=st.booleans())
    def leave(self, consumer: Consumer, leave: bool) -> object:
        if not leave:
            return consumer
        consumer.close()
        del self._delivered[consumer]
        return multiple()

    @invariant()
    def commits_never_pass_what_is_not_acknowledged(self) -> None:
        offsets = self._buses[0].admin().group_offsets("g")
        for name, offset in offsets.items():
            assert offset <= len(self._log[name.partition])
            missing = set(range(self._first[name.partition], offset)) - self._acked[name.partition]
            assert not missing, f"committed {offset} of {name.partition} with {missing} not acknowledged"

    @invariant()
    def no_partition_has_two_owners(self) -> None:
        owned = [name for consumer in self._delivered for name in consumer.assignment()]
        assert len(owned) == len(set(owned))

    @invariant()
    def ends_are_known(self) -> None:
        ends = self._buses[1].admin().end_offsets([TOPIC])
        assert ends == {name: len(self._log[name.partition]) for name in NAMES}

    def teardown(self) -> None:
        try:
            for consumer, so_far in self._read.items():
                while any(consumer.lag().values()):
                    for record in consumer.poll(0.0):
                        behind = so_far[record.partition]
                        behind.extend(self._log[record.partition][len(behind) : record.offset])
                        behind.append(content(record))
                for index in range(PARTITIONS):
                    held = so_far[index][self._first[index] :]
                    assert held == self._log[index][self._first[index] :]
            self._nothing_is_lost_to_the_group()
        finally:
            self._stack.close()

    def _nothing_is_lost_to_the_group(self) -> None:
        """When all members have left, one more gets everything that was not acknowledged."""
        for consumer in self._delivered:
            consumer.close()
        with self._buses[0].consumer([TOPIC], group="g") as last:
            last.poll(0.0, 1)
            rest: set[tuple[int, int]] = set()
            for name in last.assignment():
                last.seek(name, last.committed(name) or 0)
            while any(last.lag().values()):
                rest |= {(record.partition, record.offset) for record in last.poll(0.0)}
        expected = {
            (index, offset)
            for index in range(PARTITIONS)
            for offset in range(self._first[index], len(self._log[index]))
            if offset not in self._acked[index]
        }
        assert expected <= rest


Log.TestCase.settings = settings(
    max_examples=30, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
TestLog = pytest.mark.timeout(600)(Log.TestCase)  # a failure is made small first, which takes minutes
