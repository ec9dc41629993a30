"""Trace contexts and record headers: what OpenTelemetry and the CloudEvents SDK, which know nothing of distrl, read from them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.bindings.kafka import KafkaMessage, from_binary
from cloudevents.core.formats.base import Format
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace as opentelemetry
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from distrl.connectors.embedded import EmbeddedBus
from distrl.core.codec import Codec, event_key
from distrl.core.contracts.bus import Record, TopicSpec
from distrl.core.contracts.events import (
    DeadLetter,
    Envelope,
    Event,
    Metrics,
    NodeStatus,
    Role,
    Trajectory,
    WeightsUpdate,
)
from distrl.core.contracts.topic import ALL, TopicName
from distrl.core.errors import CodecError
from distrl.core.runtime.activity import Activity
from distrl.core.runtime.event_writer import EventWriter
from distrl.core.runtime.header import EventHeaders
from distrl.core.runtime.trace import child_traceparent, root_traceparent, trace_id
from distrl.testing import ManualClock, make_feedback, make_priority, make_reward, make_trajectory

RUN = "traced"
ROOT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
TIME_MS = 1_735_689_600_123


# --- trace context ------------------------------------------------------------------------------


def test_a_child_has_its_parents_trace_and_a_span_of_its_own() -> None:
    child = child_traceparent(ROOT, "event-1")
    assert trace_id(child) == trace_id(ROOT) == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert child != ROOT
    assert child == child_traceparent(ROOT, "event-1"), "an event that is sent again is the same span"
    assert child != child_traceparent(ROOT, "event-2")


def test_two_episodes_share_nothing() -> None:
    one, two = root_traceparent("episode-1"), root_traceparent("episode-2")
    assert trace_id(one) != trace_id(two)
    assert one.split("-")[2] != two.split("-")[2]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
        "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
        "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0x",
        ROOT + "\n",
    ],
)
def test_what_is_no_traceparent_begins_no_child(text: str) -> None:
    assert child_traceparent(text, "event-1") == trace_id(text) == ""


def test_a_newer_version_is_read_as_far_as_it_is_known_and_answered_in_ours() -> None:
    newer = "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-03-what-comes-later"
    assert child_traceparent(newer, "event-1").startswith("00-4bf92f3577b34da6a3ce929d0e0e4736-")
    assert child_traceparent(newer, "event-1").endswith("-01")
    assert child_traceparent(ROOT.removesuffix("01") + "00", "event-1").endswith("-00"), "not sampled stays not sampled"


@given(st.text(), st.text())
def test_whatever_ids_hold_opentelemetry_reads_the_context(episode: str, event_id: str) -> None:
    root = root_traceparent(episode)
    child = child_traceparent(root, event_id)
    spans = []
    for text in (root, child):
        context = TraceContextTextMapPropagator().extract({"traceparent": text})
        span = opentelemetry.get_current_span(context).get_span_context()
        assert span.is_valid
        assert span.is_remote
        assert span.trace_flags.sampled
        assert f"{span.trace_id:032x}" == trace_id(text)
        spans.append(span.span_id)
    assert f"{spans[1]:016x}" == child.split("-")[2]


# --- headers of every event ---------------------------------------------------------------------


class Framed(Format):
    """The value as it is: it is distrl's to read."""

    def read_data(self, body: bytes, data_content_type: str | None) -> bytes:
        assert data_content_type == "application/avro"
        return body

    def write_data(self, data: object, data_content_type: str | None) -> bytes:
        raise NotImplementedError

    def read(self, event_factory: object, data: str | bytes) -> BaseCloudEvent:
        raise NotImplementedError

    def write(self, event: BaseCloudEvent) -> bytes:
        raise NotImplementedError

    def get_content_type(self) -> str:
        return "application/avro"


