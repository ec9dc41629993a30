"""``distrl weights``: the versions that a run has published, and fetching one, verified."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from distrl.core.cli import option


@click.group("weights")
@option.debug
def command() -> None:
    """List published weights or fetch one, verified."""


@command.command("list")
@option.config
@option.name
@option.overrides
@option.as_json
@option.debug
def list_versions(config: Path, name: str | None, overrides: tuple[str, ...], as_json: bool) -> None:
    """Versions, sizes and hashes, oldest first, and which of them are still in the store (learner.weights_kept)."""
    loaded = option.load(config, overrides, run__name=name)
    from distrl.core.cli.session import bus_of, codec_of, store_of
    from distrl.core.cli.table import show, utc
    from distrl.core.runtime.weights import history

    with bus_of(loaded) as bus, store_of(loaded) as store:
        there = {stat.key for stat in store.list(f"{loaded.run.name}/weights/")}
        rows: list[dict[str, Any]] = [
            {
                "version": update.version,
                "epoch": update.epoch,
                "policy": update.policy,
                "published": utc(update.envelope.time_ms),
                "ingested": update.ingested,
                "bytes": update.blob.size,
                "sha256": update.blob.sha256,
                "stored": update.blob.key in there,
                "key": update.blob.key,
            }
            for update in history(bus, codec_of(loaded), loaded.run.name)
        ]
    if not as_json:
        rows = [row | {"sha256": row["sha256"][:12]} for row in rows]
    columns = ("version", "epoch", "policy", "published", "ingested", "bytes", "stored", "sha256")
    show(columns, rows, as_json=as_json, empty=f"run {loaded.run.name!r} has published no weights yet")


@command.command("pull")
@click.argument("version", type=click.IntRange(min=0), required=False)
@click.option("--out", type=option.FILE, required=True, help="Where to write the safetensors file.")
@option.config
@option.name
@option.overrides
@option.as_json
@option.debug
def pull(
    version: int | None, out: Path, config: Path, name: str | None, overrides: tuple[str, ...], as_json: bool
) -> None:
    """Fetch VERSION (the newest without it) into a file that appears only once its SHA-256 is verified."""
    loaded = option.load(config, overrides, run__name=name)
    from distrl.core.cli.session import bus_of, codec_of, store_of
    from distrl.core.cli.table import show_json
    from distrl.core.runtime.weights import fetch_weights, find_version

    with bus_of(loaded) as bus, store_of(loaded) as store:
        update = find_version(bus, codec_of(loaded), loaded.run.name, version)
        fetch_weights(store, update, out)
    if as_json:
        show_json({"version": update.version, "epoch": update.epoch, "sha256": update.blob.sha256, "file": str(out)})
    else:
        click.echo(f"version {update.version}: {update.blob.size} bytes, sha256 {update.blob.sha256}, in {out}")
