"""What must never be shown: values under names that mean a secret. Used by logs, reports and ``distrl doctor``."""

from __future__ import annotations

import re
from typing import Any

HIDDEN = "**********"
_USER_OF_URL = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*://)[^/?#\s]*@")
_SECRET = re.compile(r"(?i)passw|secret|credential|private_?key|api_?key|access_?key|auth_?token|access_?token|bearer")


def is_secret(name: str) -> bool:
    """Whether a value of this name is to be hidden."""
    return _SECRET.search(name) is not None


def redact(table: dict[str, Any]) -> dict[str, Any]:
    """A copy of nested tables and lists with every set secret hidden; an empty one stays, to show that it is not set."""
    return {name: HIDDEN if is_secret(name) and value else _inside(value) for name, value in table.items()}


def _inside(value: Any) -> Any:
    if isinstance(value, dict):
        return redact(value)
    if isinstance(value, list | tuple):
        return [_inside(item) for item in value]
    if isinstance(value, str):
        return _USER_OF_URL.sub(rf"\1{HIDDEN}@", value)
    return value