class World:
    """A node's writer on a log, and what it wrote."""

    def __init__(self, folder: Path) -> None:
        self.bus = EmbeddedBus(folder)
        self.topic = TopicName(RUN)
        self.codec = Codec()
        self.clock = ManualClock()
        self.bus.admin().create([TopicSpec(self.topic(name)) for name in ALL])
        self.producer = self.bus.producer()

    def writer(self, role: Role, node: str) -> EventWriter:
        return EventWriter(
            self.producer, self.codec, run=RUN, node=node, role=role, clock=self.clock,
            activity=Activity(self.clock), stop=threading.Event(), patience_s=5.0,
        )  # fmt: skip

    def records(self, topic: str) -> list[Record]:
        self.producer.flush(10.0)
        with self.bus.consumer([self.topic(topic)]) as consumer:
            return consumer.poll(5.0)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path / "log")
    yield world
    world.producer.close()
    world.bus.close()


def event_of_each_kind(envelope: Envelope) -> list[tuple[str, Event]]:
    trajectory = replace(make_trajectory("t-1"), envelope=envelope)
    blob = trajectory.steps[0].observation.screenshot
    assert blob is not None
    return [
        ("trajectories", trajectory),
        ("rewards", replace(make_reward(trajectory, 1.0), envelope=envelope)),
        ("priorities", replace(make_priority(trajectory.trajectory_id, 1.0), envelope=envelope)),
        ("feedback", replace(make_feedback(trajectory.trajectory_id), envelope=envelope)),
        ("weights", WeightsUpdate(envelope, "factored", 1, 0, 0, blob)),
        ("nodes", NodeStatus(envelope, "learner", "a-ride", "running", "i-1", "host", 7, TIME_MS, 2000)),
        ("metrics", Metrics(envelope, "learner", 2000, {"busy": 0.5})),
        (
            "dead-letters",
            DeadLetter(envelope, "DISTRL-200", "x", "learner", "distrl.traced.rewards", 0, 3, b"t-1", b"poison"),
        ),
    ]


NAMES = {
    "trajectories": "distrl.Trajectory",
    "rewards": "distrl.Reward",
    "priorities": "distrl.Priority",
    "feedback": "distrl.Feedback",
    "weights": "distrl.Weights",
    "nodes": "distrl.Node",
    "metrics": "distrl.Metrics",
    "dead-letters": "distrl.DeadLetter",
}
ABOUT_NO_TRAJECTORY = ("weights", "nodes", "metrics")


def test_the_cloudevents_sdk_reads_every_event(world: World) -> None:
    writer = world.writer("evaluator", "evaluator 0/a")
    for topic, event in event_of_each_kind(Envelope("event-1", RUN, "evaluator 0/a", TIME_MS, ROOT)):
        writer.send(event)
        (record,) = world.records(topic)
        assert record.key is not None
        assert record.value is not None
        parsed = from_binary(KafkaMessage(dict(record.headers), record.key, record.value), Framed())
        assert parsed.get_specversion() == "1.0"
        assert parsed.get_id() == "event-1"
        assert parsed.get_source() == "/distrl/traced/evaluator/evaluator%200%2Fa"
        assert parsed.get_type() == NAMES[topic]
        assert parsed.get_datacontenttype() == "application/avro"
        assert parsed.get_subject() == (None if topic in ABOUT_NO_TRAJECTORY else "t-1")
        time = parsed.get_time()
        assert time is not None
        assert round(time.timestamp() * 1000) == TIME_MS
        assert parsed.get_extension("partitionkey") == event_key(event).decode()
        assert parsed.get_data() == world.codec.encode(event)
        assert dict(record.headers)["traceparent"] == ROOT.encode()


def test_opentelemetry_continues_the_trace_from_the_record(world: World) -> None:
    world.writer("collector", "c").send(replace(make_trajectory("t-1"), envelope=Envelope("t-1", RUN, "c", 1, ROOT)))
    (record,) = world.records("trajectories")
    carrier = {name: value.decode() for name, value in record.headers}
    span = opentelemetry.get_current_span(TraceContextTextMapPropagator().extract(carrier)).get_span_context()
    assert f"{span.trace_id:032x}" == trace_id(ROOT)
    assert f"{span.span_id:016x}" == "00f067aa0ba902b7"


def test_an_event_of_no_trace_says_nothing_of_one() -> None:
    headers = EventHeaders(run=RUN, role="learner", node="l")
    for traceparent in ("", "trace-1"):
        event = replace(make_trajectory("t-1"), envelope=Envelope("t-1", RUN, "l", 1, traceparent))
        assert "traceparent" not in dict(headers.of(event))


