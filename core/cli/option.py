"""Options that several commands share, so that they are spelled and explained the same everywhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from distrl.core.cli.exit import Debug

if TYPE_CHECKING:
    from distrl.core.config import Config

CommandT = TypeVar("CommandT", bound=Callable[..., Any])
FILE = click.Path(dir_okay=False, path_type=Path)


def _remember_debug(context: click.Context, _: click.Parameter, on: bool) -> None:
    if on and isinstance(context.obj, Debug):
        context.obj.on = True


debug = click.option(
    "--debug", is_flag=True, expose_value=False, is_eager=True, callback=_remember_debug, help="Show tracebacks."
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
config = click.option("--config", type=FILE, required=True, help="The run's configuration (TOML).")
optional_config = click.option("--config", type=FILE, help="The run's configuration (TOML); without it the defaults.")
overrides = click.option(
    "--set",
    "overrides",
    metavar="SECTION.KEY=VALUE",
    multiple=True,
    help="Change one setting; goes over the file and the environment. May be repeated.",
)
plugins = click.option(
    "--plugin", "plugins", type=FILE, multiple=True, metavar="FILE.py", help="Load a plugin file. May be repeated."
)
name = click.option("--name", help="Name of the run (run.name).")


def budget(command: CommandT) -> CommandT:
    """``--minutes``, ``--episodes``, ``--until-success``, ``--seed``."""
    for option in (
        click.option("--seed", type=click.IntRange(min=0), help="Every random choice derives from it (run.seed)."),
        click.option(
            "--until-success",
            type=click.FloatRange(0, 1),
            help="Stop at this success over the policy's last 200 episodes (budget.until_success).",
        ),
        click.option("--episodes", type=click.IntRange(min=0), help="Stop after so many episodes (budget.episodes)."),
        click.option("--minutes", type=click.FloatRange(min=0), help="Stop after so many minutes (budget.minutes)."),
    ):
        command = option(command)
    return command


def load(config: Path | None, overrides: Sequence[str] = (), **settings: object) -> Config:
    """Read a configuration with ``--set`` over it and command-line options (``section__key=value``) over both."""
    from distrl.core.config import load_config
    from distrl.core.runtime.log import configure_logging
    from distrl.core.runtime.redaction import remember

    # Warnings of libraries and plugins go to stderr: stdout holds what the command prints, JSON perhaps.
    configure_logging("warning", file=None, node="command", role="command")
    extra = [f"{key.replace('__', '.')}={_toml(value)}" for key, value in settings.items() if value is not None]
    loaded = load_config(config, overrides=[*overrides, *extra])
    remember(loaded)
    return loaded


def _toml(value: object) -> str:
    """A number or a text as ``load_config`` reads it; text is quoted so that a run named 1 stays text."""
    if isinstance(value, str):
        import json

        return json.dumps(value)
    return str(value)
