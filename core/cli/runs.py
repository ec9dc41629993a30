"""``distrl runs``: which runs the log and the store know, and removing one with all that it left there."""

from __future__ import annotations

import shutil
from dataclasses import asdict
from pathlib import Path

import click

from distrl.core.cli import option


@click.group("runs")
@option.debug
def command() -> None:
    """List runs, or delete one with its topics, groups and objects."""


@command.command("list")
@option.config
@option.overrides
@option.as_json
@option.debug
def list_runs(config: Path, overrides: tuple[str, ...], as_json: bool) -> None:
    """Runs that the log or the store knows: what they hold, when they were last active, and who is alive."""
    loaded = option.load(config, overrides)
    from distrl.core.cli.session import bus_of, codec_of, store_of
    from distrl.core.cli.table import show, utc
    from distrl.core.contracts.clock import SystemClock
    from distrl.core.runtime.runs import known_runs

    with bus_of(loaded) as bus, store_of(loaded) as store:
        runs = known_runs(bus, store, codec_of(loaded), SystemClock())
    rows = [
        asdict(run) | {"last_activity": utc(run.last_activity_ms) if run.last_activity_ms else None} for run in runs
    ]
    columns = ("run", "topics", "records", "log_bytes", "groups", "objects", "store_bytes", "last_activity", "alive")
    show(columns, rows, as_json=as_json, empty="neither the log nor the store knows a run")


@command.command("delete")
@click.argument("run", metavar="NAME")
@option.config
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--force", is_flag=True, help="Even if nodes of the run are alive.")
@click.option("--local", is_flag=True, help="The run's folder on this machine too: logs, reports, outboxes.")
@option.overrides
@option.as_json
@option.debug
def delete(
    run: str, config: Path, yes: bool, force: bool, local: bool, overrides: tuple[str, ...], as_json: bool
) -> None:
    """Remove the topics, groups and objects of the run NAME. Cut short, it can be called again."""
    loaded = option.load(config, overrides, run__name=run)
    from distrl.core.cli.session import bus_of, codec_of, store_of
    from distrl.core.cli.table import show_json
    from distrl.core.contracts.clock import SystemClock
    from distrl.core.errors import RunInUseError, UnknownRunError
    from distrl.core.runtime.runs import KnownRun, known_runs, remove_run

    folder = loaded.run_directory
    with bus_of(loaded) as bus, store_of(loaded) as store:
        found = known_runs(bus, store, codec_of(loaded), SystemClock(), only=run)
        if not found and not (local and folder.is_dir()):
            raise UnknownRunError(f"neither the log nor the store knows a run {run!r}; see `distrl runs list`")
        known = found[0] if found else KnownRun(run)
        if known.alive and not force:
            raise RunInUseError(
                f"nodes of run {run!r} are alive: {', '.join(known.alive)}; stop them, or say --force to take it from under them"
            )
        what = (
            f"{known.topics} topics with {known.records} records, {known.groups} groups and "
            f"{known.objects} objects ({known.store_bytes} bytes) of run {run!r}"
        )
        if local:
            what += f", and the folder {folder}"
        if not yes:
            click.confirm(f"Remove {what}?", abort=True, err=True)
        removed = remove_run(bus, store, run)
    if local:
        shutil.rmtree(folder, ignore_errors=True)
    if as_json:
        show_json(asdict(removed) | {"run": run, "folder": str(folder) if local else None})
        return
    click.echo(f"removed {what}")
    if removed.groups_in_use:
        click.echo(
            f"groups with members stay: {', '.join(removed.groups_in_use)}; once those are gone, call this again"
        )
