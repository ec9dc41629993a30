"""The codec: what goes in comes out, whatever the version; nothing but a CodecError comes out of bad bytes."""

from __future__ import annotations

import dataclasses
import json
import math
import random
import struct
import tracemalloc
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from fastavro import parse_schema, schemaless_reader, schemaless_writer
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from distrl.core.codec import HEADER, RECORDS, Codec, derived_id, event_key, event_topic
from distrl.core.contracts.events import (
    EVENT_TYPES,
    DeadLetter,
    Envelope,
    Event,
    Feedback,
    Metrics,
    NodeStatus,
    Priority,
    Reward,
    StepRecord,
    Trajectory,
    WeightsUpdate,
)
from distrl.core.contracts.topic import ALL
from distrl.core.errors import CodecError, ConfigError, InvalidEventError, RegistryUnavailableError, UnknownSchemaError
from distrl.schemas import Schema, all_schemas, latest, load_schema, lock

GOLDEN = Path(__file__).parent / "golden"
CODEC = Codec()

LONG = st.integers(-(2**63), 2**63 - 1)
COUNT = st.integers(0, 2**63 - 1)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
NAME = st.text(min_size=1, max_size=20)
RANGES: dict[str, st.SearchStrategy[Any]] = {
    "success": st.floats(0, 1),
    "environment_outcome": st.none() | st.floats(0, 1),
    "priority": st.floats(0, allow_infinity=False, allow_nan=False),
    "allowance": st.integers(-1, 2**63 - 1),
    **dict.fromkeys(("epoch", "version", "horizon", "sequence", "ingested"), COUNT),
    **dict.fromkeys(("event_id", "trajectory_id", "node"), NAME),
}
RANGES_OF_WEIGHTS = {
    "policy": NAME,
    "options": st.dictionaries(st.text(max_size=5), st.integers(), max_size=2).map(json.dumps),
}


def values(hint: Any) -> st.SearchStrategy[Any]:
    if dataclasses.is_dataclass(hint):
        return instances(hint)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is tuple:
        return st.lists(values(arguments[0]), max_size=3).map(tuple)
    if origin is dict:
        return st.dictionaries(st.text(max_size=10), values(arguments[1]), max_size=3)
    if arguments:
        return st.none() | values(arguments[0])
    by_type: dict[Any, st.SearchStrategy[Any]] = {
        str: st.text(max_size=20),
        int: LONG,
        float: FINITE,
        bool: st.booleans(),
        bytes: st.binary(max_size=20),
    }
    return by_type[hint]


def instances(kind: Any) -> st.SearchStrategy[Any]:
    hints = get_type_hints(kind)
    ranges = RANGES | (RANGES_OF_WEIGHTS if kind is WeightsUpdate else {})
    return st.builds(kind, **{name: ranges[name] if name in ranges else values(hint) for name, hint in hints.items()})


EVENTS = st.one_of([instances(kind) for kind in EVENT_TYPES])


def golden(record: str, version: int = 1) -> bytes:
    return (GOLDEN / f"{record}_v{version}.bin").read_bytes()


def golden_event(kind: type[Any], version: int = 1) -> Any:
    return TypeAdapter(kind).validate_json((GOLDEN / f"{RECORDS[kind]}_v{version}.json").read_bytes())


class Registry:
    """Schemas of writers that this package does not know."""

    def __init__(self, definition: Mapping[str, Any]) -> None:
        self.definition = definition
        self.asked = 0

    def schema(self, schema_id: int) -> Mapping[str, Any]:
        self.asked += 1
        if schema_id != 7:
            raise UnknownSchemaError(f"schema id {schema_id} is not registered")
        return self.definition


# --- round trips --------------------------------------------------------------------------------


@settings(max_examples=300, deadline=None)
@given(EVENTS)
def test_an_event_comes_back_as_it_was(event: Event) -> None:
    data = CODEC.encode(event)
    assert CODEC.decode(data) == event
    assert CODEC.decode(memoryview(data), type(event)) == event
    assert CODEC.decode(data, EVENT_TYPES) == event
    assert type(CODEC.decode(data)) is type(event)


@pytest.mark.parametrize("schema", all_schemas(), ids=lambda schema: f"{schema.record}-v{schema.version}")
def test_golden_bytes_of_every_version_are_read_as_the_committed_event(schema: Schema) -> None:
    kind = next(kind for kind, record in RECORDS.items() if record == schema.record)
    data, event = golden(schema.record, schema.version), golden_event(kind, schema.version)
    assert data[:5] == HEADER.pack(0, schema.schema_id)
    assert CODEC.decode(data, kind) == event
    if schema == latest(schema.record):
        assert CODEC.encode(event) == data


