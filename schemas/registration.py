"""Puts the committed schemas into a registry. Called by ``core.codec`` for what a node writes and by ``distrl schemas register``."""

from __future__ import annotations

from dataclasses import dataclass

from distrl.core.contracts.registry import SchemaRegistry
from distrl.core.errors import RegistryError
from distrl.schemas import Schema, all_schemas


@dataclass(frozen=True, slots=True)
class Registered:
    """One version as the registry has it."""

    schema: Schema
    schema_id: int
    """The registry's."""
    new: bool
    """Whether it was not there before."""


def registered_id(registry: SchemaRegistry, schema: Schema, *, register_missing: bool) -> int:
    """The registry's id of ``schema``; with ``register_missing`` it and the versions before it are registered if need be."""
    found = registry.find(schema.name, schema.text)
    if found is not None:
        return found
    if not register_missing:
        raise RegistryError(
            f"the registry has no version {schema.version} of {schema.name}, and registry.register_missing is false: "
            "run `distrl schemas register`"
        )
    return register(registry, schema)[-1].schema_id


def register(registry: SchemaRegistry, newest: Schema) -> list[Registered]:
    """Register the versions of a record up to ``newest``, oldest first, under a level at which all read each other. Harmless if
    they are there. Raises ``IncompatibleSchemaError`` for one that the registry does not take."""
    registry.require_compatibility(newest.name)
    registered: list[Registered] = []
    for schema in all_schemas():
        if schema.record == newest.record and schema.version <= newest.version:
            found = registry.find(schema.name, schema.text)
            schema_id = registry.register(schema.name, schema.text) if found is None else found
            registered.append(Registered(schema, schema_id, new=found is None))
    return registered
