"""``distrl-node``: one role, until SIGTERM or SIGINT. The configuration is read before anything heavy is imported."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn, cast

import click

from distrl.core.cli import exit, option
from distrl.core.contracts.events import ROLES, Role


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="distrl", prog_name="distrl-node")
@click.option("--role", type=click.Choice(ROLES), required=True, help="What this node does.")
@option.config
@click.option("--node-id", help="A stable name: a restart under it resumes its outbox and keeps its partitions.")
@click.option("--drain", is_flag=True, help="Only send what a collector's outbox holds, then exit.")
@option.plugins
@option.overrides
@option.debug
def command(
    role: str, config: Path, node_id: str | None, drain: bool, plugins: tuple[Path, ...], overrides: tuple[str, ...]
) -> int:
    """Run one role of a run until SIGTERM or SIGINT: work in hand is finished or handed back, then it exits 0."""
    loaded = option.load(config, overrides)
    from distrl.core.runtime.node import run_node

    return run_node(loaded, cast(Role, role), node_id=node_id, plugin_files=plugins, drain=drain)


def main() -> NoReturn:
    """Entry point of ``distrl-node``."""
    exit.main(command)


if __name__ == "__main__":
    main()
