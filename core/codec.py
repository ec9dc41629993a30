"""Events to bytes and back: Avro in Confluent's frame (0x00, schema id in 4 big-endian bytes, Avro body). Used by ``core.runtime``
and the tools, for every record on the log.

An event is written with the newest committed schema of its record and read with it too, whatever version
it was written with. Bytes come from other machines, so nothing but a ``CodecError`` comes out of any bytes, and the memory
that decoding takes is bounded by their number.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from io import BytesIO
from typing import Any, Protocol, TypeVar, overload

from fastavro import parse_schema, schemaless_reader, schemaless_writer

from distrl.core.contracts.events import (
    DeadLetter,
    Event,
    Feedback,
    Metrics,
    NodeStatus,
    Priority,
    Reward,
    Trajectory,
    WeightsUpdate,
)
from distrl.core.contracts.identity import derived_id, event_key, event_topic
from distrl.core.conversion import from_record, to_record
from distrl.core.errors import CodecError, InvalidEventError, UnknownSchemaError
from distrl.core.rule import check
from distrl.schemas import Schema, all_schemas, latest

__all__ = ["RECORDS", "Codec", "SchemaResolver", "derived_id", "event_key", "event_topic"]

MAGIC = 0
HEADER = struct.Struct(">BI")

RECORDS: dict[type[Event], str] = {
    Trajectory: "trajectory",
    Reward: "reward",
    Priority: "priority",
    Feedback: "feedback",
    WeightsUpdate: "weights",
    NodeStatus: "node",
    Metrics: "metrics",
    DeadLetter: "dead_letter",
}
"""Which schema folder belongs to which event class."""

T = TypeVar("T")
Parsed = Any
"""A schema as fastavro's ``parse_schema`` returns it."""


class SchemaResolver(Protocol):
    """Finds the schemas of writers that are newer than this package. Implemented by a registry's connector."""

    def schema(self, schema_id: int) -> Mapping[str, Any]:
        """The schema as JSON. Raises ``UnknownSchemaError`` for an id that nobody registered."""


class _Reader:
    """How to read what was written with one schema."""

    __slots__ = ("build", "newest", "type", "written")

    def __init__(self, kind: type[Event], written: Parsed, newest: Parsed | None) -> None:
        self.type = kind
        self.build = from_record(kind)
        self.written = written
        self.newest = newest
        """``None`` when it is what was written: no resolution is needed then."""