def test_not_a_number_is_a_metric_that_comes_back() -> None:
    event = dataclasses.replace(golden_event(Metrics), values={"learner.loss": math.nan})
    assert math.isnan(CODEC.decode(CODEC.encode(event), Metrics).values["learner.loss"])


# --- versions -----------------------------------------------------------------------------------


def test_a_field_and_a_symbol_of_a_newer_writer_are_survived() -> None:
    definition = latest("trajectory").definition
    fields = {field["name"]: field for field in definition["fields"]}
    fields["outcome"]["type"]["symbols"].insert(0, "paused")
    definition["fields"].insert(2, {"name": "mood", "type": "string", "default": "", "doc": "Text, scalar."})
    newer = Registry(definition)
    event = golden_event(Trajectory)
    data = _write(definition, event, mood="sunny", outcome="paused")
    codec = Codec(newer)
    assert codec.decode(data, Trajectory) == dataclasses.replace(event, outcome="aborted")
    assert codec.decode(data, Trajectory).goal == event.goal
    assert newer.asked == 1, "a resolved schema is kept"


@pytest.mark.parametrize(
    ("kind", "written"),
    [("time_ms", {"type": "long", "logicalType": "timestamp-millis"}), ("time_ms", {"type": "int", "logicalType": "date"}),
     ("run", {"type": "string", "logicalType": "uuid"})],
)  # fmt: skip
def test_a_logical_type_of_a_foreign_writer_is_read_as_what_it_stands_for(kind: str, written: dict[str, Any]) -> None:
    definition = latest("reward").definition
    envelope = {field["name"]: field for field in definition["fields"][0]["type"]["fields"]}
    envelope[kind]["type"] = written
    value: Any = 20_000 if kind == "time_ms" else "3f0c6f4e-1c1b-4a55-9c1e-0a3a5a4b5c6d"
    event = golden_event(Reward)
    event = dataclasses.replace(event, envelope=dataclasses.replace(event.envelope, **{kind: value}))
    plain = latest("reward").definition
    if written["type"] == "int":
        {field["name"]: field for field in plain["fields"][0]["type"]["fields"]}["time_ms"]["type"] = "int"
    assert Codec(Registry(definition)).decode(_write(plain, event), Reward) == event


class Away(Registry):
    """Does not answer."""

    def schema(self, schema_id: int) -> Mapping[str, Any]:
        raise RegistryUnavailableError("away")

    def find(self, subject: str, text: str) -> int | None:
        raise RegistryUnavailableError("away")


def test_a_registry_that_is_away_makes_no_poison_of_what_it_alone_knows() -> None:
    codec = Codec(Away({}))
    assert codec.decode(golden("reward")) == golden_event(Reward), "committed ids need no registry"
    for call in (
        codec.prepare,
        lambda: codec.encode(golden_event(Reward)),
        lambda: codec.decode(HEADER.pack(0, 7) + b"x"),
    ):
        with pytest.raises(RegistryUnavailableError) as caught:
            call()
        assert caught.value.retriable


@pytest.mark.parametrize("kind", EVENT_TYPES, ids=lambda kind: kind.__name__)
def test_what_an_older_writer_did_not_know_gets_the_default_of_the_dataclass(kind: type[Any]) -> None:
    definition = latest(RECORDS[kind]).definition
    defaulted = [field["name"] for field in definition["fields"] if "default" in field]
    definition["fields"] = [field for field in definition["fields"] if "default" not in field]
    event = golden_event(kind)
    required = {f.name: getattr(event, f.name) for f in dataclasses.fields(kind) if f.name not in defaulted}
    assert Codec(Registry(definition)).decode(_write(definition, event)) == kind(**required)


def _write(definition: dict[str, Any], event: Event, **more: Any) -> bytes:
    body = BytesIO()
    schemaless_writer(body, parse_schema(definition), dataclasses.asdict(event) | more)
    return HEADER.pack(0, 7) + body.getvalue()


PINNED = [schema for schema in all_schemas() if schema != latest(schema.record)]


