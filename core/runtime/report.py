"""The report of a run: one self-contained HTML page, curves and tables. Written by the supervisor as ``report.html``.

Goals, errors and names come from events, so they are not to be trusted: the page is built as XML elements and
serialised, never put together as text. It loads nothing and runs no script.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from distrl.core.config import Config
from distrl.core.contracts import metric
from distrl.core.contracts.events import ROLES
from distrl.core.runtime.chart import COLOURS, Point, histogram, line_chart, stacked_bars
from distrl.core.runtime.history import RunHistory
from distrl.core.runtime.redaction import redact
from distrl.core.runtime.summary import Summary, write_atomically

SMOOTHING = 100
"""Episodes of one kind that a point of its success curve averages."""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_FIRST_METRICS = ("loss.policy", "loss.value", "entropy", "ratio.clipped_share", "success.batch", "replay_ratio")
_MOST_METRICS = 12


def write_report(path: Path, history: RunHistory, summary: Summary, config: Config) -> None:
    """Write the page whole or not at all. Secrets in the configuration stay hidden. Raises ``OSError``."""
    write_atomically(path, render_report(history, summary, config))


def render_report(history: RunHistory, summary: Summary, config: Config) -> str:
    """The page as text."""
    html = ET.Element("html", {"lang": "en"})
    head = ET.SubElement(html, "head")
    ET.SubElement(head, "meta", {"charset": "utf-8"})
    ET.SubElement(head, "meta", {"http-equiv": "Content-Security-Policy", "content": _POLICY})
    ET.SubElement(head, "meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"})
    _add(head, "title", f"Run {config.run.name}")
    _add(head, "style", _STYLE)
    body = ET.SubElement(html, "body")
    _header(body, history, summary, config)
    charts = ET.SubElement(body, "section", {"class": "charts"})
    _success(charts, history)
    _growth(charts, history)
    _shares(charts, history)
    _staleness(charts, history)
    _lag(charts, history)
    _learner(body, history)
    _evaluation(body, summary)
    _nodes(body, history)
    _errors(body, history)
    _table(_section(body, "Summary"), ("key", "value"), [(key, _shown(value)) for key, value in summary.items()])
    _configuration(body, config)
    _clean(html)
    return "<!doctype html>\n" + ET.tostring(html, encoding="unicode", method="html") + "\n"


# --- parts of the page --------------------------------------------------------------------------


def _header(body: ET.Element, history: RunHistory, summary: Summary, config: Config) -> None:
    header = ET.SubElement(body, "header")
    _add(header, "h1", f"Run {config.run.name}")
    when = (
        datetime.fromtimestamp(history.first_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC") if history.first_ms else ""
    )
    _add(
        header,
        "p",
        f"{when} · {summary['seconds']:.0f} s · seed {summary['seed']} · {config.policy.plugin} trained by "
        f"{config.learner.plugin}, judged by {config.training_evaluator}",
    )
    tiles = ET.SubElement(body, "section", {"class": "tiles"})
    for value, name in (
        (str(summary["episodes"]), "episodes of the policy"),
        (_change(summary["success_first"], summary["success_last"]), "success, first to last 200 episodes"),
        (_change(summary["eval_start"], summary["eval_success"]), "success on unseen tasks, version 0 to last"),
        (str(summary["weight_versions"]), "weight versions"),
        (_pair(summary["staleness_mean"], summary["staleness_max"]), "versions of lag, mean and longest"),
        (_change(summary["learner_busy"], summary["collector_busy"], " / "), "time busy, learner / collectors"),
        (str(summary["aborted"]), "aborted episodes"),
        (str(summary["dead_letters"]), "dead letters"),
    ):
        tile = ET.SubElement(tiles, "div")
        _add(tile, "strong", value)
        _add(tile, "span", name)


def _success(charts: ET.Element, history: RunHistory) -> None:
    start = history.first_ms or 0
    judged = history.judged()
    windows: dict[str, deque[float]] = {}
    lines: dict[str, list[Point]] = {"all tasks": []}
    frequent = [kind for kind, _ in Counter(episode.kind for episode in judged).most_common(COLOURS - 1)]
    lines.update({kind: [] for kind in sorted(frequent)})
    for episode in judged:
        for name in ("all tasks", episode.kind):
            if name in lines:
                window = windows.setdefault(name, deque(maxlen=SMOOTHING))
                window.append(episode.success)
                if len(window) >= min(SMOOTHING // 5, len(judged)):  # fewer say nothing but noise
                    lines[name].append((_minutes(episode.ended_ms, start), sum(window) / len(window)))
    lines = {name: points for name, points in lines.items() if points}
    figure = _figure(charts, "Success while training", f"Moving average over {SMOOTHING} episodes of each kind.", lines)
    figure.append(line_chart(lines, x_label="minutes", y_range=(0.0, 1.0), percent=True))


def _growth(charts: ET.Element, history: RunHistory) -> None:
    start = history.first_ms or 0
    ended = list(history.table.ends())
    episodes = [(_minutes(time_ms, start), float(number)) for number, time_ms in enumerate(ended, 1)]
    versions = [(_minutes(version.time_ms, start), float(version.version)) for version in history.versions]
    for title, note, lines in (
        ("Episodes", "Finished episodes of the policy.", {"episodes": episodes}),
        ("Weight versions", "Number of the newest version.", {"version": versions}),
    ):
        figure = _figure(charts, title, note, lines)
        figure.append(line_chart(lines, x_label="minutes", steps=True))


def _shares(charts: ET.Element, history: RunHistory) -> None:
    rows: dict[str, dict[str, float]] = {}
    for role in ROLES:
        busy, waits = history.busy(role), history.waits(role)
        if busy is None and not waits:
            continue
        rows[role] = {"busy": busy or 0.0} | {f"waits for {cause}": share for cause, share in waits.items()}
        rows[role]["other"] = max(0.0, 1.0 - sum(rows[role].values()))
    parts = ["busy", *(f"waits for {cause}" for cause in metric.WAITS)]
    used = [part for part in parts if any(row.get(part) for row in rows.values())]
    legend = dict.fromkeys(used, ()) | ({"other": ()} if rows else {})
    figure = _figure(
        charts, "Where time goes", "Share of time, mean over the nodes of a role. Roles work side by side.", legend
    )
    figure.append(stacked_bars(rows, used))


def _staleness(charts: ET.Element, history: RunHistory) -> None:
    figure = _figure(charts, "Staleness", "Policy trajectories by how many versions they lagged when ingested.", {})
    figure.append(histogram(history.table.staleness, x_label="versions"))


def _lag(charts: ET.Element, history: RunHistory) -> None:
    start = history.first_ms or 0
    lines = {
        f"{role} {topic}": [(_minutes(time_ms, start), value) for time_ms, value in series]
        for (role, topic), series in sorted(history.lag_series.items())
    }
    figure = _figure(charts, "Lag", "Records that a role has not read yet, by topic.", lines)
    figure.append(line_chart(lines, x_label="minutes"))


def _learner(body: ET.Element, history: RunHistory) -> None:
    names = sorted(
        (name for name, series in history.learner_series.items() if len(series)),
        key=lambda name: (_FIRST_METRICS.index(name) if name in _FIRST_METRICS else len(_FIRST_METRICS), name),
    )
    if not names:
        return
    section = ET.SubElement(_section(body, "Learner"), "div", {"class": "charts"})
    start = history.first_ms or 0
    for name in names[:_MOST_METRICS]:
        points = [(_minutes(time_ms, start), value) for time_ms, value in history.learner_series[name]]
        _figure(section, name, "", {name: points}).append(line_chart({name: points}, x_label="minutes"))


def _evaluation(body: ET.Element, summary: Summary) -> None:
    if summary["eval_success"] is None:
        return
    rows = [(kind, f"{value:.1%}") for kind, value in summary["eval_by_task"].items()]
    section = _section(body, "Unseen tasks, last version")
    _table(section, ("task", "success"), [*rows, ("all", f"{summary['eval_success']:.1%}")])


def _nodes(body: ET.Element, history: RunHistory) -> None:
    rows = [
        (
            name,
            record.status.role,
            record.status.plugin,
            "left" if record.left else record.status.state,
            str(record.status.version),
            str(record.restarts),
            record.status.host,
            ", ".join(f"{counter} {count}" for counter, count in sorted(record.status.counters.items())),
        )
        for name, record in sorted(history.nodes.items())
    ]
    columns = ("node", "role", "plugin", "state", "version", "restarts", "host", "counters")
    _table(_section(body, "Nodes"), columns, rows)


def _errors(body: ET.Element, history: RunHistory) -> None:
    if not history.errors:
        return
    section = _section(body, "Latest dead letters and aborted episodes")
    rows = [
        (
            datetime.fromtimestamp(line.time_ms / 1000, UTC).strftime("%H:%M:%S"),
            line.node,
            line.code,
            line.message[:500],
        )
        for line in history.errors
    ]
    _table(section, ("time (UTC)", "node", "code", "message"), rows)


def _configuration(body: ET.Element, config: Config) -> None:
    section = _section(body, "Configuration")
    for name, values in redact(config.model_dump(mode="json")).items():
        details = ET.SubElement(section, "details")
        _add(details, "summary", f"[{name}]")
        _table(details, ("key", "value"), [(key, _shown(value)) for key, value in _flat(values)])


# --- elements -----------------------------------------------------------------------------------


def _section(body: ET.Element, title: str) -> ET.Element:
    section = ET.SubElement(body, "section")
    _add(section, "h2", title)
    return section


def _figure(parent: ET.Element, title: str, note: str, legend: Mapping[str, Sequence[Any]]) -> ET.Element:
    figure = ET.SubElement(parent, "figure")
    _add(figure, "h3", title)
    if note:
        _add(figure, "p", note)
    if len(legend) > 1:
        keys = ET.SubElement(figure, "div", {"class": "legend"})
        for number, name in enumerate(legend):
            key = ET.SubElement(keys, "span")
            ET.SubElement(key, "i", {"class": "rest" if name == "other" else f"s{number % COLOURS}"}).text = ""
            _add(key, "span", name)
    return figure


def _table(parent: ET.Element, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    if not rows:
        _add(parent, "p", "none")
        return
    table = ET.SubElement(ET.SubElement(parent, "div", {"class": "scroll"}), "table")
    head = ET.SubElement(ET.SubElement(table, "thead"), "tr")
    for column in columns:
        _add(head, "th", column)
    content = ET.SubElement(table, "tbody")
    for row in rows:
        line = ET.SubElement(content, "tr")
        for value in row:
            _add(line, "td", value)


def _add(parent: ET.Element, tag: str, text: str) -> None:
    ET.SubElement(parent, tag).text = text


def _clean(html: ET.Element) -> None:
    """Control characters are not allowed in a page (but for line ends and tabs): show a replacement."""
    for element in html.iter():
        if element.text and element.tag != "style":
            element.text = "".join(
                character if character in "\n\t" or character.isprintable() else "\N{REPLACEMENT CHARACTER}"
                for character in element.text
            )


# --- values -------------------------------------------------------------------------------------


def _flat(table: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for key, value in table.items():
        rows += _flat(value, f"{prefix}{key}.") if isinstance(value, dict) and value else [(f"{prefix}{key}", value)]
    return rows


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_shown(item)}" for key, item in value.items()) or "-"
    if isinstance(value, list | tuple):
        return ", ".join(_shown(item) for item in value) or "-"
    return "-" if value is None or value == "" else str(value)


def _change(first: float | None, last: float | None, between: str = " → ") -> str:
    return between.join("-" if value is None else f"{value:.0%}" for value in (first, last))


def _pair(mean: float | None, longest: int | None) -> str:
    return "-" if mean is None else f"{mean:.1f}, {longest}"


def _minutes(time_ms: float, start_ms: float) -> float:
    return (time_ms - start_ms) / 60_000


_STYLE = (
    """
