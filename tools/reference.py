"""Writes the reference pages of ``docs/`` from the code: settings, errors, hooks, metrics. ``make docs`` calls it; a test compares.

Runs in the project's environment. ``PAGES`` maps a page's name to the function that renders it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, SecretStr

from distrl.core import errors
from distrl.core.config import Config, Section
from distrl.core.contracts.metric import (
    BUCKETS_S,
    HANDLERS,
    NODE_METRICS,
    OPERATIONS,
    RUN_METRICS,
    SIDES,
    WAITS,
    Metric,
)
from distrl.core.errors import ControlFlow, DistrlError
from distrl.plugins.manager import KINDS, SECTIONS, load_plugins
from distrl.plugins.spec import ObserveSpec, RegisterSpec

DOCS = Path(__file__).resolve().parent.parent / "docs"
NOTE = "<!-- Written by `make docs` from the code; a test compares. Do not edit. -->"
COMMON = {
    "plugin": "which plugin, by name: `distrl plugins list` shows all",
    "options": "the plugin's own options, below",
    "nodes": "processes that `distrl run` starts",
}
"""What keys mean that several sections share."""
EXIT = {2: "usage or configuration", 3: "a service or package is missing", 4: "the run failed"}


def configuration() -> str:
    """Every section, setting and plugin option."""
    lines = [
        "# Configuration",
        NOTE,
        "",
        "One TOML file for a run. Environment variables go over it (`DISTRL_SECTION__KEY`, so `DISTRL_BUDGET__MINUTES=10`), and",
        "`--set section.key=value` goes over both. An unknown key is refused, with the nearest known one. Secrets come by",
        "environment or from a file that only you can read, never on a command line. `distrl init` writes a commented",
        "configuration to start from.",
    ]
    for name, field in Config.model_fields.items():
        section = field.annotation
        assert isinstance(section, type)
        assert issubclass(section, Section)
        purpose = _sentence(section).removeprefix(f"`[{name}]`").strip(":. ")
        lines += ["", f"## `[{name}]`", "", *([f"{_capital(purpose)}.", ""] if purpose else [])]
        lines += _settings(section)
    lines += [
        "",
        "# Options of the built-in plugins",
        "",
        "They stand in the `options` table of the section that picks the plugin; `distrl plugins show NAME` prints them too.",
    ]
    manager = load_plugins(entry_points=False)
    for kind in KINDS:
        for name in manager.names(kind):
            registration = manager.registration(kind, name)
            lines += [
                "",
                f'## `[{SECTIONS[kind]}]` with `plugin = "{name}"`',
                "",
                f"{_capital(registration.summary)}.",
                "",
            ]
            lines += _settings(registration.options) if registration.options.model_fields else ["It has no options."]
    return "\n".join(lines) + "\n"


def error_codes() -> str:
    """Every code with what it means."""
    lines = [
        "# Errors",
        NOTE,
        "",
        "An error is one line on stderr, `error [CODE]: what is wrong and what to do`; `--debug` adds the traceback. Codes are",
        "stable. *Retriable* errors are tried again by the runtime; a record that fails for good goes to the topic",
        "`dead-letters` and its role goes on.",
    ]
    for error in sorted(_subclasses(DistrlError), key=lambda error: (error.code, error.__name__)):
        lines += [
            "",
            f"## {error.code}",
            "",
            f"`{error.__name__}`. {_text(error)}",
            "",
            f"Exit code {error.exit_code} ({EXIT[error.exit_code]}); {'retriable' if error.retriable else 'not retriable'}.",
        ]
    lines += ["", "## Control flow", "", "These steer the runtime and are no failures; they have no code.", ""]
    lines += [f"* `{signal.__name__}`: {_text(signal)}" for signal in ControlFlow.__subclasses__()]
    return "\n".join(lines) + "\n"


def hooks() -> str:
    """Every hook with its signature and promise."""
    lines = [
        "# Hooks",
        NOTE,
        "",
        "What a plugin may implement, marked with `distrl.hookimpl`. How to write one, with a whole example, stands in the",
        'package `distrl.plugins` (`python -c "import distrl.plugins; help(distrl.plugins)"`).',
    ]
    for spec in (RegisterSpec, ObserveSpec):
        lines += ["", _sentence(spec)]
        for name, function in vars(spec).items():
            if name.startswith("distrl_"):
                signature = str(inspect.signature(function)).replace("(self, ", "(").replace("(self)", "()")
                lines += [
                    "",
                    f"## `{name}`",
                    "",
                    "```python",
                    f"def {name}{signature.replace(chr(39), '')}",
                    "```",
                    "",
                    _capital(_text(function)),
                ]
    return "\n".join(lines) + "\n"


def metrics() -> str:
    """Every number that a node tells, on the log and over HTTP."""
    lines = [
        "# Metrics",
        NOTE,
        "",
        "Every node tells the same numbers twice. It writes them to the topic `metrics` at each heartbeat",
        "(`run.heartbeat_seconds`), over the interval since the last one: `distrl status` shows the newest, `report.html` the whole",
        "run. And it serves them at `/metrics` in Prometheus' text format, since its start; [observability.md](observability.md) says",
        "where, and how to scrape a run. The table is `core/contracts/metric.py`.",
        "",
        "Every series has the labels `run`, `role` and `node`, and the one that stands behind its name. An empty first column: the",
        "number is only served. `<...>` stands for what follows a prefix.",
        "",
        "| on the topic | at `/metrics` | kind | by | meaning |",
        "| --- | --- | --- | --- | --- |",
        *(_metric(item, topic=True) for item in NODE_METRICS),
        "",
        "The standard series of the Prometheus client, `process_*` (processor time, memory, open files) and `python_*`, are served too.",
        "",
        "## Labels",
        "",
        f"* `cause`: {_names(WAITS)}",
        f"* `side`: {_names(SIDES)}",
        f"* `handler`: {_names(HANDLERS)}",
        f"* `operation`: {_names(OPERATIONS)}",
        f"* `le`, the histograms' upper bounds in seconds: {', '.join(f'{bound:g}' for bound in BUCKETS_S)}",
        "",
        "Who waits for whom reads off the shares: collectors that wait for `allowance` have a learner that is behind, a learner that",
        "waits for `trajectories` has too few collectors, one that waits for `verdicts` too few evaluators.",
        "",
        "## The run as a whole",
        "",
        "`distrl run` serves these of its own, with the label `run` and the one that stands behind the name.",
        "",
        "| at `/metrics` | kind | meaning |",
        "| --- | --- | --- |",
        *(_metric(item, topic=False) for item in RUN_METRICS),
    ]
    return "\n".join(lines) + "\n"


PAGES: dict[str, Callable[[], str]] = {
    "configuration.md": configuration,
    "errors.md": error_codes,
    "hooks.md": hooks,
    "metrics.md": metrics,
}


def _metric(item: Metric, *, topic: bool) -> str:
    prefix = item.served.endswith("_")
    served = f"`{item.served}<name>`" if prefix else f"`{item.served}`"
    if item.label and not prefix:
        served += f" `{{{item.label}}}`"
    if not topic:
        return f"| {served} | {item.kind} | {item.meaning} |"
    name = f"{item.name}<{item.label or 'name'}>" if item.name.endswith(".") else item.name
    return f"| {f'`{name}`' if name else ''} | {served} | {item.kind} | {item.by} | {item.meaning} |"


def _names(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _settings(model: type[BaseModel]) -> list[str]:
    rows = ["| key | type | default | meaning |", "| --- | --- | --- | --- |"]
    for name, field in sorted(model.model_fields.items(), key=lambda item: item[0] not in model.__annotations__):
        default = "" if field.is_required() else _value(field.get_default(call_default_factory=True))
        description = _capital(field.description or COMMON.get(name, ""))
        rows.append(f"| `{name}` | {_cell(_type(field.annotation))} | {_cell(default)} | {_cell(description)} |")
    for field in model.model_fields.values():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            rows += ["", f"{_sentence(inner)}", "", *_settings(inner)]
    return rows


def _type(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return " or ".join(f"`{_value(choice)}`" for choice in get_args(annotation))
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "table"
    names = {"dict[str, typing.Any]": "table", "pathlib.Path": "path", "<class 'pathlib.Path'>": "path", "str": "text"}
    text = annotation.__name__ if isinstance(annotation, type) and not get_args(annotation) else str(annotation)
    text = (
        text.replace("typing.", "")
        .replace("pathlib.", "")
        .replace("dict[str, Any]", "table")
        .replace("SecretStr", "secret")
    )
    if get_origin(annotation) is tuple:
        return f"list of {_type(get_args(annotation)[0])}"
    return names.get(text, text.replace(" | None", ", or unset").replace("Path", "path"))


def _value(value: Any) -> str:
    if value is None:
        return "unset"
    if isinstance(value, BaseModel):
        return "see below"
    if isinstance(value, SecretStr):
        return '""'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | Path):
        return f'"{value}"'
    if isinstance(value, tuple):
        return f"[{', '.join(_value(item) for item in value)}]"
    return str(value)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def _sentence(thing: type) -> str:
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].replace("``", "`").split())


def _text(thing: object) -> str:
    return " ".join((inspect.getdoc(thing) or "").replace("``", "`").split())


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _subclasses(error: type[DistrlError]) -> Iterator[type[DistrlError]]:
    yield error
    for child in error.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from _subclasses(child)


if __name__ == "__main__":
    for page, render in PAGES.items():
        (DOCS / page).write_text(render(), encoding="utf-8")
        sys.stdout.write(f"docs/{page}\n")