@pytest.mark.parametrize("pinned", PINNED, ids=lambda schema: f"{schema.record}-v{schema.version}")
def test_a_pinned_version_is_written_as_its_readers_would_have_read_the_newest(pinned: Schema) -> None:
    kind = next(kind for kind, record in RECORDS.items() if record == pinned.record)
    newest = golden(pinned.record, latest(pinned.record).version)
    codec = Codec(write_versions={pinned.record: pinned.version})
    data = codec.encode(CODEC.decode(newest))
    assert data[:5] == HEADER.pack(0, pinned.schema_id)
    parsed = parse_schema(pinned.definition)
    expected = schemaless_reader(BytesIO(newest[5:]), parse_schema(latest(pinned.record).definition), parsed)
    assert schemaless_reader(BytesIO(data[5:]), parsed) == expected
    # What it was written with before comes out of it byte by byte.
    assert codec.encode(golden_event(kind, pinned.version)) == golden(pinned.record, pinned.version)
    other = next(kind for kind in EVENT_TYPES if RECORDS[kind] not in {schema.record for schema in PINNED})
    assert codec.encode(golden_event(other)) == golden(RECORDS[other])


def test_a_symbol_that_a_pinned_version_lacks_becomes_its_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """As readers of that version would take it, so that a newer role's name cannot stop a rolling upgrade."""
    older = load_schema("node", 1)
    definition = older.definition
    role = next(field for field in definition["fields"] if field["name"] == "role")
    role["type"]["symbols"].remove("learner")
    monkeypatch.setattr(
        "distrl.core.codec.load_schema", lambda *_: dataclasses.replace(older, text=json.dumps(definition))
    )
    codec = Codec(write_versions={"node": 1})
    event = dataclasses.replace(golden_event(NodeStatus), role="learner")
    read = schemaless_reader(BytesIO(codec.encode(event)[5:]), parse_schema(definition))
    assert read["role"] == "supervisor"


@pytest.mark.parametrize(
    ("versions", "reason"),
    [
        ({"reward": 99}, "reward has no version 99; there is 1"),
        ({"node": 0}, "node has no version 0; there is 1, 2"),
        ({"banana": 1}, "no record 'banana'"),
    ],
)
def test_only_committed_versions_can_be_pinned(versions: dict[str, int], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        Codec(write_versions=versions)


# --- the schema in the headers --------------------------------------------------------------------


def test_an_id_in_the_headers_replaces_the_frame() -> None:
    data = golden("reward")
    other = ("ce_id", b"x")
    assert CODEC.decode(data, Reward, (other,)) == golden_event(Reward)
    assert CODEC.decode(data[5:], Reward, (other, ("__value_schema_id", data[:5]))) == golden_event(Reward)
    assert CODEC.decode(data[5:], headers=(("apicurio.value.contentId", bytes(4) + data[1:5]),)) == golden_event(Reward)
    with pytest.raises(UnknownSchemaError, match="00000000-0000-0000-0000-000000000007"):
        CODEC.decode(data[5:], headers=(("__value_schema_id", b"\x01" + bytes(15) + b"\x07"),))
    with pytest.raises(UnknownSchemaError, match="00000000-0000-0000-0000-000000000007"):
        CODEC.decode(b"\x01" + bytes(15) + b"\x07" + data[5:])


@pytest.mark.parametrize(
    "header",
    [
        ("__value_schema_id", b""),
        ("__value_schema_id", b"\x00\x00"),
        ("__value_schema_id", golden("reward")[:5] + b"\x00"),
        ("__value_schema_id", b"\x01" + bytes(15)),
        ("__value_schema_id", b"\x02" + bytes(16)),
        ("apicurio.value.contentId", bytes(4)),
        ("apicurio.value.contentId", b"\xff" * 8),
    ],
)
def test_a_header_that_names_no_schema_is_refused(header: tuple[str, bytes]) -> None:
    with pytest.raises(CodecError):
        CODEC.decode(golden("reward")[5:], headers=(header,))


# --- what is refused ----------------------------------------------------------------------------


def test_another_event_than_expected_is_refused() -> None:
    with pytest.raises(InvalidEventError, match="a Reward where Trajectory, Priority is due"):
        CODEC.decode(golden("reward"), (Trajectory, Priority))
    with pytest.raises(InvalidEventError, match="a Reward where Feedback is due"):
        CODEC.decode(golden("reward"), Feedback)


def test_an_unknown_id_is_named() -> None:
    with pytest.raises(UnknownSchemaError, match="schema id 7 "):
        CODEC.decode(HEADER.pack(0, 7) + b"body")
    with pytest.raises(UnknownSchemaError, match="schema id 8 is not registered"):
        Codec(Registry({})).decode(HEADER.pack(0, 8) + b"body")


@pytest.mark.parametrize(
    ("definition", "reason"),
    [
        ({"type": "record", "name": "Bill", "fields": []}, "Bill, which is not an event"),
        ({"type": "nonsense"}, "cannot be used"),
        ({}, "cannot be used"),
        (
            {
                "type": "record",
                "name": "distrl.Reward",
                "fields": [{"name": "a", "type": {"type": "array", "items": "null"}}],
            },
            "take no bytes",
        ),
        (
            {
                "type": "record",
                "name": "distrl.Reward",
                "fields": [{"name": "next", "type": ["null", "distrl.Reward"]}],
            },
            "contains itself",
        ),
    ],
)
def test_a_registered_schema_that_is_unfit_is_refused(definition: dict[str, Any], reason: str) -> None:
    with pytest.raises(CodecError, match=reason):
        Codec(Registry(definition)).decode(HEADER.pack(0, 7) + b"\x02" * 20)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "0 bytes"),
        (b"\x00\x00\x00", "3 bytes"),
        (b'{"json": true}', "starts with byte 0x7b"),
        (golden("reward")[:-1], "not a Reward"),
        (golden("reward") + b"\x00", "1 bytes follow"),
    ],
)
def test_bytes_that_are_no_event_are_refused(data: bytes, reason: str) -> None:
    with pytest.raises(CodecError, match=reason):
        CODEC.decode(data)


