"""Whether the committed schemas are what was released, and read each other. Called by ``distrl schemas check``, and so by ``make lint``.

The rules are those of the Avro specification ("Schema Resolution"), as Apache's own library has them: aliases, defaults,
defaults of enums, promotions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType
from avro.schema import parse

from distrl.schemas import Schema, all_schemas, lock


def unreadable(reader: str, writer: str) -> str:
    """Why ``reader`` cannot read what ``writer`` wrote (schemas as JSON text); empty if it can."""
    checker = ReaderWriterCompatibilityChecker()  # type: ignore[no-untyped-call]
    result = checker.get_compatibility(parse(reader), parse(writer))
    if result.compatibility is SchemaCompatibilityType.compatible:
        return ""
    kinds = {kind.name for kind in result.incompatibilities}
    return f"{', '.join(sorted(kinds))} at {', '.join(sorted(result.locations))}: {'; '.join(sorted(result.messages))}"


def conflicts(schema: Schema, schemas: Sequence[Schema] | None = None) -> Iterator[str]:
    """Each way in which a version and another one of its record cannot read each other. ``schemas`` default to the committed ones."""
    for other in all_schemas() if schemas is None else schemas:
        if other.record == schema.record and other.version < schema.version:
            for reader, writer in ((schema, other), (other, schema)):
                if why := unreadable(reader.text, writer.text):
                    yield f"version {reader.version} cannot read version {writer.version}: {why}"


def lock_states(folder: Path = lock.FOLDER) -> dict[str, str]:
    """By file, what sets it apart from ``lock.json``: ``edited``, ``deleted`` or ``not locked``. Files as they were locked are not in it."""
    locked = json.loads((folder / "lock.json").read_text(encoding="utf-8"))
    present = lock.entries(folder)
    states = {name: "edited" for name, entry in present.items() if locked.get(name, entry) != entry}
    states |= dict.fromkeys(locked.keys() - present.keys(), "deleted")
    return states | dict.fromkeys(present.keys() - locked.keys(), "not locked")
