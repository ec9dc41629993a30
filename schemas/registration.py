"""Puts the committed schemas into a registry. Called by ``core.codec`` for what a node writes and by ``distrl schemas register``."""

from __future__ import annotations

from distrl.core.contracts.registry import SchemaRegistry
from distrl.core.errors import RegistryError
from distrl.schemas import Schema, all_schemas


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
    return register(registry, schema)[schema.version]


def register(registry: SchemaRegistry, newest: Schema) -> dict[int, int]:
    """Register the versions of a record up to ``newest``, oldest first, under a level at which all read each other. Returns
    ids by version. Harmless if they are there."""
    registry.require_compatibility(newest.name)
    return {
        schema.version: registry.register(schema.name, schema.text)
        for schema in all_schemas()
        if schema.record == newest.record and schema.version <= newest.version
    }
