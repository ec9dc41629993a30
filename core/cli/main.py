"""``distrl``: the command line. Subcommands are imported when they are called, so ``--help`` is quick and needs no torch."""

from __future__ import annotations

import importlib
from typing import NoReturn

import click

from distrl.core.cli import exit, option

COMMANDS: dict[str, str] = {
    "demo": "Train on the simulated phone, here and now.",
    "run": "Run all roles of a configuration on this machine.",
    "init": "Write a commented configuration to start from.",
    "doctor": "Check packages, log, store and devices; say what to do.",
    "status": "Show nodes, lag, versions, and which side waits for which.",
    "trace": "Follow one episode through all roles.",
    "evaluate": "Measure success on held-out tasks.",
    "weights": "List published weights or fetch one, verified.",
    "runs": "List runs, or delete one with its topics, groups and objects.",
    "store": "Collect garbage in the object store, or show what is there.",
    "dead-letters": "List, show or send back what could not be handled.",
    "topics": "Show or make the difference between declared topics and the log's.",
    "schemas": "Check, register, or describe the event schemas.",
    "plugins": "List plugins, or show one with its hooks and options.",
}
"""Each lives in ``core.cli.<name>`` (``-`` becomes ``_``) as ``command``; this text stands in for it until it is called."""


class LazyGroup(click.Group):
    """A group that knows its commands by name and imports one only to run it or to show its help."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(f"distrl.core.cli.{cmd_name.replace('-', '_')}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            import difflib

            nearest = difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = f"did you mean {nearest[0]!r}?" if nearest else f"there are {', '.join(COMMANDS)}"
            ctx.fail(f"no command {args[0]!r}; {hint}")
        return super().resolve_command(ctx, args)


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="distrl", prog_name="distrl")
@option.debug
def command() -> None:
    """Fine-tune agents that operate mobile devices, by asynchronous distributed reinforcement learning.

    Exit codes: 0 done, 2 usage or configuration, 3 a service or package missing, 4 the run failed, 130 interrupted.
    """


def main() -> NoReturn:
    """Entry point of ``distrl``."""
    exit.main(command)


if __name__ == "__main__":
    main()
