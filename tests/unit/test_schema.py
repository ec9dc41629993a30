"""The committed schemas: locked, documented, the same as the dataclasses, and readable by each other."""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from fastavro import parse_schema, schemaless_reader, schemaless_writer

from distrl.core.codec import RECORDS
from distrl.core.contracts.events import EVENT_TYPES
from distrl.core.errors import UnknownSchemaError
from distrl.schemas import Schema, all_schemas, latest, load_schema, lock, records

GOLDEN = Path(__file__).parent / "golden"
PRIMITIVES = {str: "string", int: "long", float: "double", bool: "boolean", bytes: "bytes"}


def nodes(definition: Any) -> Iterator[dict[str, Any]]:
    """Every named type that a schema defines."""
    if isinstance(definition, list):
        for branch in definition:
            yield from nodes(branch)
    elif isinstance(definition, dict):
        if definition["type"] in ("record", "enum"):
            yield definition
        for field in definition.get("fields", ()):
            yield from nodes(field["type"])
        for inner in ("items", "values"):
            if inner in definition:
                yield from nodes(definition[inner])


def pairs() -> list[tuple[Schema, Schema]]:
    return [(writer, reader) for writer in all_schemas() for reader in all_schemas() if writer.record == reader.record]


def test_the_lock_holds_every_file_as_it_is() -> None:
    locked = json.loads((lock.FOLDER / "lock.json").read_text(encoding="utf-8"))
    assert locked == lock.entries(), (
        "a released schema was edited, or a new one is not locked (python -m distrl.schemas.lock)"
    )


def test_ids_are_unique_and_31_bits() -> None:
    ids = [schema.schema_id for schema in all_schemas()]
    assert len(set(ids)) == len(ids)
    assert all(0 <= schema_id < 2**31 for schema_id in ids)


def test_the_lock_refuses_an_edited_file(tmp_path: Path) -> None:
    (tmp_path / "reward").mkdir()
    file = tmp_path / "reward" / "v1.avsc"
    file.write_text(latest("reward").text, encoding="utf-8")
    (tmp_path / "lock.json").write_text(json.dumps(lock.entries(tmp_path)), encoding="utf-8")
    lock.main(tmp_path)
    file.write_text(latest("reward").text.replace("Why, for people to read", "Why"), encoding="utf-8")
    with pytest.raises(SystemExit, match=r"reward/v1\.avsc"):
        lock.main(tmp_path)


def test_every_event_has_a_schema_and_every_schema_an_event() -> None:
    assert set(RECORDS) == set(EVENT_TYPES)
    assert sorted(RECORDS.values()) == list(records())


def test_versions_are_consecutive() -> None:
    for record in records():
        versions = [schema.version for schema in all_schemas() if schema.record == record]
        assert versions == list(range(1, len(versions) + 1))


def test_an_unknown_schema_is_named() -> None:
    with pytest.raises(UnknownSchemaError, match=r"reward/v999\.avsc"):
        load_schema("reward", 999)
    with pytest.raises(UnknownSchemaError, match="'banana'"):
        latest("banana")


@pytest.mark.parametrize("schema", all_schemas(), ids=lambda schema: f"{schema.record}-v{schema.version}")
def test_everything_is_documented_and_every_enum_has_a_default(schema: Schema) -> None:
    for node in nodes(schema.definition):
        assert node["doc"]
        assert node["namespace"] == "distrl"
        if node["type"] == "enum":
            assert node["default"] in node["symbols"]
        for field in node.get("fields", ()):
            assert len(field["doc"]) > 10, f"{node['name']}.{field['name']}"
            if isinstance(field["type"], list):
                assert field["type"][0] == "null"


def test_shared_types_are_the_same_in_every_newest_schema() -> None:
    seen: dict[str, Any] = {}
    for record in records():
        for node in nodes(latest(record).definition):
            if node["type"] == "enum" or node["name"] == "Envelope":
                assert seen.setdefault(node["name"], node) == node


def _expected(hint: Any, default: dict[str, Any]) -> Any:
    """The Avro type that an annotation stands for, named types by their structure."""
    if hint in PRIMITIVES:
        return PRIMITIVES[hint]
    if dataclasses.is_dataclass(hint):
        return {"record": _fields(hint)}
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is tuple:
        return {"array": _expected(arguments[0], default)}
    if origin is dict:
        assert arguments[0] is str
        return {"map": _expected(arguments[1], default)}
    assert origin in (types.UnionType, Union)
    assert arguments[1] is type(None)
    return ["null", _expected(arguments[0], default)]


def _fields(kind: Any) -> list[tuple[str, Any, Any]]:
    hints = get_type_hints(kind)
    return [(field.name, _expected(hints[field.name], {}), _default(field)) for field in dataclasses.fields(kind)]


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return list(field.default) if isinstance(field.default, tuple) else field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return dataclasses.MISSING


def _actual(node: Any, named: dict[str, Any]) -> Any:
    if isinstance(node, list):
        return ["null", _actual(node[1], named)]
    if isinstance(node, str):
        return named.get(node, node)
    match node["type"]:
        case "record":
            result: Any = {
                "record": [
                    (field["name"], _actual(field["type"], named), field.get("default", dataclasses.MISSING))
                    for field in node["fields"]
                ]
            }
        case "enum":
            result = {"enum": node["symbols"]}
        case "array":
            return {"array": _actual(node["items"], named)}
        case "map":
            return {"map": _actual(node["values"], named)}
        case _:
            raise AssertionError(node)
    named[f"distrl.{node['name']}"] = result
    return result


@pytest.mark.parametrize("kind", EVENT_TYPES, ids=lambda kind: kind.__name__)
def test_the_newest_schema_has_the_fields_types_and_defaults_of_its_dataclass(kind: type[Any]) -> None:
    assert _actual(latest(RECORDS[kind]).definition, {}) == {"record": _fields(kind)}


@pytest.mark.parametrize(("writer", "reader"), pairs(), ids=lambda schema: f"{schema.record}-v{schema.version}")
def test_every_version_reads_every_other(writer: Schema, reader: Schema) -> None:
    body = BytesIO((GOLDEN / f"{writer.record}_v{writer.version}.bin").read_bytes()[5:])
    # A property that nobody uses makes the two schemas unequal, so that fastavro resolves even a version with itself.
    resolving = parse_schema(reader.definition | {"aliases": ["distrl.Unused"]})
    read = schemaless_reader(body, parse_schema(writer.definition), resolving)
    again = BytesIO()
    schemaless_writer(again, parse_schema(reader.definition), read, strict=True)
    assert body.read() == b""
    assert again.getvalue()
