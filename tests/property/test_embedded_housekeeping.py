"""What the embedded log lets go of and what it keeps, through retention, compaction, fences and deaths of its processes.

``tests/contract/test_bus_embedded_model.py`` holds readers and groups to a model; this is about the log's own life.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from distrl.connectors.embedded import EmbeddedBus
from distrl.connectors.embedded.partition import TOMBSTONE_MS
from distrl.connectors.embedded.producer import TEND_S, EmbeddedProducer
from distrl.core.contracts.bus import Record, TopicPartition, TopicSpec
from distrl.core.errors import FencedError
from distrl.testing import ManualClock

KEPT, STATE = "distrl.r.kept", "distrl.r.state"
KEYS = st.sampled_from([b"a", b"b", b"c"])
HOLD_S, HOLD_BYTES = 1000.0, 400


class Log(RuleBasedStateMachine):
    """A topic with retention by time and size, a compacted one, and a fenced writer."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.lives = 0
        self.clock = ManualClock()
        self.sent: dict[str, list[tuple[bytes | None, bytes | None, int]]] = {KEPT: [], STATE: []}
        self.trimmed = 0
        self.fenced: list[EmbeddedProducer] = []
        self.open()
        self.bus.admin().create(
            [
                TopicSpec(KEPT, retention_ms=round(HOLD_S * 1000), retention_bytes=HOLD_BYTES),
                TopicSpec(STATE, cleanup="compact"),
            ]
        )

    def open(self) -> None:
        self.bus = EmbeddedBus(self.root / str(self.lives), clock=self.clock)
        self.producer = self.bus.producer()
        self.fenced = []

    def send(self, producer: EmbeddedProducer, topic: str, key: bytes | None, value: bytes | None) -> None:
        now = self.clock.time_ms()
        position = producer.send(topic, value, key=key, timestamp_ms=now).result(20.0)
        assert position.offset == len(self.sent[topic]), "offsets go on, whatever was let go of"
        self.sent[topic].append((key, value, now))

    @rule(sizes=st.lists(st.integers(0, 120), min_size=1, max_size=5))
    def write(self, sizes: list[int]) -> None:
        for size in sizes:
            self.send(self.producer, KEPT, None, b"x" * size)

    @rule(states=st.lists(st.tuples(KEYS, st.none() | st.binary(max_size=5)), min_size=1, max_size=6))
    def tell(self, states: list[tuple[bytes, bytes | None]]) -> None:
        for key, value in states:
            self.send(self.producer, STATE, key, value)

    @rule(seconds=st.sampled_from([TEND_S + 1, 300.0, HOLD_S + 1, TOMBSTONE_MS / 1000 + 1]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(share=st.floats(0, 1))
    def delete_records(self, share: float) -> None:
        before = round(share * len(self.sent[KEPT]))
        self.bus.admin().delete_records({TopicPartition(KEPT, 0): before})
        self.trimmed = max(self.trimmed, before)

    @rule()
    def replace_the_fenced_writer(self) -> None:
        self.fenced.append(self.bus.producer(fence="learner"))

    @rule(which=st.integers(0, 3), key=KEYS)
    def write_fenced(self, which: int, key: bytes) -> None:
        """Only the newest holder's records are on the log."""
        if not self.fenced:
            return
        producer = self.fenced[which % len(self.fenced)]
        if producer is self.fenced[-1]:
            self.send(producer, STATE, key, b"fenced")
        else:
            with pytest.raises(FencedError):
                producer.send(STATE, b"stale", key=key).result(20.0)

    @rule()
    def restart(self) -> None:
        self.bus.close()
        self.open()

    @rule()
    def kill(self) -> None:
        """All that was acknowledged lies in the files, write-ahead logs and all: a copy of them is what a killed machine's process leaves."""
        dead, place = self.bus, self.root / str(self.lives)
        self.lives += 1
        shutil.copytree(place, self.root / str(self.lives))
        dead.close()
        shutil.rmtree(place)
        self.open()

    def held(self, topic: str) -> list[Record]:
        with self.bus.consumer([topic]) as consumer:
            return consumer.poll(0.0, 10_000)

    @invariant()
    def every_record_is_what_was_sent(self) -> None:
        for topic, sent in self.sent.items():
            records = self.held(topic)
            assert [record.offset for record in records] == sorted({record.offset for record in records})
            for record in records:
                assert (record.key, record.value, record.timestamp_ms) == sent[record.offset]
            assert self.bus.admin().end_offsets([topic]) == {TopicPartition(topic, 0): len(sent)}

    @invariant()
    def retention_takes_the_oldest_and_no_more_than_it_may(self) -> None:
        held = [record.offset for record in self.held(KEPT)]
        end = len(self.sent[KEPT])
        first = held[0] if held else end
        assert held == list(range(first, end)), "no hole"
        assert first >= self.trimmed
        now = self.clock.time_ms()
        if first > self.trimmed:
            _, value, time_ms = self.sent[KEPT][first - 1]
            behind = sum(len(value or b"") for _, value, _ in self.sent[KEPT][first:])
            assert time_ms < now - HOLD_S * 1000 or behind + len(value or b"") > HOLD_BYTES

    @invariant()
    def compaction_keeps_the_newest_of_each_key(self) -> None:
        sent = self.sent[STATE]
        held = {record.offset for record in self.held(STATE)}
        newest = {key: offset for offset, (key, _, _) in enumerate(sent)}
        for offset in newest.values():
            _, value, time_ms = sent[offset]
            old_tombstone = value is None and time_ms < self.clock.time_ms() - TOMBSTONE_MS
            assert offset in held or old_tombstone

    def teardown(self) -> None:
        self.bus.close()
        shutil.rmtree(self.root)


Log.TestCase.settings = settings(settings.get_profile("same"), max_examples=10, stateful_step_count=25)
TestLog = Log.TestCase
