"""Tables for people, JSON for programs: what every listing command prints with."""

from __future__ import annotations

import json
import os
import unicodedata
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

PIPE_WIDTH = 200
"""Columns where there is no terminal to ask: what goes into a file or another program is not cut."""
FOLDED = frozenset({"summary", "message", "description", "default", "type", "found", "do", "value"})
"""Columns of free text; all others stay on one line as long as there is room for them."""
FOLDED_WIDTH = 16
"""What free text should have at least."""
COLUMN_GAP = 2
Row = Mapping[str, Any]


def console(*, stderr: bool = False) -> Console:
    """A console that never interprets what it is given as markup: much of it comes from events."""
    result = Console(stderr=stderr, markup=False, highlight=False, emoji=False)
    if not result.is_terminal and "COLUMNS" not in os.environ:
        result.width = PIPE_WIDTH
    return result


def show(columns: Sequence[str], rows: Sequence[Row], *, as_json: bool, title: str = "", empty: str = "") -> None:
    """Print rows on stdout. ``columns`` are the keys that the table shows, in order; JSON has every key of a row.

    ``empty`` is said instead of a table without rows.
    """
    if as_json:
        show_json(list(rows))
    elif not rows and empty:
        click.echo(empty)
    else:
        out = console()
        whole = table(columns, rows, title=title)
        if _needed(columns, rows) > out.width:
            # Rather two lines than half a name.
            for column in whole.columns:
                column.no_wrap = False
        out.print(whole)


def _needed(columns: Sequence[str], rows: Sequence[Row]) -> int:
    """Characters that a table takes with everything but free text on one line."""
    needed = 0
    for column in columns:
        longest = max(cell_len(text) for text in [column, *(cell(row.get(column)).plain for row in rows)])
        needed += (min(longest, FOLDED_WIDTH) if column in FOLDED else longest) + COLUMN_GAP
    return needed


def show_json(value: Any) -> None:
    """Print one JSON document on stdout."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def table(columns: Sequence[str], rows: Sequence[Row], *, title: str = "") -> Table:
    """A table to print, or to put into a live panel."""
    result = Table(title=title or None, title_justify="left", box=None, pad_edge=False, padding=(0, COLUMN_GAP, 0, 0))
    for column in columns:
        numbers = all(isinstance(row.get(column), int | float) for row in rows) and bool(rows)
        result.add_column(
            column.replace("_", " "),
            justify="right" if numbers else "left",
            overflow="fold",
            no_wrap=column not in FOLDED,
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


def utc(time_ms: int) -> str:
    """A time in milliseconds since the epoch as people and programs read it: RFC 3339, to the second."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def plain(text: str) -> str:
    """``text`` with control characters spelled out, so that a terminal only ever shows it."""
    return "".join(
        character if character == "\n" or unicodedata.category(character)[0] != "C" else repr(character)[1:-1]
        for character in text
    )
