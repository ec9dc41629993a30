"""``distrl plugins``: every plugin, where it comes from, its version, its hooks, and the options of what it offers."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import click

from distrl.core.cli import option
from distrl.core.errors import UnknownPluginError

if TYPE_CHECKING:
    from pydantic import BaseModel

    from distrl.plugins.manager import PluginInfo, PluginManager


@click.group("plugins")
@option.debug
def command() -> None:
    """List plugins, or show one with its hooks and options."""


@command.command("list")
@option.plugins
@option.as_json
@option.debug
def list_plugins(plugins: tuple[Path, ...], as_json: bool) -> None:
    """All that a configuration can pick, by kind, and plugins that did not load."""
    from distrl.core.cli.table import show

    manager = _load(plugins)
    rows = [
        {
            "kind": kind,
            "name": registration.name,
            "summary": registration.summary,
            "plugin": info.name,
            "version": info.version,
            "source": info.source,
        }
        for info in manager.plugins()
        for kind, registration in info.registrations
    ]
    rows += [
        {
            "kind": "observer",
            "name": info.name,
            "summary": "",
            "plugin": info.name,
            "version": info.version,
            "source": info.source,
        }
        for info in manager.plugins()
        if not info.registrations
    ]
    rows.sort(key=lambda row: (row["kind"], row["name"]))
    rows += [
        {
            "kind": "broken",
            "name": broken.name,
            "summary": broken.error,
            "plugin": broken.name,
            "version": "",
            "source": broken.source,
        }
        for broken in manager.broken
    ]
    show(("kind", "name", "summary", "plugin", "version"), rows, as_json=as_json)


@command.command("show")
@click.argument("name")
@option.plugins
@option.as_json
@option.debug
def show_plugin(name: str, plugins: tuple[Path, ...], as_json: bool) -> None:
    """One plugin, or one thing that plugins offer (`a-ride`): origin, version, hooks, options."""
    from distrl.core.cli.table import show, show_json

    manager = _load(plugins)
    shown = [_describe(info, name) for info in manager.plugins()]
    found = [entry for entry in shown if entry["plugin"] == name or entry["offers"]]
    if not found:
        known = sorted(
            {info.name for info in manager.plugins()} | {r.name for i in manager.plugins() for _, r in i.registrations}
        )
        nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f"did you mean {nearest[0]!r}?" if nearest else f"there are {', '.join(known)}"
        raise UnknownPluginError(f"no plugin and nothing that a plugin offers is called {name!r}; {hint}")
    if as_json:
        show_json(found)
        return
    for entry in found:
        click.echo(
            f"plugin {entry['plugin']} {entry['version']}  ({entry['distribution'] or 'file'}: {entry['source']})"
        )
        click.echo(f"hooks  {', '.join(entry['hooks'])}")
        for offer in entry["offers"]:
            click.echo(f"\n{offer['kind']} {offer['name']}: {offer['summary']}")
            show(("key", "type", "default", "description"), offer["options"], as_json=False, empty="  no options")


def options_of(model: type[BaseModel]) -> list[dict[str, Any]]:
    """The keys of an ``options`` table, with type, default and description."""
    return [
        {
            "key": key,
            "type": _type_name(field.annotation),
            "default": "" if field.is_required() else str(field.get_default(call_default_factory=True)),
            "description": field.description or "",
        }
        for key, field in model.model_fields.items()
    ]


def _type_name(annotation: Any) -> str:
    """As a person would write it: ``int``, ``retrace | v-trace``, ``tuple[str, ...]``."""
    if get_origin(annotation) is Literal:
        return " | ".join(str(choice) for choice in get_args(annotation))
    return (
        annotation.__name__
        if isinstance(annotation, type) and not get_args(annotation)
        else str(annotation).replace("typing.", "")
    )


def _describe(info: PluginInfo, name: str) -> Mapping[str, Any]:
    """A plugin with what it offers under ``name`` (all of it if that is the plugin's own name)."""
    return {
        "plugin": info.name,
        "version": info.version,
        "distribution": info.distribution,
        "source": info.source,
        "hooks": list(info.hooks),
        "offers": [
            {
                "kind": kind,
                "name": registration.name,
                "summary": registration.summary,
                "options": options_of(registration.options),
            }
            for kind, registration in info.registrations
            if name in (info.name, registration.name)
        ],
    }


def _load(files: tuple[Path, ...]) -> PluginManager:
    import logging

    from distrl.plugins.manager import load_plugins

    # A broken plugin has its own row here; the manager's warning about it would say it twice.
    logging.getLogger("distrl.plugins").setLevel(logging.ERROR)
    return load_plugins(files)