:root { color-scheme: light dark; --page: #f6f7f9; --card: #fff; --ink: #1c2430; --dim: #5b6675; --grid: #e3e7ec;
  --c0: #2563c9; --c1: #c2570c; --c2: #15803d; --c3: #a21caf; --c4: #0e7490; --c5: #b91c1c; --c6: #6d28d9; --c7: #8a6d00;
  --rest: #c3cad4; }
@media (prefers-color-scheme: dark) { :root { --page: #11151b; --card: #1a2029; --ink: #e6eaf0; --dim: #98a4b3;
  --grid: #2c3542; --c0: #6ea8ff; --c1: #ff9d57; --c2: #5dd28a; --c3: #e77cf0; --c4: #4fd0e6; --c5: #ff7b7b; --c6: #b79bff;
  --c7: #e0bd45; --rest: #46515f; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1180px; padding: 28px 20px 60px; background: var(--page); color: var(--ink);
  font: 15px/1.45 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
h1 { font-size: 26px; margin: 0; overflow-wrap: anywhere; } h2 { font-size: 18px; margin: 34px 0 10px; }
h3 { font-size: 15px; margin: 0; overflow-wrap: anywhere; }
header p, figure p, .tiles span { color: var(--dim); margin: 2px 0 0; font-size: 13px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(240px, 1fr)); gap: 12px; margin: 20px 0; }
.tiles div, figure { background: var(--card); border: 1px solid var(--grid); border-radius: 8px; padding: 14px 16px; }
.tiles strong { display: block; font-size: 22px; font-variant-numeric: tabular-nums; } .tiles span { display: block; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(440px, 100%), 1fr)); gap: 12px; }
figure { margin: 0; min-width: 0; } svg { display: block; width: 100%; height: auto; margin-top: 8px; }
svg text { fill: var(--dim); font-size: 11px; } .grid { stroke: var(--grid); } .axis { stroke: var(--dim); }
.line { fill: none; stroke-width: 1.8; stroke-linejoin: round; } .bar { stroke: var(--card); stroke-width: 1; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 14px; margin-top: 6px; font-size: 12px; }
.legend > span { display: inline-flex; align-items: center; gap: 5px; overflow-wrap: anywhere; }
.legend i { width: 12px; height: 12px; border-radius: 3px; flex: none; }
.scroll { overflow-x: auto; background: var(--card); border: 1px solid var(--grid); border-radius: 8px; }
table { border-collapse: collapse; width: 100%; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 6px 12px; border-bottom: 1px solid var(--grid); vertical-align: top; }
td { overflow-wrap: anywhere; min-width: 70px; } th { color: var(--dim); font-weight: 600; } tr:last-child td { border: 0; }
details { margin: 6px 0; } summary { cursor: pointer; font-family: ui-monospace, "DejaVu Sans Mono", monospace; }
"""
    + "".join(
        f".line.s{n} {{ stroke: var(--c{n}); }} .bar.s{n} {{ fill: var(--c{n}); }} i.s{n} {{ background: var(--c{n}); }}\n"
        for n in range(COLOURS)
    )
    + ".bar.rest { fill: var(--rest); } i.rest { background: var(--rest); }\n"
)
