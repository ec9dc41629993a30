"""Any event, written with any committed version, is read as itself but for what that version does not know."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distrl.core.codec import HEADER, RECORDS, Codec
from distrl.core.contracts.events import Event, WeightsUpdate
from distrl.core.errors import CodecError
from distrl.schemas import all_schemas, latest

COUNT = st.integers(0, 2**63 - 1)
NAME = st.text(min_size=1, max_size=8)
BOUNDED: dict[str, st.SearchStrategy[Any]] = {
    "success": st.floats(0, 1),
    "environment_outcome": st.none() | st.floats(0, 1),
    "priority": st.floats(0, allow_infinity=False, allow_nan=False),
    "allowance": st.integers(-1, 2**63 - 1),
    "options": st.dictionaries(st.text(max_size=3), st.integers(), max_size=2).map(json.dumps),
    **dict.fromkeys(("epoch", "version", "horizon", "sequence", "ingested"), COUNT),
    **dict.fromkeys(("event_id", "trajectory_id", "node"), NAME),
}


def strategy(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a field's type."""
    origin, arguments = get_origin(hint), get_args(hint)
    if dataclasses.is_dataclass(hint):
        return events(hint)
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is tuple:
        return st.lists(strategy(arguments[0]), max_size=2).map(tuple)
    if origin is dict:
        return st.dictionaries(st.text(max_size=4), strategy(arguments[1]), max_size=2)
    if arguments:
        return st.none() | strategy(arguments[0])
    plain: dict[Any, st.SearchStrategy[Any]] = {
        str: st.text(max_size=8),
        int: st.integers(-(2**63), 2**63 - 1),
        float: st.floats(allow_nan=False, allow_infinity=False),
        bool: st.booleans(),
        bytes: st.binary(max_size=8),
    }
    return plain[hint]


def events(kind: Any) -> st.SearchStrategy[Any]:
    hints = get_type_hints(kind)
    bounded = BOUNDED | ({"policy": NAME} if kind is WeightsUpdate else {})
    return st.builds(
        kind, **{name: bounded[name] if name in bounded else strategy(hint) for name, hint in hints.items()}
    )


OLDER = [schema for schema in all_schemas() if schema != latest(schema.record)]
KINDS = {record: kind for kind, record in RECORDS.items()}


def known(event: Event, names: set[str]) -> Event:
    """The event with what a version without those fields cannot say at its default."""
    unknown = [field for field in dataclasses.fields(event) if field.name not in names]
    defaults = {
        field.name: field.default if field.default is not dataclasses.MISSING else field.default_factory()  # type: ignore[misc]
        for field in unknown
    }
    return dataclasses.replace(event, **defaults)


@pytest.mark.parametrize("schema", OLDER, ids=lambda schema: f"{schema.record}-v{schema.version}")
def test_what_is_written_with_an_older_version_is_read_as_far_as_it_goes(schema: Any) -> None:
    kind = KINDS[schema.record]
    pinned, plain = Codec(write_versions={schema.record: schema.version}), Codec()
    names = {field["name"] for field in schema.definition["fields"]}
    assert names < {field.name for field in dataclasses.fields(kind)}, "a version is more than the one before it"

    @settings(max_examples=60)
    @given(events(kind))
    def holds(event: Any) -> None:
        data = pinned.encode(event)
        assert data[:5] == HEADER.pack(0, schema.schema_id)
        read = plain.decode(data, kind)
        assert read == pinned.decode(data, kind) == known(event, names)
        # Rolled back and forth: written again by the newer, then by the older one, nothing more is lost.
        assert plain.decode(pinned.encode(plain.decode(plain.encode(read), kind)), kind) == read

    holds()


@pytest.mark.parametrize("schema", OLDER, ids=lambda schema: f"{schema.record}-v{schema.version}")
def test_both_versions_on_one_topic_are_told_apart_by_their_frames(schema: Any) -> None:
    newest, plain = latest(schema.record), Codec()
    pinned = Codec(write_versions={schema.record: schema.version})

    @settings(max_examples=30)
    @given(events(KINDS[schema.record]))
    def holds(event: Any) -> None:
        old, new = pinned.encode(event), plain.encode(event)
        assert old[:5] != new[:5] == HEADER.pack(0, newest.schema_id)
        # The one's body under the other's frame is refused or another event, never an error of another kind.
        for data in (old[:5] + new[5:], new[:5] + old[5:]):
            with contextlib.suppress(CodecError):
                plain.decode(data)

    holds()
