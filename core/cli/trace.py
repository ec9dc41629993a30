"""``distrl trace``: one episode's way through all roles, read off the log. Only looks on."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from distrl.core.cli import option

if TYPE_CHECKING:
    from distrl.core.runtime.timeline import Moment, Timeline

FOLDED = ("prioritized", "trained", "rescanned")
"""What happens to one episode again and again: people see the first and the last."""


@click.command("trace")
@click.argument("episode")
@option.config
@option.name
@option.overrides
@option.as_json
@option.debug
def command(episode: str, config: Path, name: str | None, overrides: tuple[str, ...], as_json: bool) -> None:
    """Follow EPISODE (a trajectory's id, or a trace's) through all roles: when, by which node, in which record.

    Delays are from line to line, by the clocks of the nodes. JSON lists every record; the table folds what repeats.
    """
    loaded = option.load(config, overrides, run__name=name)
    from distrl.core.cli.session import bus_of, codec_of
    from distrl.core.cli.table import console, show_json
    from distrl.core.runtime.timeline import follow

    with bus_of(loaded) as bus:
        timeline = follow(bus, codec_of(loaded), loaded.run.name, episode)
    if as_json:
        show_json(document(timeline))
    else:
        console().print(render(timeline))


def document(timeline: Timeline) -> dict[str, Any]:
    """The timeline as ``--json`` prints it. Times in milliseconds since the epoch, delays in seconds."""
    delays = _delays(timeline.moments)
    return {
        "episode": timeline.episode,
        "trace": timeline.trace,
        "unreadable": timeline.unreadable,
        "moments": [
            {
                "time_ms": moment.time_ms,
                "delay": delay,
                "what": moment.what,
                "node": moment.node,
                "topic": moment.topic or None,
                "partition": moment.partition if moment.topic else None,
                "offset": moment.offset if moment.topic else None,
                "version": moment.version,
                "text": moment.text,
                "event_id": moment.event_id or None,
                "repeated": moment.repeated,
            }
            for moment, delay in zip(timeline.moments, delays, strict=True)
        ],
    }


def render(timeline: Timeline) -> Any:
    """The same for people: two lines a moment, within 80 columns but for long texts, which are wrapped."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    from distrl.core.cli.table import plain

    parts: list[Any] = [Text(f"Episode {plain(timeline.episode)}", style="bold")]
    if timeline.trace:
        parts.append(Text(f"Trace   {timeline.trace}"))
    if timeline.unreadable:
        parts.append(Text(f"{timeline.unreadable} records about it cannot be read by this version", style="red"))
    shown = _folded(timeline.moments)
    for (moment, more), delay in zip(shown, _delays([moment for moment, _ in shown]), strict=True):
        head = (
            f"{_clock(moment.time_ms)} {_delay(delay):>10}  {moment.what:<12} {plain(moment.node):<18}  {moment.where}"
        )
        style = "red" if moment.what in ("refused", "dead letter") else ""
        parts.append(Text(head.rstrip(), style=style, overflow="fold"))
        text = moment.text
        if moment.version is not None and moment.topic and moment.topic != "trajectories":
            text = ", ".join(filter(None, (text, f"version {moment.version}")))
        text += " (sent again)" * moment.repeated + more
        if text:
            parts.append(Padding(Text(plain(text), style="dim"), (0, 0, 0, 25), expand=False))
    return Group(*parts)


def _folded(moments: Sequence[Moment]) -> list[tuple[Moment, str]]:
    """The moments to show, each with what stands for those left out."""
    last = {moment.what: number for number, moment in enumerate(moments) if moment.what in FOLDED}
    shown: list[tuple[Moment, str]] = []
    count: dict[str, int] = {}
    for number, moment in enumerate(moments):
        if moment.what in FOLDED:
            count[moment.what] = count.get(moment.what, 0) + 1
            if count[moment.what] > 1 and last[moment.what] != number:
                continue
        times = count.get(moment.what, 0)
        shown.append((moment, f" (the last of {times})" if times > 2 else ""))
    return shown


def _delays(moments: Sequence[Moment]) -> list[float | None]:
    """Seconds from the moment before; ``None`` for the first."""
    times = [moment.time_ms for moment in moments]
    return [None, *((later - earlier) / 1000 for earlier, later in itertools.pairwise(times))] if times else []


def _delay(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"+{seconds:.3f} s" if seconds < 1000 else f"+{seconds:,.0f} s"


def _clock(time_ms: int) -> str:
    """Time of day, UTC."""
    from datetime import UTC, datetime

    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%H:%M:%S.") + f"{time_ms % 1000:03d}"
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms"
