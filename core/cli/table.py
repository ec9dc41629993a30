"""Tables for people, JSON for programs: what every listing command prints with."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

NAMES = frozenset({"kind", "name", "key", "node", "role", "topic", "task", "check", "state", "version"})
"""Columns that are never folded."""
Row = Mapping[str, Any]


def console(*, stderr: bool = False) -> Console:
    """A console that never interprets what it is given as markup: much of it comes from events."""
    return Console(stderr=stderr, markup=False, highlight=False, emoji=False)


def show(columns: Sequence[str], rows: Sequence[Row], *, as_json: bool, title: str = "", empty: str = "") -> None:
    """Print rows on stdout. ``columns`` are the keys that the table shows, in order; JSON has every key of a row.

    ``empty`` is said instead of a table without rows.
    """
    if as_json:
        show_json(list(rows))
    elif not rows and empty:
        click.echo(empty)
    else:
        console().print(table(columns, rows, title=title))


def show_json(value: Any) -> None:
    """Print one JSON document on stdout."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def table(columns: Sequence[str], rows: Sequence[Row], *, title: str = "") -> Table:
    """A table to print, or to put into a live panel."""
    result = Table(title=title or None, title_justify="left", show_edge=False, pad_edge=False)
    for column in columns:
        # What things are called stays on one line; descriptions fold.
        numbers = all(isinstance(row.get(column), int | float) for row in rows) and bool(rows)
        result.add_column(
            column.replace("_", " "), justify="right" if numbers else "left", overflow="fold", no_wrap=column in NAMES
        )
    for row in rows:
        result.add_row(*(cell(row.get(column)) for column in columns))
    return result


def cell(value: Any) -> Text:
    """One value as a cell: no markup, no control characters (an event could carry an escape sequence)."""
    match value:
        case None:
            return Text("-", style="dim")
        case bool():
            return Text("yes" if value else "no")
        case float():
            return Text(f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}")
        case list() | tuple():
            return Text(plain(", ".join(str(item) for item in value)))
        case _:
            return Text(plain(str(value)))


def plain(text: str) -> str:
    """``text`` with control characters spelled out, so that a terminal only ever shows it."""
    return "".join(
        character if character == "\n" or unicodedata.category(character)[0] != "C" else repr(character)[1:-1]
        for character in text
    )
