"""``distrl status``: who is alive, how far behind, on which weights, and which side waits for which. Only looks on."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from distrl.core.cli import option

if TYPE_CHECKING:
    from rich.console import RenderableType

    from distrl.core.contracts.bus import Bus
    from distrl.core.contracts.events import NodeStatus
    from distrl.core.runtime.history import RunHistory
    from distrl.core.runtime.liveness import Signs
    from distrl.core.runtime.tail import RunTail

WATCH_SECONDS = 2.0
LISTEN_BEATS = 1.5
"""A node that seems dead by the time of its last sign of life is listened for so many intervals: a clock may have been set."""
LISTEN_MOST_SECONDS = 10.0
SIDES = {
    "weights": "the learner's weights",
    "allowance": "the learner's leave to start episodes",
    "devices": "their devices",
    "log": "the log",
    "store": "the store",
    "trajectories": "the collectors' trajectories",
    "demonstrations": "demonstrations",
    "verdicts": "the evaluators' verdicts",
}
"""What a cause of waiting means, in words."""
COLUMNS = (
    (0, ("node", "role", "state", "ready", "waits_for", "version", "age")),
    (104, ("http",)),
    (130, ("restarts", "plugin")),
)
"""Columns of the table of nodes that need a terminal of at least so many characters."""


@click.command("status")
@option.config
@click.option("--watch", is_flag=True, help="Refresh every two seconds until Ctrl-C.")
@option.name
@option.overrides
@option.as_json
@option.debug
def command(config: Path, watch: bool, name: str | None, overrides: tuple[str, ...], as_json: bool) -> None:
    """Nodes alive, who is missing, lag per role, queue ages, newest weights, versions in use, which side waits for which."""
    loaded = option.load(config, overrides, run__name=name)
    from distrl.core.cli.session import bus_of, codec_of
    from distrl.core.cli.table import console, show_json
    from distrl.core.runtime.tail import STATUS_TOPICS, RunTail

    with bus_of(loaded) as bus, RunTail(bus, codec_of(loaded), loaded.run.name, topics=STATUS_TOPICS) as tail:
        tail.catch_up()
        _listen(tail)
        output = console()

        def look() -> dict[str, Any]:
            return status(tail.history, tail.signs, _now_ms()) | {"log_bytes": _log_bytes(bus, loaded.run.name)}

        if not watch:
            if as_json:
                show_json(look())
            else:
                output.print(render(look(), output.width))
            return
        if as_json:
            while True:
                click.echo(_line(look()))
                _follow(tail)
        from rich.live import Live

        with Live(render(look(), output.width), console=output, auto_refresh=False, screen=output.is_terminal) as live:
            while True:
                _follow(tail)
                live.update(render(look(), output.width), refresh=True)


def status(history: RunHistory, signs: Signs, now_ms: int) -> dict[str, Any]:
    """One look, as ``--json`` prints it. Ages in seconds: of a node, that of its last sign of life."""
    from distrl.core.contracts import metric

    alive = signs.alive()
    living = {one.envelope.node for one in alive}
    newest = history.newest
    nodes = [
        {
            "node": name,
            "role": record.status.role,
            "plugin": record.status.plugin,
            "state": record.status.state if name in living else ("left" if record.left else "dead"),
            "ready": record.status.ready and name in living,
            "waits_for": record.status.waiting_for if name in living else "",
            "missing": record.status.missing if name in living else "",
            "version": record.status.version,
            "restarts": record.restarts,
            "age": round(signs.age_s(name) or 0.0, 1) if not record.left else None,
            "http": record.status.http if name in living else "",
            "host": record.status.host,
            "pid": record.status.pid,
        }
        for name, record in sorted(history.nodes.items(), key=lambda item: (item[1].status.role, item[0]))
    ]
    records, size = history.load(metric.IN_FLIGHT_RECORDS), history.load(metric.IN_FLIGHT_BYTES)
    versions = Counter(one.version for one in alive if one.role == "collector")
    return {
        "run": history.run,
        "summary": summary(alive),
        "nodes": nodes,
        "missing": [{"node": node["node"], "missing": node["missing"]} for node in nodes if node["missing"]],
        "waits": [
            {"role": role, "waits_for": cause, "nodes": count}
            for (role, cause), count in sorted(
                Counter((one.role, one.waiting_for) for one in alive if one.waiting_for).items()
            )
        ],
        "newest_weights": newest
        and {
            "version": newest.version,
            "epoch": newest.epoch,
            "age": round(max(now_ms - history.versions[-1].time_ms, 0) / 1000, 1),
            "allowance": newest.allowance,
            "ingested": newest.ingested,
        },
        "versions_in_use": {str(version): count for version, count in sorted(versions.items())},
        "lag": history.lag(),
        "dead_letters": history.dead_letters,
        "queue_age": {role: round(age / 1000, 1) for role, age in sorted(history.queue_ages().items())},
        "in_flight": {
            role: {"records": round(count), "bytes": round(size.get(role, 0.0))}
            for role, count in sorted(records.items())
        },
        "held": {role: round(count) for role, count in sorted(history.load(metric.HELD).items())},
        "outbox_episodes": round(sum(history.load(metric.OUTBOX).values())),
        "busy": {
            role: share for role in sorted({one.role for one in alive}) if (share := history.busy(role)) is not None
        },
    }


def summary(alive: Sequence[NodeStatus]) -> str:
    """Which side waits for which, in one sentence."""
    learners = [one for one in alive if one.role == "learner"]
    collectors = [one for one in alive if one.role == "collector"]
    if not alive:
        return "No node is alive."
    clauses = [_doing("learner", learners), _doing("collector", collectors)]
    clauses += [
        f"no {role} is alive" for role in ("evaluator", "prioritizer") if all(one.role != role for one in alive)
    ]
    sentence = "; ".join(clauses)
    return f"{sentence[:1].upper()}{sentence[1:]}."


def render(state: Mapping[str, Any], width: int) -> RenderableType:
    """The same for people, on ``width`` columns."""
    from rich.console import Group
    from rich.text import Text

    from distrl.core.cli.table import cell, table

    parts: list[RenderableType] = [Text(f"Run {state['run']}", style="bold"), cell(state["summary"]), Text()]
    wide = width >= COLUMNS[1][0]
    if state["nodes"]:
        columns = [name for least, names in COLUMNS if width >= least for name in names]
        rows = [{**node, "waits_for": node["waits_for"] or None} for node in state["nodes"]]
        parts.append(table(columns, rows))
    else:
        parts.append(Text("no node has shown itself; start one with distrl-node or distrl run"))
    newest = state["newest_weights"]
    facts = {
        **{f"{item['node']} misses": item["missing"] for item in state["missing"]},
        "newest weights": newest
        and "version {version} (epoch {epoch}), {age} s ago, {ingested} trajectories ingested".format(**newest),
        "versions in use": ", ".join(
            f"{version} by {count} collector{'s'[: count > 1]}{_behind(int(version), newest)}"
            for version, count in state["versions_in_use"].items()
        ),
        "waiting": ", ".join(f"{wait['role']} for {wait['waits_for']} ({wait['nodes']})" for wait in state["waits"]),
        "log (bytes)": state.get("log_bytes"),
        "lag (records)": ", ".join(f"{where} {count}" for where, count in state["lag"].items()),
        "queue age (s)": ", ".join(f"{role} {age}" for role, age in state["queue_age"].items()),
        "in flight": ", ".join(
            f"{role} {count['records']} ({count['bytes']} bytes)"
            for role, count in state["in_flight"].items()
            if count["records"]
        ),
        "in outboxes": str(state["outbox_episodes"]),
        "held for retry": ", ".join(f"{role} {count}" for role, count in state["held"].items() if count),
        "dead letters": str(state["dead_letters"]),
    }
    if not wide:
        facts["http"] = ", ".join(f"{node['node']} {node['http']}" for node in state["nodes"] if node["http"])
    parts += [Text(), _facts(facts)]
    return Group(*parts)


def _facts(facts: Mapping[str, Any]) -> RenderableType:
    """Names and values in two columns; a long value goes on below itself."""
    from rich.table import Table

    from distrl.core.cli.table import cell

    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in facts.items():
        grid.add_row(cell(name), cell(value or None))
    return grid


def _doing(role: str, nodes: Sequence[NodeStatus]) -> str:
    """What the nodes of a role do, as a clause."""
    if not nodes:
        return f"no {role} is alive"
    waits = Counter(one.waiting_for for one in nodes)
    who = f"the {role}" if len(nodes) == 1 else f"{len(nodes)} {role}s"
    if len(waits) == 1:
        (cause,) = waits
        verb = "s" if len(nodes) == 1 else ""
        return f"{who} wait{verb} for {SIDES.get(cause, cause)}" if cause else f"{who} work{verb}"
    shares = [
        f"{count} wait{'s'[: count == 1]} for {SIDES.get(cause, cause)}"
        if cause
        else f"{count} work{'s'[: count == 1]}"
        for cause, count in sorted(waits.items())
    ]
    return f"of {who} {', '.join(shares)}"


def _behind(version: int, newest: Mapping[str, Any] | None) -> str:
    lag = 0 if newest is None else newest["version"] - version
    return f" ({lag} behind)" if lag > 0 else ""


def _listen(tail: RunTail) -> None:
    """Wait a little for nodes that neither left nor seem alive."""
    silent = tail.signs.silent()
    seconds = min(max((one.heartbeat_ms for one in silent), default=0) / 1000 * LISTEN_BEATS, LISTEN_MOST_SECONDS)
    deadline = time.monotonic() + seconds
    while tail.signs.silent() and (rest := deadline - time.monotonic()) > 0:
        tail.poll(rest)


def _follow(tail: RunTail) -> None:
    """Take in what comes for one refresh interval."""
    deadline = time.monotonic() + WATCH_SECONDS
    while (rest := deadline - time.monotonic()) > 0:
        tail.poll(rest)


def _log_bytes(bus: Bus, run: str) -> int | None:
    """What the run's topics take on disk; ``None`` if whoever asks may not know. The store is not asked: it would list all it has."""
    from distrl.core.contracts.topic import TopicName
    from distrl.core.errors import BusError

    try:
        return sum(bus.admin().sizes(TopicName.prefix(run)).values())
    except BusError:
        return None


def _now_ms() -> int:
    from distrl.core.contracts.clock import SystemClock

    return SystemClock().time_ms()


def _line(state: dict[str, Any]) -> str:
    import json

    return json.dumps(state, ensure_ascii=False)
