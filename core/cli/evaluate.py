"""``distrl evaluate``: success of published weights on held-out tasks, by kind of task, with an interval."""

from __future__ import annotations

from pathlib import Path

import click

from distrl.core.cli import option


@click.command("evaluate")
@option.config
@click.option(
    "--weights", "version", type=click.IntRange(min=0), help="Version; 0 is the untrained policy. Default: newest."
)
@click.option("--tasks", type=click.IntRange(min=1), help="How many tasks (default: budget.evaluation_tasks).")
@option.name
@option.plugins
@option.overrides
@option.as_json
@option.debug
def command(
    config: Path,
    version: int | None,
    tasks: int | None,
    name: str | None,
    plugins: tuple[Path, ...],
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Measure greedy success on tasks that training never sees, with a 95 % interval."""
    loaded = option.load(config, overrides, run__name=name)
    from distrl.core.cli.table import show, show_json
    from distrl.core.runtime.evaluation import evaluate

    result = evaluate(
        loaded, version=version, tasks=tasks or loaded.budget.evaluation_tasks or 120, plugin_files=plugins
    )
    rows = [
        {
            "task": kind,
            "success": rate.successes / rate.trials if rate.trials else None,
            "low": rate.low,
            "high": rate.high,
            "successes": rate.successes,
            "trials": rate.trials,
        }
        for kind, rate in [*sorted(result.by_kind.items()), ("all", result.total)]
    ]
    if as_json:
        show_json({"run": loaded.run.name, "version": result.version, "tasks": rows})
    else:
        show(tuple(rows[0]), rows, as_json=False, title=f"Version {result.version} on unseen tasks")