@given(st.integers(-(2**63), 2**63 - 1))
def test_a_time_is_told_as_rfc_3339_tells_it_or_not_at_all(time_ms: int) -> None:
    event = replace(make_trajectory("t-1"), envelope=Envelope("t-1", RUN, "l", time_ms))
    time = dict(EventHeaders(run=RUN, role="learner", node="l").of(event)).get("ce_time")
    assert time is None or len(time) == len("2025-01-01T00:00:00.000Z")


def test_times_of_one_second_differ_by_their_milliseconds() -> None:
    headers = EventHeaders(run=RUN, role="learner", node="l")
    times = [
        dict(headers.of(replace(make_trajectory("t"), envelope=Envelope("t", RUN, "l", ms))))["ce_time"]
        for ms in (TIME_MS, TIME_MS + 1, TIME_MS + 1000, TIME_MS)
    ]
    assert times == [
        b"2025-01-01T00:00:00.123Z", b"2025-01-01T00:00:00.124Z", b"2025-01-01T00:00:01.123Z", b"2025-01-01T00:00:00.123Z",
    ]  # fmt: skip


# --- hops ---------------------------------------------------------------------------------------


def test_what_the_outbox_kept_gets_the_headers_of_the_event_in_it(world: World) -> None:
    writer = world.writer("collector", "c")
    event = replace(make_trajectory("t-1"), envelope=Envelope("t-1", RUN, "c", TIME_MS, ROOT))
    writer.send(event)
    writer.send_framed("trajectories", b"t-1", writer.frame(event))
    sent, kept = world.records("trajectories")
    assert kept.headers == sent.headers
    writer.send_framed("trajectories", b"t-2", b"no event")
    assert world.records("trajectories")[-1].headers == ()
    writer.send_framed("nodes", b"c", None)
    assert world.records("nodes")[-1].headers == ()


def test_every_answer_is_a_span_of_its_own_in_the_trace_of_what_it_answers(world: World) -> None:
    writer = world.writer("evaluator", "e")
    one, two = writer.envelope("event-1", parent=ROOT), writer.envelope("event-2", parent=ROOT)
    assert trace_id(one.traceparent) == trace_id(two.traceparent) == trace_id(ROOT)
    assert len({ROOT, one.traceparent, two.traceparent}) == 3
    assert writer.envelope("event-3").traceparent == ""
    assert writer.envelope("event-3", parent="trace-1").traceparent == ""


def test_a_version_of_the_weights_begins_a_trace_that_no_later_run_repeats(world: World) -> None:
    writer = world.writer("learner", "l")
    one = writer.envelope("weights-0", begins_trace=True).traceparent
    world.clock.advance(1.0)
    two = writer.envelope("weights-0", begins_trace=True).traceparent
    assert trace_id(one)
    assert trace_id(one) != trace_id(two)


def test_a_dead_letter_keeps_the_headers_and_joins_the_trace(world: World) -> None:
    event: Trajectory = replace(make_trajectory("t-1"), envelope=Envelope("t-1", RUN, "c", TIME_MS, ROOT))
    world.writer("collector", "c").send(event)
    (record,) = world.records("trajectories")
    world.writer("learner", "l").dead_letter(record, CodecError("poison"))
    (dead,) = world.records("dead-letters")
    assert dead.value is not None
    letter = world.codec.decode(dead.value, DeadLetter)
    assert letter.headers == dict(record.headers)
    assert trace_id(letter.envelope.traceparent) == trace_id(ROOT)
    assert letter.envelope.traceparent != ROOT
    assert dict(dead.headers)["ce_type"] == b"distrl.DeadLetter"


@pytest.mark.parametrize("value", [b"\xff\xfe", b"", b"trace-1"])
def test_a_foreign_record_with_a_broken_traceparent_is_dead_lettered_all_the_same(world: World, value: bytes) -> None:
    record = Record(world.topic("rewards"), 0, 0, 1, b"\xff", b"poison", (("traceparent", value),))
    world.writer("learner", "l").dead_letter(record, CodecError("poison"))
    (dead,) = world.records("dead-letters")
    assert {"traceparent", "ce_subject"}.isdisjoint(dict(dead.headers))
