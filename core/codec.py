"""Events to bytes and back: Avro in Confluent's frame (0x00, schema id in 4 big-endian bytes, Avro body). Used by ``core.runtime``
and the tools, for every record on the log.

An event is written with the newest committed schema of its record, or the version that the configuration names, and read
with the newest, whatever version it was written with. Bytes come from other machines, so nothing but a ``CodecError`` comes out
of any bytes (or a ``RegistryError``, if a registry must be asked and cannot be), and the memory that decoding takes is bounded by
their number.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from io import BytesIO
from typing import Any, TypeVar, overload
from uuid import UUID

from fastavro import parse_schema, schemaless_reader, schemaless_writer
from fastavro.schema import to_parsing_canonical_form

from distrl.core.contracts.bus import Headers
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
from distrl.core.contracts.registry import SchemaRegistry
from distrl.core.conversion import Convert, from_record, to_record
from distrl.core.errors import CodecError, ConfigError, InvalidEventError, UnknownSchemaError
from distrl.core.rule import check
from distrl.schemas import Schema, all_schemas, latest, load_schema
from distrl.schemas.registration import registered_id

__all__ = ["RECORDS", "Codec", "derived_id", "event_key", "event_topic"]

MAGIC = 0
HEADER = struct.Struct(">BI")
GUID_MAGIC = 1
GUID_BYTES = 16
SCHEMA_ID_HEADER = "__value_schema_id"
"""Where Confluent's serializers put the frame if not before the value."""
CONTENT_ID_HEADER = "apicurio.value.contentId"
"""Where Apicurio's serializers put the id, in 8 big-endian bytes; it is the id that its Confluent-compatible API knows."""
CONTENT_ID = struct.Struct(">Q")

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


SchemaKey = int | UUID
"""What names a schema: an id of the registry (or the committed one), or an id that is unique over registries."""


class _Reader:
    """How to read what was written with one schema."""

    __slots__ = ("build", "newest", "type", "written")

    def __init__(self, kind: type[Event], written: Parsed, newest: Parsed | None) -> None:
        self.type = kind
        self.build = from_record(kind)
        self.written = written
        self.newest = newest
        """``None`` when it is what was written: no resolution is needed then."""


class _Writer:
    """How to write one record: in one go with its newest version, or reduced to the version that is pinned."""

    __slots__ = ("convert", "frame", "newest", "pinned")

    def __init__(self, frame: bytes, convert: Convert, newest: Parsed, pinned: Parsed | None) -> None:
        self.frame = frame
        self.convert = convert
        self.newest = newest
        self.pinned = pinned
        """``None`` when the newest is written."""

    def write(self, event: Event) -> bytes:
        body = BytesIO(self.frame if self.pinned is None else b"")
        body.seek(0, 2)
        schemaless_writer(body, self.newest, self.convert(event), strict=True)
        if self.pinned is None:
            return body.getvalue()
        # What a reader of the pinned version would make of the newest: fields dropped, unknown symbols replaced by their default.
        body.seek(0)
        reduced = schemaless_reader(body, self.newest, self.pinned)
        body = BytesIO(self.frame)
        body.seek(0, 2)
        schemaless_writer(body, self.pinned, reduced, strict=True)
        return body.getvalue()


