"""A start state of the phone: where things are and how switches stand. Drawn from a task, used by phone and tasks.

The screen is 96 by 192 pixels, a grid of 6 by 12 cells of 16 by 16; everything that reacts to a tap covers whole cells.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from distrl.connectors.simulated_phone.catalogue import APPS, SWITCHES

WIDTH = 96
"""Pixels."""
HEIGHT = 192
"""Pixels."""
CELL = 16
"""Pixels."""
COLUMNS = WIDTH // CELL
ROWS = HEIGHT // CELL
SWITCHES_SHOWN = 4
FIELD_ROWS = (2, 3, 4)
"""Rows that a search field may start at: what is below stays free for the keyboard."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where things are at the start of an episode."""

    home: tuple[str, ...]
    """Apps by place on the home screen, row by row, three a row."""
    switches: tuple[tuple[str, bool], ...]
    """Switches of the settings app from the top, and how they stand."""
    field_row: int
    """Row of the grid where search fields start."""

    @property
    def key(self) -> str:
        """The layout as text: equal layouts have equal keys, whatever seed they came from."""
        switches = ",".join(f"{name}={'on' if on else 'off'}" for name, on in self.switches)
        return f"{','.join(self.home)}|{switches}|{self.field_row}"


def draw_layout(seed: int, parameters: Mapping[str, str]) -> Layout:
    """The start state of a task: the switch that it names is there and stands the other way."""
    rng = random.Random(seed)
    home = list(APPS)
    rng.shuffle(home)
    names = list(SWITCHES)
    rng.shuffle(names)
    wanted = parameters.get("switch")
    if wanted is not None:
        names.remove(wanted)
        names.insert(rng.randrange(SWITCHES_SHOWN), wanted)
    states = {name: rng.random() < 0.5 for name in names}
    if wanted is not None:
        states[wanted] = parameters["state"] == "off"
    shown = tuple((name, states[name]) for name in names[:SWITCHES_SHOWN])
    return Layout(tuple(home), shown, rng.choice(FIELD_ROWS))


def centre(column: int, row: int) -> tuple[float, float]:
    """The middle of a cell as fractions of the screen."""
    return (column + 0.5) / COLUMNS, (row + 0.5) / ROWS
