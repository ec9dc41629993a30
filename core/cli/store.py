"""``distrl store``: removes what nothing needs any more from the object store, and shows what is there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from distrl.core.cli import option

if TYPE_CHECKING:
    from distrl.core.runtime.garbage import Collected


@click.group("store")
@option.debug
def command() -> None:
    """Collect garbage in the object store, or show what is there."""


@command.command("gc")
@option.config
@click.option("--dry-run", is_flag=True, help="Say what would be removed; change nothing.")
@click.option(
    "--forget",
    metavar="NODE",
    multiple=True,
    help="A collector that will not come back with what its outbox held. May be repeated.",
)
@click.option(
    "--unknown-schemas",
    is_flag=True,
    help="Go on although records have schemas that are not known here; what their bytes name is kept.",
)
@option.name
@option.overrides
@option.as_json
@option.debug
def collect(
    config: Path,
    dry_run: bool,
    forget: tuple[str, ...],
    unknown_schemas: bool,
    name: str | None,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Remove objects of the run that no retained event, no node and no kept checkpoint needs.

    Never what was put, or found again by a put, within store.grace_hours. Safe beside a run at work, and when it is cut short.
    """
    loaded = option.load(config, overrides, run__name=name)
    from distrl.core.cli.session import bus_of, codec_of, store_of
    from distrl.core.cli.table import show_json
    from distrl.core.contracts.clock import SystemClock
    from distrl.core.runtime import garbage

    with bus_of(loaded) as bus, store_of(loaded) as store:
        result = garbage.collect(
            loaded,
            bus,
            store,
            codec_of(loaded),
            SystemClock(),
            dry_run=dry_run,
            forget=forget,
            unknown_schemas=unknown_schemas,
        )
    if as_json:
        show_json(result.document())
    else:
        _print(result)


@command.command("usage")
@option.config
@option.name
@option.overrides
@option.as_json
@option.debug
def usage(config: Path, name: str | None, overrides: tuple[str, ...], as_json: bool) -> None:
    """What the run takes in the store, by kind, and on the log."""
    loaded = option.load(config, overrides, run__name=name)
    from distrl.core.cli.session import bus_of, store_of
    from distrl.core.cli.table import show
    from distrl.core.contracts.topic import TopicName
    from distrl.core.runtime import garbage

    with bus_of(loaded) as bus, store_of(loaded) as store:
        rows: list[dict[str, Any]] = [
            {"what": kind, "objects": tally.objects, "bytes": tally.bytes}
            for kind, tally in garbage.usage(store, loaded.run.name).items()
        ]
        sizes = bus.admin().sizes(TopicName.prefix(loaded.run.name))
    rows += [{"what": topic, "objects": None, "bytes": size} for topic, size in sorted(sizes.items())]
    show(("what", "objects", "bytes"), rows, as_json=as_json)


def _print(result: Collected) -> None:
    from distrl.core.cli.table import show

    removed = "would_go" if result.dry_run else "removed"
    rows = [
        {
            "kind": kind,
            "objects": found.objects,
            "bytes": found.bytes,
            removed: result.removed[kind].objects,
            f"{removed}_bytes": result.removed[kind].bytes,
            "young": result.young[kind].objects,
        }
        for kind, found in result.found.items()
    ]
    show(("kind", "objects", "bytes", removed, f"{removed}_bytes", "young"), rows, as_json=False)
    for node, why in result.held_by.items():
        click.echo(
            f"held back for collector {node} ({why}), whose outbox cannot be seen from here; "
            f"if it will not come back: --forget {node}"
        )
    if result.unreadable:
        click.echo(f"{len(result.unreadable)} records are no event; what their bytes name was kept. The first: ")
        click.echo(f"  {result.unreadable[0]}")
