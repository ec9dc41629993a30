"""``distrl demo``: the main job on the simulated phone, embedded log and folder store; no service needed."""

from __future__ import annotations

from pathlib import Path

import click

from distrl.core.cli import option
from distrl.core.cli.run import execute, fresh
from distrl.core.cli.template import template_path


@click.command("demo")
@click.option("--config", type=option.FILE, help="Another configuration than the packaged one.")
@option.budget
@option.name
@fresh
@option.plugins
@option.overrides
@option.as_json
@option.debug
def command(
    config: Path | None,
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
    """Train a small policy on a simulated phone, on this machine, in a few minutes.

    Leaves runs/NAME with logs, summary.json and report.html. Run again, it resumes; --fresh starts anew.
    """
    source = config or template_path("demo")
    loaded = option.load(
        source,
        overrides,
        run__name=name,
        run__seed=seed,
        budget__minutes=minutes,
        budget__episodes=episodes,
        budget__until_success=until_success,
    )
    execute(loaded, plugins=plugins, fresh=fresh, source=source, as_json=as_json)
