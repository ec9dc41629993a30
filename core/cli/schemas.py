"""``distrl schemas``: whether the event schemas read each other, putting them into a registry, and what is on the log as AsyncAPI."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from distrl.core.cli import option

if TYPE_CHECKING:
    from distrl.core.contracts.registry import SchemaRegistry
    from distrl.schemas import Schema

COLUMNS = ("record", "version", "id", "subject", "state")


@click.group("schemas")
@option.debug
def command() -> None:
    """Check, register, or describe the event schemas."""


@command.command("check")
@click.option("--against", metavar="URL", help="A registry to ask as well; overrides [registry] of the configuration.")
@option.optional_config
@option.overrides
@option.as_json
@option.debug
def check(against: str | None, config: Path | None, overrides: tuple[str, ...], as_json: bool) -> None:
    """Fail if a released version was edited, or any two versions of a record cannot read each other.

    With a registry it is asked too, whether it would take what it lacks. Changes nothing. Exit code 2 if something is wrong.
    """
    aimed = ["registry.kind=confluent", f"registry.url={json.dumps(against)}"] if against else []
    loaded = option.load(config, [*overrides, *aimed])
    from distrl.core.cli.session import registry_of
    from distrl.core.cli.table import show
    from distrl.core.errors import IncompatibleSchemaError
    from distrl.schemas import all_schemas
    from distrl.schemas.compatibility import conflicts, lock_states

    wrong = [f"{name} is {state}" for name, state in sorted(lock_states().items())]
    registry = registry_of(loaded)
    rows: list[dict[str, Any]] = []
    for schema in all_schemas():
        found = [f"{schema.record} {why}" for why in conflicts(schema)]
        row = _row(schema, state="; ".join(found) or "compatible")
        if registry is not None:
            row["registry_id"], row["registry"] = _ask(registry, schema)
            if row["registry"] == "refused":
                found.append(f"the registry would refuse {schema.record} version {schema.version}")
        wrong += found
        rows.append(row)
    show((*COLUMNS, *(("registry_id", "registry") if registry else ())), rows, as_json=as_json)
    if wrong:
        raise IncompatibleSchemaError(
            f"{'; '.join(wrong)}. Released versions stay as they are: add a version that fits"
        )


@command.command("register")
@option.config
@option.overrides
@option.as_json
@option.debug
def register(config: Path, overrides: tuple[str, ...], as_json: bool) -> None:
    """Put every version of every record into the configured registry, in order. Run again, it changes nothing."""
    loaded = option.load(config, overrides)
    from distrl.core.cli.session import registry_of
    from distrl.core.cli.table import show
    from distrl.core.errors import ConfigError
    from distrl.schemas import latest, records
    from distrl.schemas.registration import register as put

    registry = registry_of(loaded)
    if registry is None:
        raise ConfigError("no registry is configured: set registry.kind to 'confluent' and registry.url to where it is")
    rows = [
        _row(entry.schema, id=entry.schema_id, state="registered now" if entry.new else "was there")
        for record in records()
        for entry in put(registry, latest(record))
    ]
    show(COLUMNS, rows, as_json=as_json)


@command.command("asyncapi")
@click.option("--out", type=option.FILE, help="Where to write it; without it, on stdout.")
@option.optional_config
@option.overrides
@option.debug
def asyncapi(out: Path | None, config: Path | None, overrides: tuple[str, ...]) -> None:
    """Describe topics, who writes and reads them, and their records, as an AsyncAPI 3.0 document (JSON)."""
    loaded = option.load(config, overrides)
    from distrl.core.cli.asyncapi import document

    text = json.dumps(document(loaded), indent=2, ensure_ascii=False) + "\n"
    if out is None:
        click.echo(text, nl=False)
    else:
        out.write_text(text, encoding="utf-8")


def _row(schema: Schema, **more: Any) -> dict[str, Any]:
    return {
        "record": schema.record,
        "version": schema.version,
        "id": schema.schema_id,
        "subject": schema.name,
        **more,
    }


def _ask(registry: SchemaRegistry, schema: Schema) -> tuple[int | None, str]:
    """The registry's id of a schema, and what it says of it."""
    found = registry.find(schema.name, schema.text)
    if found is not None:
        return found, "has it"
    return None, "would take it" if registry.is_compatible(schema.name, schema.text) else "refused"