class Codec:
    """Encodes and decodes events. Immutable but for a cache of schemas; safe for use by several threads.

    Ids of committed schemas are known; others are asked of ``resolver``.
    """

    def __init__(self, resolver: SchemaResolver | None = None) -> None:
        self._resolver = resolver
        self._newest: dict[str, tuple[type[Event], Parsed]] = {}
        self._writers: dict[type[Event], tuple[bytes, Parsed, Any]] = {}
        self._readers: dict[int, _Reader] = {}
        for kind, record in RECORDS.items():
            schema = latest(record)
            parsed = parse_schema(schema.definition)
            self._newest[schema.name] = (kind, parsed)
            self._writers[kind] = (HEADER.pack(MAGIC, schema.schema_id), parsed, to_record(kind))
        for committed in all_schemas():
            self._readers[committed.schema_id] = self._committed(committed)

    def encode(self, event: Event) -> bytes:
        """The framed bytes of ``event``.

        Raises ``InvalidEventError`` for a value out of range and ``CodecError`` for a value of the wrong type.
        """
        try:
            header, parsed, convert = self._writers[type(event)]
        except KeyError:
            raise CodecError(f"{type(event).__name__} is not an event; events are {_names(RECORDS)}") from None
        try:
            check(event)
            body = BytesIO()
            body.write(header)
            schemaless_writer(body, parsed, convert(event), strict=True)
        except CodecError:
            raise
        except Exception as error:
            raise CodecError(f"{type(event).__name__} does not fit its schema: {_reason(error)}") from error
        return body.getvalue()

    @overload
    def decode(self, data: bytes | memoryview) -> Event: ...
    @overload
    def decode(self, data: bytes | memoryview, expect: type[T]) -> T: ...
    @overload
    def decode(self, data: bytes | memoryview, expect: tuple[type[T], ...]) -> T: ...
    def decode(self, data: bytes | memoryview, expect: type[Any] | tuple[type[Any], ...] | None = None) -> Any:
        """The event that ``data`` holds, which must be an ``expect``.

        Raises ``UnknownSchemaError`` for a schema id that cannot be resolved, ``InvalidEventError`` for another event than
        expected or a value out of range, ``CodecError`` for whatever else is wrong with the bytes.
        """
        if len(data) < HEADER.size:
            raise CodecError(f"{len(data)} bytes are too few for a framed event")
        magic, schema_id = HEADER.unpack_from(data)
        if magic != MAGIC:
            raise CodecError(f"not a framed event: it starts with byte {magic:#04x}, not 0x00")
        reader = self._readers.get(schema_id) or self._resolve(schema_id)
        if expect is not None and not issubclass(reader.type, expect):
            expected = expect if isinstance(expect, tuple) else (expect,)
            raise InvalidEventError(f"a {reader.type.__name__} where {_names(expected)} is due")
        body = BytesIO(data)
        body.seek(HEADER.size)
        try:
            event: Event = reader.build(schemaless_reader(body, reader.written, reader.newest))
        except Exception as error:
            raise CodecError(f"not a {reader.type.__name__}: {_reason(error)}") from error
        if body.tell() != len(data):
            raise CodecError(f"{len(data) - body.tell()} bytes follow the {reader.type.__name__}")
        check(event)
        return event

    def _committed(self, schema: Schema) -> _Reader:
        kind, newest = self._newest[schema.name]
        parsed = parse_schema(schema.definition)
        return _Reader(kind, parsed, None if parsed == newest else newest)

    def _resolve(self, schema_id: int) -> _Reader:
        if self._resolver is None:
            raise UnknownSchemaError(f"schema id {schema_id} is not one of the committed schemas")
        definition = self._resolver.schema(schema_id)
        try:
            parsed: Parsed = parse_schema(dict(definition))
            name = parsed["name"]
            _refuse_amplification(parsed)
        except Exception as error:
            raise CodecError(f"schema id {schema_id} cannot be used: {_reason(error)}") from error
        if name not in self._newest:
            raise UnknownSchemaError(f"schema id {schema_id} is that of {name}, which is not an event")
        kind, newest = self._newest[name]
        reader = self._readers[schema_id] = _Reader(kind, parsed, newest)
        return reader


def _refuse_amplification(schema: Any) -> None:
    """Refuse a foreign schema that lets few bytes stand for much: arrays of items that take no byte, and recursion.

    With those a claimed count of 2**62 items would be read for ever, and nested records overflow the stack.
    """
    named: dict[str, Any] = {}
    open_names: set[str] = set()

    def size(node: Any) -> int:
        """The fewest bytes that a value takes, 0 or 1."""
        if isinstance(node, list):
            for branch in node:
                size(branch)
            return 1
        if isinstance(node, str):
            if node in open_names:
                raise ValueError(f"{node} contains itself")
            return size(named[node]) if node in named else int(node != "null")
        match node["type"]:
            case "record" | "error":
                named[node["name"]] = node
                open_names.add(node["name"])
                total = sum([size(field["type"]) for field in node["fields"]])
                open_names.discard(node["name"])
                return min(total, 1)
            case "array":
                if size(node["items"]) == 0:
                    raise ValueError("an array's items take no bytes")
                return 1
            case "map":
                size(node["values"])
                return 1
            case "fixed":
                named[node["name"]] = node
                return int(node["size"] > 0)
            case "enum":
                named[node["name"]] = node
                return 1
            case inner:
                return size(inner)

    size(schema)


def _names(kinds: Any) -> str:
    return ", ".join(kind.__name__ for kind in kinds)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:300].rstrip(": ")
