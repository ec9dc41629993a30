"""Event dataclasses to the plain dictionaries that fastavro reads and writes, and back. Called by ``core.codec``.

Every converter is put together once, from the class's annotations; a call then looks nothing up. Field
names are the schema's (a test holds the two together), so a record's dictionary is the dataclass's keyword arguments.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from operator import attrgetter
from typing import Any, Union, get_args, get_origin, get_type_hints

from distrl.core.contracts.events import Blob, ObservationRecord

Convert = Callable[[Any], Any]

BRANCHES: dict[Any, str] = {Blob: "distrl.Blob", ObservationRecord: "distrl.Observation"}
"""Schema names of the records that may be null. Naming the branch spares fastavro the search for the one that fits,
a third of the time that writing a trajectory takes."""


def to_record(kind: Any) -> Convert:
    """The function from an instance of the dataclass ``kind`` to its dictionary."""
    names = tuple(field.name for field in fields(kind))
    values = attrgetter(*names)
    nested = _nested(kind, _encoder)

    def convert_all(event: Any) -> dict[str, Any]:
        record = dict(zip(names, values(event), strict=True))
        for name, convert in nested:
            record[name] = convert(record[name])
        return record

    return convert_all


def from_record(kind: Any) -> Convert:
    """The function from a dictionary, which it takes over and changes, to an instance of the dataclass ``kind``."""
    nested = _nested(kind, _decoder)

    def build(record: dict[str, Any]) -> Any:
        for name, convert in nested:
            record[name] = convert(record[name])
        return kind(**record)

    return build


def _nested(kind: Any, converter: Callable[[Any], Convert | None]) -> list[tuple[str, Convert]]:
    """The fields that differ between dataclass and dictionary, with what converts them."""
    pairs = ((name, converter(hint)) for name, hint in get_type_hints(kind).items())
    return [(name, convert) for name, convert in pairs if convert is not None]


def _encoder(hint: Any) -> Convert | None:
    if is_dataclass(hint):
        return to_record(hint)
    if get_origin(hint) is tuple:
        return _each(_encoder(get_args(hint)[0]), list)
    if (inner := _optional(hint)) is not None and is_dataclass(inner):
        branch, convert = BRANCHES[inner], to_record(inner)
        return lambda value: None if value is None else (branch, convert(value))
    return None


def _decoder(hint: Any) -> Convert | None:
    if is_dataclass(hint):
        return from_record(hint)
    if get_origin(hint) is tuple:
        return _each(_decoder(get_args(hint)[0]), tuple)
    if (inner := _optional(hint)) is not None and is_dataclass(inner):
        convert = from_record(inner)
        return lambda value: None if value is None else convert(value)
    return None


def _each(convert: Convert | None, collection: Convert) -> Convert:
    if convert is None:
        return collection
    return lambda values: collection(map(convert, values))


def _optional(hint: Any) -> Any | None:
    """The ``X`` of ``X | None``; ``None`` for another annotation."""
    return get_args(hint)[0] if get_origin(hint) in (types.UnionType, Union) else None
