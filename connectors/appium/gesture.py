"""W3C actions as the JSON that ``POST /session/{id}/actions`` takes. Written by the platforms, plain data only.

Touch has duration 0: a finger that rests, as the client's own ``tap`` does, takes ten times as long. One
pointer id keeps one type for the life of a session, so there is one id for each type. Source: W3C WebDriver, section 17.
"""

from __future__ import annotations

import unicodedata
from typing import Any

Payload = dict[str, Any]
Pixel = tuple[int, int]
"""(x, y) in the platform's own unit: CSS pixels in a browser, screen pixels on Android."""

ENTER = "\ue007"
_UNTYPABLE = frozenset({"Cc", "Cs", "Co", "Cn"})


def pixel(point: tuple[float, float], size: tuple[int, int]) -> Pixel:
    """The pixel that holds a point given in fractions of the screen; ``size`` is [width, height] in the same unit."""
    return min(int(point[0] * size[0]), size[0] - 1), min(int(point[1] * size[1]), size[1] - 1)


def tap(at: Pixel) -> Payload:
    return _finger(_move(at, 0), _DOWN, _UP)


def swipe(start: Pixel, end: Pixel, duration_ms: int) -> Payload:
    return _finger(_move(start, 0), _DOWN, _move(end, duration_ms), _UP)


def keys(text: str) -> Payload:
    """Press and release each key; ``text`` may hold the private code points that stand for special keys (``ENTER``)."""
    pressed = [{"type": kind, "value": character} for character in text for kind in ("keyDown", "keyUp")]
    return {"type": "key", "id": "keyboard", "actions": pressed}


def typable(text: str) -> str:
    """``text`` without what no keyboard writes: control characters, lone surrogates, private code points.

    WebDriver reads private code points as special keys and refuses a lone surrogate; neither may be
    something that a policy reaches by the text it generates.
    """
    return "".join(character for character in text if unicodedata.category(character) not in _UNTYPABLE)


_DOWN: Payload = {"type": "pointerDown", "button": 0}
_UP: Payload = {"type": "pointerUp", "button": 0}


def _move(to: Pixel, duration_ms: int) -> Payload:
    return {"type": "pointerMove", "duration": duration_ms, "origin": "viewport", "x": to[0], "y": to[1]}


def _finger(*actions: Payload) -> Payload:
    return {"type": "pointer", "id": "finger", "parameters": {"pointerType": "touch"}, "actions": list(actions)}