REWARD = golden_event(Reward)
TRAJECTORY = golden_event(Trajectory)


@pytest.mark.parametrize(
    "event",
    [
        dataclasses.replace(REWARD, success=1.5),
        dataclasses.replace(REWARD, success=math.nan),
        dataclasses.replace(REWARD, trajectory_id=""),
        dataclasses.replace(REWARD, envelope=Envelope("", "run", "node", 1)),
        dataclasses.replace(golden_event(Priority), priority=math.inf),
        dataclasses.replace(golden_event(Priority), priority=-0.5),
        dataclasses.replace(golden_event(Priority), priority=math.nan),
        dataclasses.replace(golden_event(Feedback), mean_abs_td=math.nan),
        dataclasses.replace(golden_event(WeightsUpdate), version=-1),
        dataclasses.replace(golden_event(WeightsUpdate), allowance=-2),
        dataclasses.replace(golden_event(WeightsUpdate), policy=""),
        *(dataclasses.replace(golden_event(WeightsUpdate), options=text) for text in ("", "no JSON", "[]", "[" * 5000)),
        dataclasses.replace(golden_event(NodeStatus), envelope=Envelope("id", "run", "", 1)),
        dataclasses.replace(TRAJECTORY, environment_outcome=2.0),
        dataclasses.replace(TRAJECTORY, horizon=-1),
        *(
            dataclasses.replace(TRAJECTORY, steps=(dataclasses.replace(TRAJECTORY.steps[0], **{name: value}),))
            for name, value in {
                "log_prob": -math.inf,
                "entropy": math.nan,
                "value": math.inf,
                "token_log_probs": (-1.0, math.nan),
            }.items()
        ),
    ],
)
def test_a_value_out_of_range_is_neither_written_nor_read(event: Event, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidEventError):
        CODEC.encode(event)
    with monkeypatch.context() as patch:
        patch.setattr("distrl.core.codec.check", lambda event: None)
        data = CODEC.encode(event)
    with pytest.raises(InvalidEventError):
        CODEC.decode(data)


@pytest.mark.parametrize(
    "event",
    [
        dataclasses.replace(REWARD, reason=7),
        dataclasses.replace(REWARD, reason="\ud800"),
        dataclasses.replace(REWARD, split="validation"),
        dataclasses.replace(REWARD, success="1"),
        dataclasses.replace(TRAJECTORY, seed=2**63),
        dataclasses.replace(TRAJECTORY, steps=None),
        dataclasses.replace(TRAJECTORY, final_observation="x"),
        dataclasses.replace(TRAJECTORY, attributes={1: "x"}),
        "not an event",
        None,
    ],
)
def test_a_value_of_the_wrong_type_is_not_written(event: Any) -> None:
    with pytest.raises(CodecError):
        CODEC.encode(event)


