"""``distrl init``: writes a commented configuration to start from."""

from __future__ import annotations

from pathlib import Path

import click

from distrl.core.cli import option
from distrl.core.cli.template import TEMPLATES, template_path
from distrl.core.errors import ConfigError


@click.command("init")
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.option("--template", type=click.Choice(TEMPLATES), required=True, help="What to train on.")
@click.option("--force", is_flag=True, help="Overwrite a configuration that is there.")
@option.debug
def command(directory: Path, template: str, force: bool) -> None:
    """Write DIRECTORY/config.toml to start from."""
    target = directory / "config.toml"
    text = template_path(template).read_text(encoding="utf-8")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with target.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise ConfigError(f"{target} is already there; --force overwrites it") from error
    except OSError as error:
        raise ConfigError(f"cannot write {target}: {error.strerror}") from error
    click.echo(f"wrote {target}\nnext: distrl doctor --config {target}\n      distrl run --config {target}")
