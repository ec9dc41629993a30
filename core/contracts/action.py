"""Actions as text: the grammar that policies write and devices read.

One action a line: a name, then arguments in JSON. Coordinates are fractions of the screen, from the left and
from the top, so they mean the same on every device::

    tap 0.250 0.125          type "milk"          press back          press home
    swipe 0.5 0.8 0.5 0.2    wait                 done                 fail
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Literal

ActionKind = Literal["tap", "swipe", "type", "press", "wait", "done", "fail"]
Key = Literal["back", "home", "enter"]
KEYS: tuple[Key, ...] = ("back", "home", "enter")
ARGUMENTS: dict[str, int] = {"tap": 2, "swipe": 4, "type": 1, "press": 1, "wait": 0, "done": 0, "fail": 0}


class InvalidAction(ValueError):
    """Text that is no action; the message is the step's ``invalid_reason``."""


@dataclass(frozen=True, slots=True)
class Action:
    """One action. ``done`` and ``fail`` end the episode by the agent's own word."""

    kind: ActionKind
    point: tuple[float, float] = (0.0, 0.0)
    """(x, y) of a tap or of a swipe's start, each in [0, 1]."""
    end: tuple[float, float] = (0.0, 0.0)
    """(x, y) of a swipe's end."""
    text: str = ""
    """Of ``type``."""
    key: Key = "back"
    """Of ``press``."""

    def __str__(self) -> str:
        match self.kind:
            case "tap":
                return f"tap {self.point[0]:.3f} {self.point[1]:.3f}"
            case "swipe":
                return f"swipe {self.point[0]:.3f} {self.point[1]:.3f} {self.end[0]:.3f} {self.end[1]:.3f}"
            case "type":
                return f"type {json.dumps(self.text, ensure_ascii=False)}"
            case "press":
                return f"press {self.key}"
            case _:
                return self.kind


def parse_action(text: str) -> Action:
    """Read one action; raises ``InvalidAction`` with the reason."""
    name, _, rest = text.strip().partition(" ")
    if name not in ARGUMENTS:
        raise InvalidAction(f"unknown action {name[:40]!r}")
    if name == "type":
        try:
            value = json.loads(rest)
        except (ValueError, RecursionError) as error:  # json counts nesting, whatever it is in
            raise InvalidAction(f"type needs a JSON string: {error}") from error
        if not isinstance(value, str):
            raise InvalidAction("type needs a JSON string")
        return Action("type", text=value)
    words = rest.split()
    if len(words) != ARGUMENTS[name]:
        raise InvalidAction(f"{name} takes {ARGUMENTS[name]} arguments, not {len(words)}")
    if name == "press":
        for key in KEYS:
            if words[0] == key:
                return Action("press", key=key)
        raise InvalidAction(f"unknown key {words[0][:40]!r}")
    try:
        numbers = [float(word) for word in words]
    except ValueError as error:
        raise InvalidAction(f"{name} needs numbers") from error
    if not all(math.isfinite(number) and 0.0 <= number <= 1.0 for number in numbers):
        raise InvalidAction(f"{name} needs coordinates from 0 to 1")
    match name:
        case "tap":
            return Action("tap", point=(numbers[0], numbers[1]))
        case "swipe":
            return Action("swipe", point=(numbers[0], numbers[1]), end=(numbers[2], numbers[3]))
        case "wait":
            return Action("wait")
        case "done":
            return Action("done")
        case _:
            return Action("fail")
