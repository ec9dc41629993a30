"""The Avro schemas: one folder a record, one file a version, never edited after release. Read by ``core.codec``.

``<record>/v<N>.avsc`` is self-contained. ``lock.json`` holds each file's SHA-256 and its schema id: the first 31 bits of
the SHA-256 of the schema's parsing canonical form, so that an id means the same everywhere without a server that hands
ids out. ``python -m distrl.schemas.lock`` writes the lock when a version is added; a test refuses an edited one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from distrl.core.errors import UnknownSchemaError


@dataclass(frozen=True, slots=True)
class Schema:
    """One committed version of one record's schema."""

    record: str
    """The folder: ``trajectory``, ``dead_letter``, ..."""
    version: int
    """From 1."""
    schema_id: int
    """What stands in the frame of an event; 31 bits."""
    name: str
    """The Avro full name, which is also the subject in a registry: ``distrl.Trajectory``."""
    text: str
    """The file, as committed."""

    @property
    def definition(self) -> dict[str, Any]:
        """The schema as JSON, a new copy."""
        definition: dict[str, Any] = json.loads(self.text)
        return definition


@cache
def _locked() -> Mapping[str, int]:
    """Schema ids by file, as ``lock.json`` has them."""
    lock = json.loads((resources.files(__name__) / "lock.json").read_text(encoding="utf-8"))
    return {path: entry["id"] for path, entry in lock.items()}


@cache
def all_schemas() -> tuple[Schema, ...]:
    """Every committed schema, by record, then version."""
    keys = [(path.split("/")[0], int(path.split("/v")[1].removesuffix(".avsc"))) for path in _locked()]
    return tuple(load_schema(record, version) for record, version in sorted(keys))


@cache
def load_schema(record: str, version: int) -> Schema:
    """One version of a record's schema. Raises ``UnknownSchemaError`` if it is not committed."""
    path = f"{record}/v{version}.avsc"
    schema_id = _locked().get(path)
    if schema_id is None:
        raise UnknownSchemaError(f"no schema {path}; there are {', '.join(sorted(_locked()))}")
    text = (resources.files(__name__) / record / f"v{version}.avsc").read_text(encoding="utf-8")
    definition = json.loads(text)
    return Schema(record, version, schema_id, f"{definition['namespace']}.{definition['name']}", text)


@cache
def latest(record: str) -> Schema:
    """The newest version of a record's schema: what is written, and what everything is read as."""
    versions = [schema for schema in all_schemas() if schema.record == record]
    if not versions:
        raise UnknownSchemaError(f"no schema of a record {record!r}; there are {', '.join(records())}")
    return versions[-1]


def records() -> tuple[str, ...]:
    """The records that have a schema, in order of name."""
    return tuple(sorted({schema.record for schema in all_schemas()}))
