"""``distrl run``: all roles of a configuration on this machine. ``execute`` is also what ``distrl demo`` ends in."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from distrl.core.cli import option

if TYPE_CHECKING:
    from distrl.core.config import Config

fresh = click.option("--fresh", is_flag=True, help="Forget what this run has done so far instead of resuming it.")


@click.command("run")
@option.config
@option.budget
@option.name
@fresh
@option.plugins
@option.overrides
@option.as_json
@option.debug
def command(
    config: Path,
    minutes: float | None,
    episodes: int | None,
    until_success: float | None,
    seed: int | None,
    name: str | None,
    fresh: bool,
    plugins: tuple[Path, ...],
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Run all roles of a configuration on this machine, supervised, until a budget is met.

    Ctrl-C stops cleanly; run again, it resumes. Leaves runs/NAME with logs, summary.json and report.html.
    """
    loaded = option.load(
        config,
        overrides,
        run__name=name,
        run__seed=seed,
        budget__minutes=minutes,
        budget__episodes=episodes,
        budget__until_success=until_success,
    )
    execute(loaded, plugins=plugins, fresh=fresh, source=config, as_json=as_json)


def execute(config: Config, *, plugins: Sequence[Path], fresh: bool, source: Path, as_json: bool) -> None:
    """Supervise a run with live progress, then print its summary."""
    from distrl.core.cli.live import ProgressView
    from distrl.core.cli.table import show, show_json
    from distrl.core.runtime.supervisor import supervise

    with ProgressView(config.run.name) as view:
        summary = supervise(config, plugin_files=plugins, fresh=fresh, on_progress=view, config_source=source)
    if as_json:
        show_json(summary)
        return
    rows = [{"what": key.replace("_", " "), "value": _value(key, value)} for key, value in summary.items()]
    show(("what", "value"), rows, as_json=False, title=f"Run {config.run.name}")
    click.echo(f"\nreport: {config.run_directory / 'report.html'}")


SHARES = ("success_first", "success_last", "eval_start", "eval_success", "learner_busy", "collector_busy")
"""Keys of the summary that are shown in percent."""


def _value(key: str, value: object) -> object:
    if isinstance(value, dict):
        return ", ".join(f"{name} {share:.1%}" for name, share in value.items()) or None
    return f"{value:.1%}" if key in SHARES and isinstance(value, float) else value