class Codec:
    """Encodes and decodes events. Safe for use by several threads.

    Without a registry the id in a frame is the committed one and only committed schemas can be read. With one, ids are the registry's;
    committed ids are read all the same, for records from before it.
    """

    def __init__(
        self,
        registry: SchemaRegistry | None = None,
        *,
        write_versions: Mapping[str, int] | None = None,
        register_missing: bool = True,
    ) -> None:
        """``write_versions``: by record, the version to write in place of the newest. ``register_missing``: register what is to be
        written and not there. Nothing is asked of the registry yet. Raises ``ConfigError`` for a version that is not committed."""
        self._registry = registry
        self._register_missing = register_missing
        self._written = _written_schemas(write_versions or {})
        self._newest: dict[str, tuple[type[Event], Parsed]] = {}
        self._writers: dict[type[Event], _Writer] = {}
        self._readers: dict[SchemaKey, _Reader] = {}
        self._committed: dict[str, _Reader] = {}
        """By canonical form: what the registry gives is most often a committed schema in other words."""
        for kind, record in RECORDS.items():
            schema = latest(record)
            self._newest[schema.name] = (kind, parse_schema(schema.definition))
        for committed in all_schemas():
            kind, newest = self._newest[committed.name]
            parsed = parse_schema(committed.definition)
            reader = _Reader(kind, parsed, None if parsed == newest else newest)
            self._readers[committed.schema_id] = reader
            self._committed[to_parsing_canonical_form(parsed)] = reader

    def prepare(self) -> None:
        """Ask the registry, once, for the ids of all that this codec writes, so that encoding never waits for it.

        Raises what the registry's calls raise, ``RegistryError`` for a schema that is missing and may not be registered.
        """
        for kind in RECORDS:
            self._writer(kind)

    def encode(self, event: Event) -> bytes:
        """The framed bytes of ``event``.

        Raises ``InvalidEventError`` for a value out of range, ``CodecError`` for a value of the wrong type, and a ``RegistryError`` if the
        registry must be asked for the id and does not tell (see ``prepare``).
        """
        writer = self._writers.get(type(event)) or self._writer(type(event))
        try:
            check(event)
            return writer.write(event)
        except CodecError:
            raise
        except Exception as error:
            raise CodecError(f"{type(event).__name__} does not fit its schema: {_reason(error)}") from error

    @overload
    def decode(self, data: bytes | memoryview, *, headers: Headers = ...) -> Event: ...
    @overload
    def decode(self, data: bytes | memoryview, expect: type[T], headers: Headers = ...) -> T: ...
    @overload
    def decode(self, data: bytes | memoryview, expect: tuple[type[T], ...], headers: Headers = ...) -> T: ...
    def decode(
        self, data: bytes | memoryview, expect: type[Any] | tuple[type[Any], ...] | None = None, headers: Headers = ()
    ) -> Any:
        """The event that ``data`` holds, which must be an ``expect``. ``headers`` are the record's: if they name the schema,
        ``data`` has no frame.

        Raises ``UnknownSchemaError`` for a schema id that cannot be resolved, ``InvalidEventError`` for another event than
        expected or a value out of range, ``CodecError`` for whatever else is wrong with the bytes, ``RegistryUnavailableError`` (retriable) if
        the registry must be asked and is away.
        """
        key, start = _schema_of(data, headers)
        reader = self._readers.get(key) or self._resolve(key)
        if expect is not None and not issubclass(reader.type, expect):
            expected = expect if isinstance(expect, tuple) else (expect,)
            raise InvalidEventError(f"a {reader.type.__name__} where {_names(expected)} is due")
        body = BytesIO(data)
        body.seek(start)
        try:
            event: Event = reader.build(schemaless_reader(body, reader.written, reader.newest))
        except Exception as error:
            raise CodecError(f"not a {reader.type.__name__}: {_reason(error)}") from error
        if body.tell() != len(data):
            raise CodecError(f"{len(data) - body.tell()} bytes follow the {reader.type.__name__}")
        check(event)
        return event

    def _writer(self, kind: type[Event]) -> _Writer:
        """Made when it is needed first: a reader's codec asks the registry for no id to write."""
        try:
            schema = self._written[kind]
        except KeyError:
            raise CodecError(f"{kind.__name__} is not an event; events are {_names(RECORDS)}") from None
        _, newest = self._newest[schema.name]
        schema_id = schema.schema_id
        pinned = None if schema == latest(schema.record) else parse_schema(schema.definition)
        if self._registry is not None:
            schema_id = registered_id(self._registry, schema, register_missing=self._register_missing)
            self._readers[schema_id] = self._committed[to_parsing_canonical_form(pinned or newest)]
        writer = self._writers[kind] = _Writer(HEADER.pack(MAGIC, schema_id), to_record(kind), newest, pinned)
        return writer

    def _resolve(self, key: SchemaKey) -> _Reader:
        if self._registry is None:
            raise UnknownSchemaError(
                f"schema id {key} is not one of the committed schemas, and no [registry] is configured"
            )
        definition = self._registry.schema(key) if isinstance(key, int) else self._registry.schema_by_guid(key)
        try:
            parsed: Parsed = parse_schema(_without_logical_types(definition))
            name = parsed["name"]
            _refuse_amplification(parsed)
            committed = self._committed.get(to_parsing_canonical_form(parsed))
        except Exception as error:
            raise CodecError(f"schema id {key} cannot be used: {_reason(error)}") from error
        if name not in self._newest:
            raise UnknownSchemaError(f"schema id {key} is that of {name}, which is not an event")
        kind, newest = self._newest[name]
        reader = self._readers[key] = committed or _Reader(kind, parsed, newest)
        return reader


def _without_logical_types(node: Any) -> Any:
    """A schema that is read as the numbers, bytes and texts which it writes: fastavro would make dates and decimals of them, which no
    event holds."""
    if isinstance(node, Mapping):
        return {name: _without_logical_types(value) for name, value in node.items() if name != "logicalType"}
    if isinstance(node, list):
        return [_without_logical_types(value) for value in node]
    return node


def _written_schemas(versions: Mapping[str, int]) -> dict[type[Event], Schema]:
    """What is written of each record: the version that is pinned, else the newest."""
    unknown = sorted(set(versions) - set(RECORDS.values()))
    if unknown:
        raise ConfigError(f"registry.write_versions: no record {unknown[0]!r}; there are {', '.join(RECORDS.values())}")
    written: dict[type[Event], Schema] = {}
    for kind, record in RECORDS.items():
        try:
            written[kind] = load_schema(record, versions[record]) if record in versions else latest(record)
        except UnknownSchemaError:
            committed = [str(schema.version) for schema in all_schemas() if schema.record == record]
            raise ConfigError(
                f"registry.write_versions: {record} has no version {versions[record]}; there is {', '.join(committed)}"
            ) from None
    return written


def _schema_of(data: bytes | memoryview, headers: Headers) -> tuple[SchemaKey, int]:
    """Which schema a value was written with, and where in it the Avro bytes begin."""
    for name, value in headers:
        if name == SCHEMA_ID_HEADER:
            key, size = _frame(value, f"the header {name}")
            if size != len(value):
                raise CodecError(f"{len(value) - size} bytes follow the schema id in the header {name}")
            return key, 0
        if name == CONTENT_ID_HEADER:
            if len(value) != CONTENT_ID.size:
                raise CodecError(f"the header {name} has {len(value)} bytes, not {CONTENT_ID.size}")
            return CONTENT_ID.unpack(value)[0], 0
    return _frame(data, "an event")


def _frame(data: bytes | memoryview, what: str) -> tuple[SchemaKey, int]:
    """The schema that a frame names, and the frame's size."""
    magic = data[0] if data else MAGIC
    size = 1 + GUID_BYTES if magic == GUID_MAGIC else HEADER.size
    if magic not in (MAGIC, GUID_MAGIC):
        raise CodecError(f"{what} without a frame: it starts with byte {magic:#04x}, not 0x00 or 0x01")
    if len(data) < size:
        raise CodecError(f"{len(data)} bytes are too few for the frame of {what}")
    if magic == GUID_MAGIC:
        return UUID(bytes=bytes(data[1:size])), size
    return HEADER.unpack_from(data)[1], size


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
