"""What must never be shown: values under names that mean a secret, and the secrets of this process wherever they turn up.

Used by logs, reports, the command line, and by the supervisor, which hands secrets to nodes by environment alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import SecretStr

from distrl.core.config import ENVIRONMENT_PREFIX, Config

HIDDEN = "**********"
SHORTEST = 8
"""A secret shorter than this is part of too many other words to be looked for in text."""
_USER_OF_URL = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*://)[^/?#\s\"'<>]*@")
_SECRET = re.compile(r"(?i)passw|secret|credential|private_?key|api_?key|access_?key|auth_?token|access_?token|bearer")
_known: set[str] = set()


def is_secret(name: str) -> bool:
    """Whether a value of this name is to be hidden."""
    return _SECRET.search(name) is not None


def redact(table: dict[str, Any]) -> dict[str, Any]:
    """A copy of nested tables and lists with every set secret hidden; an empty one stays, to show that it is not set."""
    return {name: HIDDEN if is_secret(name) and value else _inside(value) for name, value in table.items()}


def remember(config: Config) -> None:
    """Hide the secrets of ``config`` from now on, whatever text of this process they are in."""
    _known.update(text for text in _texts(_secrets(config)) if len(text) >= SHORTEST)


def conceal(text: str) -> str:
    """``text`` without the secrets that are remembered, and without users of addresses."""
    for secret in sorted(_known, key=len, reverse=True):
        for form in {
            secret,
            json.dumps(secret)[1:-1],
            json.dumps(secret, ensure_ascii=False)[1:-1],
            repr(secret)[1:-1],
        }:
            text = text.replace(form, HIDDEN)
    return _USER_OF_URL.sub(rf"\1{HIDDEN}@", text)


def without_secrets(config: Config) -> tuple[dict[str, Any], dict[str, str]]:
    """The configuration as a table that may be written to a file, and the environment variables that bring back what it lacks.

    Left out are secrets, by type or by name, and addresses with a user, in plugins' options too.
    """
    secrets = _secrets(config)
    table: dict[str, Any] = config.model_dump(mode="json", exclude_none=True)
    environment: dict[str, str] = {}
    for keys, value in secrets.items():
        *parents, last = keys
        inner = table
        for key in parents:
            inner = inner[key]
        del inner[last]
        if value:
            text = value if isinstance(value, str) and "options" not in keys else json.dumps(value, ensure_ascii=False)
            environment[ENVIRONMENT_PREFIX + "__".join(keys).upper()] = text
    return table, environment


def _secrets(config: Config) -> dict[tuple[str, ...], Any]:
    """Every secret by where it stands, lists of addresses as a whole."""
    found: dict[tuple[str, ...], Any] = {}

    def look(table: Mapping[str, Any], *path: str) -> None:
        for key, value in table.items():
            if isinstance(value, Mapping):
                look(value, *path, key)
            elif isinstance(value, SecretStr):
                found[*path, key] = value.get_secret_value()
            elif value and _can_travel(key, value) and (is_secret(key) or _inside(value) != value):
                found[*path, key] = value

    look(config.model_dump(exclude_none=True))
    return found


def _can_travel(key: str, value: Any) -> bool:
    """Whether a variable of the environment can stand for it: names have no case there, and TOML writes tables otherwise."""
    flat = all(not isinstance(item, Mapping | list) for item in value) if isinstance(value, list | tuple) else True
    return key == key.lower() and flat and isinstance(value, str | int | float | list | tuple)


def _texts(secrets: Mapping[tuple[str, ...], Any]) -> Iterable[str]:
    """What of the secrets must not be read anywhere: of an address, its user and password alone."""
    for keys, value in secrets.items():
        for text in value if isinstance(value, list | tuple) else [value]:
            match = re.search(r"://([^/?#\s\"'<>]*)@", str(text))
            if match is not None:
                yield match[1]
                yield match[1].partition(":")[2]
            elif is_secret(keys[-1]) or isinstance(value, str):
                yield str(text)


def _inside(value: Any) -> Any:
    if isinstance(value, dict):
        return redact(value)
    if isinstance(value, list | tuple):
        return type(value)(_inside(item) for item in value)
    if isinstance(value, str):
        return _USER_OF_URL.sub(rf"\1{HIDDEN}@", value)
    return value
