"""Reads UiAutomator2's page source (XML) into the UI tree of the contracts. Used by the Android platform. No I/O."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree

from distrl.core.contracts.task import UiNode
from distrl.core.errors import DeviceError

_BOUNDS = re.compile(r"\[(-?\d{1,9}),(-?\d{1,9})\]\[(-?\d{1,9}),(-?\d{1,9})\]")


def read_hierarchy(xml: str, screen: tuple[int, int]) -> str:
    """The UI tree as JSON. ``screen`` is [width, height] in pixels, what bounds are fractions of.

    A node without text has its content description as text: that is what a screen reader says of an icon. Raises
    ``DeviceError`` for anything but a UI hierarchy.
    """
    try:
        root = ElementTree.fromstring(xml)
    except ElementTree.ParseError as error:
        raise DeviceError(f"the UI hierarchy is not XML: {error}") from error
    if root.tag != "hierarchy":
        raise DeviceError(f"the UI hierarchy is a {root.tag!r}: is this an Android device?")
    try:
        return json.dumps(_node(root, screen), ensure_ascii=False, separators=(",", ":"))
    except RecursionError as error:
        raise DeviceError("the UI hierarchy is nested too deeply to be read") from error


def _node(element: ElementTree.Element, screen: tuple[int, int]) -> UiNode:
    node: UiNode = {
        "resource_id": element.get("resource-id", ""),
        "class_name": element.get("class", element.tag),
        "text": element.get("text") or element.get("content-desc") or "",
        "checked": element.get("checked") == "true",
        "focused": element.get("focused") == "true",
        "bounds": _bounds(element.get("bounds", ""), screen),
    }
    children = [_node(child, screen) for child in element]
    if children:
        node["children"] = children
    return node


def _bounds(text: str, screen: tuple[int, int]) -> list[float]:
    """Fractions of the screen; the root has no bounds and is the whole of it."""
    match = _BOUNDS.fullmatch(text)
    if match is None:
        return [0.0, 0.0, 1.0, 1.0]
    return [int(number) / screen[index % 2] for index, number in enumerate(match.groups())]
