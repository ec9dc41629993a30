"""``distrl topics``: the declared topics against those that are there. Topics are made here, never by use."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from distrl.core.cli import exit, option
from distrl.core.errors import BusAuthorizationError, ConfigError

if TYPE_CHECKING:
    from distrl.core.config import BusConfig
    from distrl.core.runtime.topic import PlannedTopic

COLUMNS = ("topic", "partitions", "state", "apply_would", "difference", "do")


@click.group("topics")
@option.debug
def command() -> None:
    """Show or make the difference between declared topics and the log's."""


@command.command("plan")
@option.config
@option.name
@option.overrides
@click.option("--exit-code", is_flag=True, help="Exit 4, not 0, when `apply` would change or refuse something.")
@click.option("--commands", is_flag=True, help="Print the lines with which an administrator of Kafka does the same.")
@option.as_json
@option.debug
def plan(
    config: Path, name: str | None, overrides: tuple[str, ...], exit_code: bool, commands: bool, as_json: bool
) -> int:
    """Show what differs and what `apply` would do. Changes nothing."""
    loaded = option.load(config, overrides, run__name=name)
    from distrl.core.cli.session import bus_of
    from distrl.core.runtime import topic

    if commands:
        _refuse_without_brokers(loaded.bus)
    with bus_of(loaded) as bus:
        planned = topic.plan(loaded, bus.admin())
    if commands and not as_json:
        for line in _commands(planned, loaded.bus).values():
            click.echo(line)
    else:
        _show(planned, {}, loaded.bus, as_json=as_json)
    return exit.FAILED if exit_code and any(topic.action for topic in planned) else exit.DONE


@command.command("apply")
@option.config
@option.name
@option.overrides
@option.as_json
@option.debug
def apply(config: Path, name: str | None, overrides: tuple[str, ...], as_json: bool) -> None:
    """Make missing topics and alter settings that differ; deletes nothing.

    Refuses as a whole to change the number of partitions, where keys would move or records be lost, and of copies.
    """
    loaded = option.load(config, overrides, run__name=name)
    from distrl.core.cli.session import bus_of
    from distrl.core.runtime import topic

    with bus_of(loaded) as bus:
        admin = bus.admin()
        planned = topic.plan(loaded, admin)
        denied = topic.apply(planned, admin)
    _show(planned, denied, loaded.bus, as_json=as_json)
    if denied:
        if not as_json:
            click.echo("\nAn administrator can do it:\n" + "\n".join(_commands(planned, loaded.bus, denied).values()))
        first = next(iter(denied.values()))
        raise BusAuthorizationError(
            f"{len(denied)} of {len(planned)} topics could not be made or changed ({first.message}): have an "
            "administrator run what `distrl topics plan --commands` prints"
        )


DONE = {"create": "made", "alter": "changed"}


def _show(planned: Sequence[PlannedTopic], denied: Collection[str], bus: BusConfig, *, as_json: bool) -> None:
    """``denied`` and what is done count after ``apply``; in a plan there is neither."""
    from distrl.core.cli.table import show

    applied = click.get_current_context().command is apply
    commands = _commands(planned, bus) if bus.kind == "kafka" else {}

    def row(topic: PlannedTopic) -> dict[str, Any]:
        state: str = topic.state
        if applied and topic.action:
            state = "not allowed" if topic.name in denied else DONE[topic.action]
        return {
            "topic": topic.name,
            "partitions": topic.spec.partitions if topic.spec else None,
            "state": state,
            "action": topic.action,
            "apply_would": topic.action or None,
            "difference": ", ".join(map(str, topic.differences)) or None,
            "differences": [asdict(difference) for difference in topic.differences],
            "do": topic.do or None,
            "command": commands.get(topic.name),
        }

    columns = [column for column in COLUMNS if not (applied and column == "apply_would")]
    show(columns, [row(topic) for topic in planned], as_json=as_json)


def _commands(planned: Sequence[PlannedTopic], bus: BusConfig, only: Collection[str] = ()) -> dict[str, str]:
    """What an administrator runs, by topic."""
    from distrl.connectors.kafka.command import alter_topic, create_topic

    lines = {"create": create_topic, "alter": alter_topic}
    return {
        topic.name: lines[topic.action](bus, topic.spec)
        for topic in planned
        if topic.spec is not None and topic.action in lines and (not only or topic.name in only)
    }


@command.command("acls")
@option.config
@option.name
@option.overrides
@click.option("--role", "part", required=True, help="A role, `supervisor`, `status` or `administrator`.")
@click.option("--principal", default="User:NAME", show_default=True, help="Who is to have the rights.")
@click.option("--commands", is_flag=True, help="Print the lines with which an administrator of Kafka gives them.")
@option.as_json
@option.debug
def acls(
    config: Path,
    name: str | None,
    overrides: tuple[str, ...],
    part: str,
    principal: str,
    commands: bool,
    as_json: bool,
) -> None:
    """Print the rights that a part of this run needs on Kafka, and no more. Asks no broker."""
    loaded = option.load(config, overrides, run__name=name)
    from distrl.connectors.kafka import acl

    _refuse_without_brokers(loaded.bus)
    if part not in acl.PARTS:
        raise ConfigError(f"--role {part}: there are {', '.join(acl.PARTS)}")
    acl.check_principal(principal)
    rights = acl.acls(loaded, part)
    if commands and not as_json:
        for right in rights:
            click.echo(acl.command_line(loaded, right, principal))
        return
    from distrl.core.cli.table import show

    rows = [
        {
            "principal": principal,
            "operation": right.operation,
            "resource": right.resource,
            "pattern": right.pattern,
            "name": right.name,
            "command": acl.command_line(loaded, right, principal),
        }
        for right in rights
    ]
    show(("principal", "operation", "resource", "pattern", "name"), rows, as_json=as_json)


def _refuse_without_brokers(bus: BusConfig) -> None:
    if bus.kind != "kafka":
        raise ConfigError("the embedded log has no administrator and no rights: `distrl topics apply` makes its topics")
