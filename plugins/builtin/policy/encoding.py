"""How the factored policy reads goals and previous actions and writes actions: plain Python, no arrays.

Called by ``FactoredPolicy``. Tokens of an action: ``(type, cell)`` for a tap, ``(type, first word, last word)`` for typing a
span of the goal, ``(type,)`` for the rest.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass

from distrl.core.contracts.action import Action, InvalidAction, parse_action
from distrl.plugins.builtin.policy.factored_options import FactoredOptions

WORD = re.compile(r"\w+(?:[-'’.@:/]\w+)*")
"""A word: letters and digits, joined inside by what names, times and addresses are joined by."""


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal cut into words."""

    text: str
    spans: tuple[tuple[int, int], ...]
    """Start and end of each word in ``text``; at most ``FactoredOptions.words``."""
    ids: tuple[int, ...]
    """Hashed words; 0 is kept for padding."""

    def between(self, first: int, last: int) -> str:
        """The goal's own text from one word to another, with what stands between them."""
        return self.text[self.spans[first][0] : self.spans[last][1]]


def read_goal(text: str, options: FactoredOptions) -> Goal:
    """Cut a goal into words. A word's id is its CRC-32 without regard to case: no fixed word list, the same in every process."""
    found = list(WORD.finditer(text))[: options.words]
    ids = tuple(1 + zlib.crc32(match.group().lower().encode()) % (options.buckets - 1) for match in found)
    return Goal(text, tuple(match.span() for match in found), ids)


def find_span(goal: Goal, text: str) -> tuple[int, int] | None:
    """First and last word of the first span of the goal that reads ``text``; ``None`` if no span does."""
    for first in range(len(goal.spans)):
        for last in range(first, len(goal.spans)):
            if goal.between(first, last) == text:
                return first, last
    return None


def cell_of(point: tuple[float, float], options: FactoredOptions) -> int:
    """The cell that holds a point given in fractions of the screen; cells count row by row."""
    column = min(int(point[0] * options.columns), options.columns - 1)
    row = min(int(point[1] * options.rows), options.rows - 1)
    return row * options.columns + column


def centre_of(cell: int, options: FactoredOptions) -> tuple[float, float]:
    """A cell's centre in fractions of the screen."""
    row, column = divmod(cell, options.columns)
    return (column + 0.5) / options.columns, (row + 0.5) / options.rows


def action_type(action: Action) -> str:
    """The type in the sense of ``FactoredOptions.actions``."""
    return f"press {action.key}" if action.kind == "press" else action.kind


def encode(goal: Goal, text: str, options: FactoredOptions) -> tuple[int, ...] | None:
    """The tokens that write an action; ``None`` if the policy cannot say it."""
    try:
        action = parse_action(text)
    except InvalidAction:
        return None
    names: tuple[str, ...] = options.actions
    name = action_type(action)
    if name not in names:
        return None
    index = names.index(name)
    if name == "tap":
        return index, cell_of(action.point, options)
    if name == "type":
        span = find_span(goal, action.text)
        return None if span is None else (index, *span)
    return (index,)


def decode(goal: Goal, tokens: tuple[int, ...], options: FactoredOptions) -> str:
    """The action that tokens write."""
    name = options.actions[tokens[0]]
    if name == "tap":
        return str(Action("tap", point=centre_of(tokens[1], options)))
    if name == "type":
        return str(Action("type", text=goal.between(tokens[1], tokens[2])))
    return name


@dataclass(frozen=True, slots=True)
class History:
    """The last previous actions, newest first, as numbers."""

    types: tuple[int, ...]
    """Shape [history]: 0 for none, 1 for a type that the policy does not know, else 2 + index of the type."""
    cells: tuple[int, ...]
    """Shape [history]: the tapped cell, or -1."""
    steps: int


def read_history(previous: tuple[str, ...], options: FactoredOptions) -> History:
    """Read the last ``FactoredOptions.history`` actions."""
    names: tuple[str, ...] = options.actions
    types, cells = [0] * options.history, [-1] * options.history
    for place, text in enumerate(reversed(previous[-options.history :])):
        types[place] = 1
        try:
            action = parse_action(text)
        except InvalidAction:
            continue
        if action_type(action) in names:
            types[place] = 2 + names.index(action_type(action))
        if action.kind == "tap":
            cells[place] = cell_of(action.point, options)
    return History(tuple(types), tuple(cells), len(previous))
