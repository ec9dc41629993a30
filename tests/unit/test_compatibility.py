"""Which schemas read each other: the check says what a real reader then does, and the committed ones do."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from fastavro import parse_schema, schemaless_reader, schemaless_writer

from distrl.core.cli import exit
from distrl.core.cli.main import command
from distrl.schemas import Schema, all_schemas, latest, load_schema, lock
from distrl.schemas.compatibility import conflicts, lock_states, unreadable


def record(*fields: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "namespace": "test", "fields": list(fields), **more}


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def enum(*symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "E", "namespace": "test", "symbols": list(symbols), **more}


A = field("a", "long")
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], bool]] = {
    # reader, writer, what is written, whether it can be read
    "the same": (record(A), record(A), {"a": 1}, True),
    "a field more with a default": (record(A, field("b", "string", default="")), record(A), {"a": 1}, True),
    "a field more without one": (record(A, field("b", "string")), record(A), {"a": 1}, False),
    "a field less": (record(A), record(A, field("b", "string")), {"a": 1, "b": "x"}, True),
    "another order": (record(A, field("b", "string")), record(field("b", "string"), A), {"a": 1, "b": "x"}, True),
    "a field by its alias": (record(field("c", "long", aliases=["a"])), record(A), {"a": 1}, True),
    "another type": (record(field("a", "string")), record(A), {"a": 1}, False),
    "int to long": (record(A), record(field("a", "int")), {"a": 1}, True),
    "long to int": (record(field("a", "int")), record(A), {"a": 1}, False),
    "long to double": (record(field("a", "double")), record(A), {"a": 1}, True),
    "string to bytes": (record(field("a", "bytes")), record(field("a", "string")), {"a": "x"}, True),
    "one branch of a union": (record(field("a", ["null", "long"])), record(A), {"a": 1}, True),
    "a union to its branch": (record(A), record(field("a", ["null", "long"])), {"a": None}, False),
    "a union that lacks a branch": (
        record(field("a", ["null", "long"])),
        record(field("a", ["null", "long", "string"])),
        {"a": "x"},
        False,
    ),
    "a symbol more, with a default": (
        record(field("a", enum("x", default="x"))),
        record(field("a", enum("x", "y"))),
        {"a": "y"},
        True,
    ),
    "a symbol more, without one": (
        record(field("a", enum("x"))),
        record(field("a", enum("x", "y"))),
        {"a": "y"},
        False,
    ),
    "an array of what cannot be read": (
        record(field("a", {"type": "array", "items": "string"})),
        record(field("a", {"type": "array", "items": "long"})),
        {"a": [1]},
        False,
    ),
    "a map of what can": (
        record(field("a", {"type": "map", "values": "double"})),
        record(field("a", {"type": "map", "values": "int"})),
        {"a": {"k": 1}},
        True,
    ),
    "a field more inside a record": (
        record(field("a", record(A, field("b", "long", default=0), name="I"))),
        record(field("a", record(A, name="I"))),
        {"a": {"a": 1}},
        True,
    ),
    "a needed field more inside a record": (
        record(field("a", record(A, field("b", "long"), name="I"))),
        record(field("a", record(A, name="I"))),
        {"a": {"a": 1}},
        False,
    ),
    "another size": (
        record(field("a", {"type": "fixed", "name": "F", "size": 2})),
        record(field("a", {"type": "fixed", "name": "F", "size": 3})),
        {"a": b"abc"},
        False,
    ),
}


@pytest.mark.parametrize(("reader", "writer", "datum", "fits"), CASES.values(), ids=CASES)
def test_the_check_says_what_a_reader_does(
    reader: dict[str, Any], writer: dict[str, Any], datum: dict[str, Any], fits: bool
) -> None:
    why = unreadable(json.dumps(reader), json.dumps(writer))
    assert (why == "") is fits, why
    body = BytesIO()
    schemaless_writer(body, parse_schema(writer), datum)
    body.seek(0)
    if fits:
        schemaless_reader(body, parse_schema(writer), parse_schema(reader))
    else:
        with pytest.raises(Exception, match=r".") as caught:
            schemaless_reader(body, parse_schema(writer), parse_schema(reader))
        assert caught.typename in ("SchemaResolutionError", "ValueError", "OverflowError")


def changed(schema: Schema, definition: dict[str, Any]) -> Schema:
    return Schema(schema.record, schema.version + 1, 0, schema.name, json.dumps(definition))


def test_every_committed_version_reads_every_other() -> None:
    assert {schema.record: list(conflicts(schema)) for schema in all_schemas() if list(conflicts(schema))} == {}


def test_both_directions_and_all_versions_are_looked_at() -> None:
    first = load_schema("reward", 1)
    needs = first.definition
    needs["fields"].append(field("mood", "string", doc="x"))
    second = changed(first, needs)
    [why] = conflicts(second, [first, second])
    assert why.startswith("version 2 cannot read version 1: reader_field_missing_default_value at /fields/")
    assert "mood" in why
    lacks = first.definition
    lacks["fields"] = [entry for entry in lacks["fields"] if entry["name"] != "success"]
    second = changed(first, lacks)
    third = changed(second, first.definition)
    [why] = conflicts(second, [first, second, third])
    assert why.startswith("version 1 cannot read version 2")
    [why] = conflicts(third, [first, second, third])
    assert why.startswith("version 3 cannot read version 2")


def test_an_edited_a_deleted_and_a_new_file_are_named(tmp_path: Path) -> None:
    for schema in all_schemas():
        file = tmp_path / schema.record / f"v{schema.version}.avsc"
        file.parent.mkdir(exist_ok=True)
        file.write_text(schema.text, encoding="utf-8")
    lock.main(tmp_path)
    assert lock_states(tmp_path) == {}
    file = tmp_path / "reward" / "v1.avsc"
    file.write_text(file.read_text(encoding="utf-8").replace("Why, for people to read", "Why"), encoding="utf-8")
    (tmp_path / "node" / "v2.avsc").unlink()
    (tmp_path / "reward" / "v2.avsc").write_text(latest("reward").text, encoding="utf-8")
    assert lock_states(tmp_path) == {
        "reward/v1.avsc": "edited",
        "node/v2.avsc": "deleted",
        "reward/v2.avsc": "not locked",
    }


def test_the_command_shows_every_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit.run(command, ["schemas", "check", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["record"], row["version"], row["id"], row["subject"]) for row in rows] == [
        (schema.record, schema.version, schema.schema_id, schema.name) for schema in all_schemas()
    ]
    assert {row["state"] for row in rows} == {"compatible"}


def test_the_command_fails_over_an_edited_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = lock.entries()
    entries["reward/v1.avsc"] = {"sha256": "0", "id": 1}
    monkeypatch.setattr(lock, "entries", lambda _folder: entries)
    assert exit.run(command, ["schemas", "check"]) == 2
    assert "error [DISTRL-212]: reward/v1.avsc is edited." in capsys.readouterr().err


def test_the_command_fails_over_versions_that_do_not_fit(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load_schema("reward", 1)
    definition = first.definition
    definition["fields"].append(field("mood", "string", doc="x"))
    both = (first, changed(first, definition))
    for module in ("distrl.schemas", "distrl.schemas.compatibility"):
        monkeypatch.setattr(f"{module}.all_schemas", lambda: both)
    assert exit.run(command, ["schemas", "check"]) == 2
    assert "reward version 2 cannot read version 1" in capsys.readouterr().err
