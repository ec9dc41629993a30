"""``distrl topics``: the declared topics against those that are there. Topics are made here, never by use."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from distrl.core.cli import option

if TYPE_CHECKING:
    from distrl.core.contracts.bus import TopicSpec


@click.group("topics")
@option.debug
def command() -> None:
    """Show or make the difference between declared topics and the log's."""


@command.command("plan")
@option.config
@option.name
@option.overrides
@option.as_json
@option.debug
def plan(config: Path, name: str | None, overrides: tuple[str, ...], as_json: bool) -> None:
    """Show what `apply` would do. Changes nothing."""
    _topics(config, name, overrides, as_json=as_json, apply=False)


@command.command("apply")
@option.config
@option.name
@option.overrides
@option.as_json
@option.debug
def apply(config: Path, name: str | None, overrides: tuple[str, ...], as_json: bool) -> None:
    """Make the topics that are missing. Refuses to grow a keyed topic: its keys would move to other partitions."""
    _topics(config, name, overrides, as_json=as_json, apply=True)


def difference(declared: TopicSpec, present: TopicSpec | None) -> str:
    """What stands between a declaration and the log: ``missing``, ``as declared``, or what differs."""
    if present is None:
        return "missing"
    differs = [
        f"{field} {getattr(present, field)}, declared {getattr(declared, field)}"
        for field in ("partitions", "cleanup", "retention_ms", "max_record_bytes")
        if getattr(present, field) != getattr(declared, field)
    ]
    return "; ".join(differs) or "as declared"


def _topics(config: Path, name: str | None, overrides: tuple[str, ...], *, as_json: bool, apply: bool) -> None:
    loaded = option.load(config, overrides, run__name=name)
    from distrl.core.cli.session import bus_of
    from distrl.core.cli.table import show
    from distrl.core.runtime.topic import declared_topics

    specs = declared_topics(loaded)
    with bus_of(loaded) as bus:
        admin = bus.admin()
        present = admin.topics()
        states = {spec.name: difference(spec, present.get(spec.name)) for spec in specs}
        if apply:
            states |= dict.fromkeys(admin.create(specs), "made")
    rows = [
        {
            "topic": spec.name,
            "partitions": spec.partitions,
            "cleanup": spec.cleanup,
            "retention_ms": spec.retention_ms,
            "state": states[spec.name],
        }
        for spec in specs
    ]
    show(("topic", "partitions", "cleanup", "retention_ms", "state"), rows, as_json=as_json)