def test_a_field_that_the_schema_lacks_is_not_written() -> None:
    codec = Codec()
    definition = latest("reward").definition
    definition["fields"].pop()
    codec._writer(Reward).newest = parse_schema(definition)
    with pytest.raises(CodecError, match="split"):
        codec.encode(REWARD)


# --- hostile bytes ------------------------------------------------------------------------------


def _survives(data: bytes) -> None:
    try:
        event = CODEC.decode(data)
    except CodecError:
        return
    assert isinstance(event, EVENT_TYPES)


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=300), st.sampled_from([schema.schema_id for schema in all_schemas()]))
def test_random_bodies_raise_codec_errors_only(body: bytes, schema_id: int) -> None:
    _survives(HEADER.pack(0, schema_id) + body)
    _survives(body)


@pytest.mark.parametrize("kind", EVENT_TYPES, ids=lambda kind: kind.__name__)
def test_mutated_bytes_raise_codec_errors_only(kind: type[Any]) -> None:
    """2,000 seeded mutations an event: bytes changed, cut out, doubled, and huge numbers put in."""
    generator = random.Random(RECORDS[kind])
    data = golden(RECORDS[kind])
    huge = [_varint(2**62), _varint(2**31), _varint(-(2**62)), _varint(-1), b"\xff" * 12, b"\xff" * 9 + b"\x01"]
    for _ in range(2000):
        mutated = bytearray(data)
        for _ in range(generator.randint(1, 4)):
            place = generator.randrange(5, len(mutated))
            match generator.randrange(4):
                case 0:
                    mutated[place] = generator.randrange(256)
                case 1:
                    del mutated[place : place + generator.randint(1, 8)]
                case 2:
                    mutated[place:place] = mutated[place : place + generator.randint(1, 8)]
                case 3:
                    mutated[place : place + generator.randint(0, 2)] = generator.choice(huge)
            if len(mutated) < 8:
                break
        _survives(bytes(mutated))


def _varint(number: int) -> bytes:
    """Avro's zig-zag encoding of a long."""
    number = (number << 1) ^ (number >> 63)
    number &= 2**64 - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


@pytest.mark.parametrize("claimed", [2**62, 2**40, 2**31, -(2**62), -(2**63), -1])
def test_a_claimed_size_takes_no_memory(claimed: int) -> None:
    """Every place of a trajectory gets a huge count or length in turn; what decoding takes stays small."""
    data = golden("trajectory")
    CODEC.decode(data)
    tracemalloc.start()
    try:
        for place in range(5, len(data)):
            _survives(data[:place] + _varint(claimed) + data[place + 1 :])
            _survives(data[:place] + _varint(claimed))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2_000_000


def test_what_many_small_items_take_is_bounded_by_their_bytes() -> None:
    count = 200_000
    step = StepRecord(TRAJECTORY.steps[0].observation, "wait", tuple([0] * count))
    data = CODEC.encode(dataclasses.replace(TRAJECTORY, steps=(step,)))
    tracemalloc.start()
    try:
        assert len(CODEC.decode(data, Trajectory).steps[0].action_tokens) == count
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 * len(data)


# --- keys, topics, ids --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "topic", "key"),
    [
        (Trajectory, "trajectories", b"t-1"),
        (Reward, "rewards", b"t-1"),
        (Priority, "priorities", b"t-1"),
        (Feedback, "feedback", b"t-1"),
        (WeightsUpdate, "weights", b"factored"),
        (NodeStatus, "nodes", b"collector-1"),
        (Metrics, "metrics", b"collector-1"),
        (DeadLetter, "dead-letters", b"t-1"),
    ],
)
def test_topic_and_key_of_every_event(kind: type[Any], topic: str, key: bytes) -> None:
    event = golden_event(kind)
    assert event_topic(event) == topic
    assert topic in ALL
    assert event_key(event) == key


def test_a_dead_letter_of_a_record_without_key_has_one() -> None:
    assert event_key(dataclasses.replace(golden_event(DeadLetter), key=None)) == b"d-1"


def test_derived_ids_depend_on_the_parts_alone() -> None:
    assert derived_id("t-1", "state", "1") == derived_id("t-1", "state", "1") == "509890f1af65e22549d3b9f826c82e3f"
    assert derived_id("ab", "c") != derived_id("a", "bc")
    assert derived_id("a") != derived_id("a", "")


def test_the_frame_is_confluents() -> None:
    magic, schema_id = struct.unpack(">bI", golden("reward")[:5])
    assert magic == 0
    assert schema_id == lock.schema_id(latest("reward").definition)
