"""``distrl status``: who is alive, how far behind, on which weights, and which side waits for which. Only looks on."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from distrl.core.cli import option

if TYPE_CHECKING:
    from rich.console import RenderableType

    from distrl.core.runtime.history import RunHistory

WATCH_SECONDS = 2.0


@click.command("status")
@option.config
@click.option("--watch", is_flag=True, help="Refresh every two seconds until Ctrl-C.")
@option.name
@option.overrides
@option.as_json
@option.debug
def command(config: Path, watch: bool, name: str | None, overrides: tuple[str, ...], as_json: bool) -> None:
    """Nodes alive, lag per role, queue ages, newest weights, versions in use, which side waits for which."""
    loaded = option.load(config, overrides, run__name=name)
    from distrl.core.cli.session import bus_of, codec_of
    from distrl.core.cli.table import console, show_json
    from distrl.core.runtime.tail import STATUS_TOPICS, RunTail

    with bus_of(loaded) as bus, RunTail(bus, codec_of(loaded), loaded.run.name, topics=STATUS_TOPICS) as tail:
        tail.catch_up()
        output = console()
        if not watch:
            if as_json:
                show_json(status(tail.history, _now_ms()))
            else:
                output.print(render(status(tail.history, _now_ms())))
            return
        if as_json:
            while True:
                click.echo(_line(status(tail.history, _now_ms())))
                _follow(tail.poll)
        from rich.live import Live

        with Live(render(status(tail.history, _now_ms())), console=output, auto_refresh=False) as live:
            while True:
                _follow(tail.poll)
                live.update(render(status(tail.history, _now_ms())), refresh=True)


def status(history: RunHistory, now_ms: int) -> dict[str, Any]:
    """One look, as ``--json`` prints it. Ages in seconds: of a node, that of its last sign of life."""
    alive = history.alive(now_ms)
    newest = history.newest
    return {
        "run": history.run,
        "nodes": [
            {
                "node": name,
                "role": record.status.role,
                "plugin": record.status.plugin,
                "state": record.status.state if record.alive(now_ms) else ("left" if record.left else "dead"),
                "waits_for": record.status.waiting_for if record.alive(now_ms) else "",
                "version": record.status.version,
                "restarts": record.restarts,
                "age": round((now_ms - record.seen_ms) / 1000, 1),
                "host": record.status.host,
                "pid": record.status.pid,
            }
            for name, record in sorted(history.nodes.items(), key=lambda item: (item[1].status.role, item[0]))
        ],
        "waits": [
            {"role": role, "waits_for": cause, "nodes": count}
            for (role, cause), count in sorted(
                Counter(
                    (record.status.role, record.status.waiting_for) for record in alive if record.status.waiting_for
                ).items()
            )
        ],
        "newest_weights": newest
        and {
            "version": newest.version,
            "epoch": newest.epoch,
            "age": round((now_ms - history.versions[-1].time_ms) / 1000, 1),
            "allowance": newest.allowance,
            "ingested": newest.ingested,
        },
        "versions_in_use": dict(
            sorted(Counter(str(record.status.version) for record in alive if record.status.role == "collector").items())
        ),
        "lag": history.lag(),
        "queue_age": {role: round(age / 1000, 1) for role, age in sorted(history.queue_ages().items())},
        "busy": {
            role: share for role in sorted({r.status.role for r in alive}) if (share := history.busy(role)) is not None
        },
    }


def render(state: dict[str, Any]) -> RenderableType:
    """The same for people."""
    from rich.console import Group
    from rich.text import Text

    from distrl.core.cli.table import cell, table

    parts: list[RenderableType] = [Text(f"Run {state['run']}", style="bold")]
    if state["nodes"]:
        columns = ("node", "role", "plugin", "state", "waits_for", "version", "restarts", "age")
        parts.append(table(columns, state["nodes"]))
    else:
        parts.append(Text("no node has shown itself; start one with distrl-node or distrl run"))
    facts = {
        "newest weights": state["newest_weights"]
        and "version {version} (epoch {epoch}), {age} s ago, {ingested} trajectories ingested".format(
            **state["newest_weights"]
        ),
        "versions in use": ", ".join(f"{version} ({count})" for version, count in state["versions_in_use"].items()),
        "waiting": ", ".join(f"{wait['role']} for {wait['waits_for']} ({wait['nodes']})" for wait in state["waits"]),
        "lag (records)": ", ".join(f"{where} {count}" for where, count in state["lag"].items()),
        "queue age (s)": ", ".join(f"{role} {age}" for role, age in state["queue_age"].items()),
    }
    parts.append(Text())
    parts.extend(Text.assemble((f"{name:<16} ", "dim"), cell(value or None)) for name, value in facts.items())
    return Group(*parts)


def _follow(poll: Any) -> None:
    """Take in what comes for one refresh interval."""
    deadline = time.monotonic() + WATCH_SECONDS
    while (rest := deadline - time.monotonic()) > 0:
        poll(rest)


def _now_ms() -> int:
    from distrl.core.contracts.clock import SystemClock

    return SystemClock().time_ms()


def _line(state: dict[str, Any]) -> str:
    import json

    return json.dumps(state, ensure_ascii=False)
