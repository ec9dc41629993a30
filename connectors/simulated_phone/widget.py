"""What lies where on the present screen: one list that taps, the UI tree and the pixels are all made from.

Called by the device. Rectangles are in cells of the grid, so a cell's middle hits at most one target.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from distrl.connectors.simulated_phone.catalogue import APPS, SWITCHES
from distrl.connectors.simulated_phone.layout import COLUMNS, ROWS
from distrl.connectors.simulated_phone.state import PhoneState
from distrl.core.contracts.task import UiNode

FOREGROUND = "phone/foreground"
"""Resource id of the root; its text is the app in front, or ``home``."""


@dataclass(frozen=True, slots=True)
class Widget:
    """Something on the screen."""

    resource_id: str
    class_name: str
    cells: tuple[int, int, int, int]
    """Column, row, columns, rows."""
    text: str = ""
    checked: bool | None = None
    focused: bool | None = None
    target: str = ""
    """What a tap does (``PhoneState.tap``); empty for nothing."""
    tile: tuple[str, ...] = ()
    """What is drawn (``art.tile``); empty where the backdrop shows it."""


def switch_id(name: str) -> str:
    """Resource id of a switch."""
    return f"settings/switch_{SWITCHES[name].slug}"


def query_id(app: str) -> str:
    """Resource id of the text that says what results are shown for."""
    return f"{app}/results_query"


def widgets(state: PhoneState) -> list[Widget]:
    """Everything on the screen but the backdrop, in drawing order."""
    return [*_content(state), *NAVIGATION]


NAVIGATION = (
    Widget("phone/back", "Button", (0, ROWS - 1, 2, 1), "Back", target="back"),
    Widget("phone/home", "Button", (2, ROWS - 1, 2, 1), "Home", target="home"),
)


def _content(state: PhoneState) -> list[Widget]:
    layout, app = state.layout, state.app
    if not app:
        return [
            Widget(
                f"home/{name}",
                "Icon",
                (2 * (place % 3), 1 + 3 * (place // 3), 2, 3),
                APPS[name].label,
                target=f"open:{name}",
                tile=("icon", name, str(place)),
            )
            for place, name in enumerate(layout.home)
        ]
    title = Widget(f"{app}/title", "TextView", (0, 1, COLUMNS, 1), APPS[app].label)
    if app == "settings":
        rows = [
            Widget(
                switch_id(name),
                "Switch",
                (0, 2 + 2 * index, COLUMNS, 2),
                SWITCHES[name].label,
                checked=state.switches[name],
                target=f"switch:{name}",
                tile=("switch", name, "on" if state.switches[name] else "off"),
            )
            for index, (name, _) in enumerate(layout.switches)
        ]
        return [title, *rows]
    if state.query:
        header = Widget(query_id(app), "TextView", (0, 2, COLUMNS, 2), state.query, tile=("query", app, state.query))
        return [title, header]
    if not state.has_field:
        return [title]
    row, focus = layout.field_row, "focused" if state.focused else ""
    found = [
        title,
        Widget(
            f"{app}/search_field",
            "EditText",
            (0, row, 4, 2),
            state.text,
            focused=state.focused,
            target="focus",
            tile=("field", state.text, focus),
        ),
        Widget(f"{app}/search_button", "Button", (4, row, 2, 2), "Search", target="submit", tile=("button", app)),
    ]
    if state.focused:
        found.append(Widget("keyboard/keys", "Keyboard", (0, 7, COLUMNS, 4), tile=("keyboard",)))
        found.append(Widget("keyboard/enter", "Button", (4, 10, 2, 1), "Enter", target="submit"))
    return found


def target_at(items: Sequence[Widget], x: float, y: float) -> str:
    """What a tap at a point, in fractions of the screen, does; empty for nothing."""
    column, row = min(int(x * COLUMNS), COLUMNS - 1), min(int(y * ROWS), ROWS - 1)
    for item in reversed(items):
        left, top, columns, rows = item.cells
        if item.target and left <= column < left + columns and top <= row < top + rows:
            return item.target
    return ""


def ui_tree(state: PhoneState, items: Sequence[Widget]) -> str:
    """The screen as JSON (``core.contracts.task.UiNode``)."""
    root: UiNode = {
        "resource_id": FOREGROUND,
        "class_name": "Screen",
        "text": state.app or "home",
        "bounds": [0.0, 0.0, 1.0, 1.0],
        "children": [_node(item) for item in items],
    }
    return json.dumps(root, separators=(",", ":"), ensure_ascii=False)


def _node(item: Widget) -> UiNode:
    left, top, columns, rows = item.cells
    node: UiNode = {
        "resource_id": item.resource_id,
        "class_name": item.class_name,
        "text": item.text,
        "bounds": [
            round(left / COLUMNS, 4),
            round(top / ROWS, 4),
            round((left + columns) / COLUMNS, 4),
            round((top + rows) / ROWS, 4),
        ],
    }
    if item.checked is not None:
        node["checked"] = item.checked
    if item.focused is not None:
        node["focused"] = item.focused
    return node
