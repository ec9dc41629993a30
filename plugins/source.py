"""Where plugins come from: entry points of installed packages, and files. Called by ``plugins.manager``.

Finding is separate from loading, so that each plugin is imported by itself and a broken one stops no other.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path
from typing import Any

from distrl.core.errors import PluginError

GROUP = "distrl"
"""Name of the entry-point group."""
OWN = {"builtin": "distrl.plugins.builtin", "devices": "distrl.connectors.plugin"}
"""The project's own entry points, for a source tree whose package metadata does not have them (yet)."""


@dataclass(frozen=True, slots=True)
class Found:
    """A plugin that may be loaded."""

    name: str
    source: str
    """``module`` or ``module:object`` of an entry point, or the path of a file."""
    load: Callable[[], Any]
    """Imports the plugin; raises whatever its code raises."""
    distribution: str = ""
    version: str = ""
    """Of the installed package; empty for a file."""


def own_plugins() -> list[Found]:
    """The project's own parts, whether or not the package metadata names them."""
    named = {found.name: found for found in installed_plugins() if found.source == OWN.get(found.name)}
    return [
        named.get(name) or Found(name, module, partial(importlib.import_module, module), "distrl", _own_version())
        for name, module in OWN.items()
    ]


def _own_version() -> str:
    try:
        return version("distrl")
    except PackageNotFoundError:
        return ""


def installed_plugins() -> list[Found]:
    """What installed packages name in the entry-point group, each once, in order of name."""
    found = {}
    for point in entry_points(group=GROUP):
        package = point.dist
        found[point.name, point.value] = Found(
            point.name, point.value, point.load, package.name if package else "", package.version if package else ""
        )
    return [found[key] for key in sorted(found)]


def file_plugins(files: Iterable[Path]) -> list[Found]:
    """Plugins in one file each, in the order given; a file that is given twice counts once.

    Raises ``PluginError`` for a file that is not there or is no Python file.
    """
    found: dict[Path, Found] = {}
    for file in files:
        path = file.expanduser().resolve()
        if path.suffix != ".py":
            raise PluginError(f"plugin file {file}: its name must end in .py")
        if not path.is_file():
            raise PluginError(f"plugin file {file}: there is no such file")
        found.setdefault(path, Found(path.name, str(path), partial(_import_file, path)))
    return list(found.values())


def _import_file(path: Path) -> Any:
    """Run a file as a module of a name that no package and no other file has."""
    name = f"distrl_plugin_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise PluginError(f"plugin file {path}: Python cannot load it")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and pydantic look their module up while the file runs.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
