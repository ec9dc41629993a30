"""Loads plugins, knows what they registered, makes it and calls observers. Used by every node, the supervisor and the tools.

The project's own parts come through the same door as a stranger's. A plugin that does not load is named in
``broken`` and in one line of the log; the others stay.
"""

from __future__ import annotations

import difflib
import importlib.metadata
import inspect
import logging
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import pluggy
from pydantic import ValidationError

from distrl.core.config import explain
from distrl.core.contracts.device import Device
from distrl.core.contracts.policy import Policy
from distrl.core.contracts.role import Collector, Evaluator, Learner, Prioritizer
from distrl.core.contracts.task import TaskSource
from distrl.core.errors import ConfigError, DistrlError, MissingPackageError, PluginError, UnknownPluginError
from distrl.plugins import deferred, source
from distrl.plugins.source import GROUP, Found, file_plugins, installed_plugins, own_plugins
from distrl.plugins.spec import PROJECT, ObserveSpec, Options, RegisterSpec, Registration

log = logging.getLogger(__name__)

Kind = Literal["collector", "evaluator", "prioritizer", "learner", "policy", "device", "task_source"]
KINDS: tuple[Kind, ...] = get_args(Kind)
REGISTER_HOOKS: dict[str, Kind] = {
    "distrl_collectors": "collector",
    "distrl_evaluators": "evaluator",
    "distrl_prioritizers": "prioritizer",
    "distrl_learners": "learner",
    "distrl_policies": "policy",
    "distrl_devices": "device",
    "distrl_task_sources": "task_source",
}
OBSERVE_HOOKS = tuple(name for name in vars(ObserveSpec) if name.startswith("distrl_"))
CONTRACTS: dict[Kind, type[Any]] = {
    "collector": Collector,
    "evaluator": Evaluator,
    "prioritizer": Prioritizer,
    "learner": Learner,
    "policy": Policy,
    "device": Device,
    "task_source": TaskSource,
}
SECTIONS: dict[Kind, str] = {**{kind: kind for kind in KINDS}, "task_source": "tasks"}
"""The configuration section whose ``plugin`` and ``options`` pick a thing of the kind."""
EXTRAS = {
    "torch": "torch",
    "safetensors": "torch",
    "appium": "appium",
    "miniwob": "appium",
    "numpy": "simulated",
    "PIL": "simulated",
}
"""Which extra brings an optional package (by import name); policies and learners get theirs from ``torch``."""
MACHINERY = (__file__, source.__file__, deferred.__file__, importlib.__file__, importlib.metadata.__file__)
"""Frames of these files say nothing about where a plugin went wrong."""


@dataclass(frozen=True, slots=True)
class BrokenPlugin:
    """A plugin that was left out."""

    name: str
    source: str
    error: str
    """One line: what is wrong with it."""


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """A loaded plugin, for ``distrl plugins``."""

    name: str
    source: str
    distribution: str
    """The installed package; empty for a file."""
    version: str
    hooks: tuple[str, ...]
    registrations: tuple[tuple[Kind, Registration[Any]], ...]


class PluginManager:
    """What the loaded plugins offer. Made by ``load_plugins``; read-only afterwards."""

    def __init__(self) -> None:
        self.broken: list[BrokenPlugin] = []
        self._pluggy = pluggy.PluginManager(PROJECT)
        self._pluggy.add_hookspecs(RegisterSpec)
        self._pluggy.add_hookspecs(ObserveSpec)
        self._infos: list[PluginInfo] = []
        self._offers: dict[tuple[Kind, str], tuple[Registration[Any], str]] = {}

    # --- loading --------------------------------------------------------------------------------

    def add(self, found: Found) -> PluginInfo:
        """Import one plugin and take over what it registers; all of it or, with a ``PluginError``, nothing."""
        try:
            plugin = found.load()
        except (Exception, SystemExit) as error:
            raise PluginError(f"plugin {found.name} ({found.source}) does not import: {_reason(error)}") from error
        if inspect.isclass(plugin):
            raise PluginError(
                f"plugin {found.name} ({found.source}) is the class {plugin.__name__}: name a module or an instance"
            )
        name = found.name if not self._pluggy.has_plugin(found.name) else found.source
        try:
            self._pluggy.register(plugin, name)
        except (pluggy.PluginValidationError, ValueError) as error:
            raise PluginError(
                f"plugin {found.name} ({found.source}) does not fit its hooks: {_one_line(error)}"
            ) from error
        try:
            info = self._inspect(found, plugin, name)
        except PluginError:
            self._pluggy.unregister(plugin)
            raise
        self._infos.append(info)
        for kind, registration in info.registrations:
            self._offers[kind, registration.name] = (registration, name)
        return info

    def _inspect(self, found: Found, plugin: Any, name: str) -> PluginInfo:
        """Check the hooks that ``plugin`` implements and call those that register."""
        where = f"plugin {found.name} ({found.source})"
        hooks: dict[str, list[pluggy.HookImpl]] = {}
        for caller in self._pluggy.get_hookcallers(plugin) or ():
            if not caller.has_spec():
                nearest = _nearest(caller.name, [*REGISTER_HOOKS, *OBSERVE_HOOKS])
                raise PluginError(f"{where} implements {caller.name}, which is no hook{nearest}")
            hooks[caller.name] = [hook for hook in caller.get_hookimpls() if hook.plugin is plugin]
            if any(hook.wrapper or hook.hookwrapper for hook in hooks[caller.name]):
                raise PluginError(f"{where}: {caller.name} is a hook wrapper, and there is nothing to wrap")
        if not hooks:
            raise PluginError(f"{where} implements no hook: mark functions with @distrl.hookimpl")
        registrations: dict[tuple[Kind, str], Registration[Any]] = {}
        for hook, kind in REGISTER_HOOKS.items():
            for implementation in hooks.get(hook, ()):
                for registration in self._registered(implementation, f"{where}: {hook}"):
                    key = (kind, registration.name)
                    owner = name if key in registrations else self._offers[key][1] if key in self._offers else ""
                    if owner:
                        raise PluginError(f"{where} registers {kind} {key[1]!r}, which {owner} has registered already")
                    registrations[key] = registration
        offers = tuple((kind, registration) for (kind, _), registration in registrations.items())
        return PluginInfo(name, found.source, found.distribution, found.version, tuple(sorted(hooks)), offers)

    @staticmethod
    def _registered(implementation: pluggy.HookImpl, where: str) -> Sequence[Registration[Any]]:
        """Call a register hook; what it returns must be a sequence of sound registrations."""
        try:
            returned = implementation.function()
        except (Exception, SystemExit) as error:
            raise PluginError(f"{where} raised {_reason(error)}") from error
        if isinstance(returned, Registration) or not isinstance(returned, Sequence):
            raise PluginError(f"{where} returned {_what(returned)}; return a list of Registration")
        for item in returned:
            if not isinstance(item, Registration):
                raise PluginError(f"{where} returned {_what(item)} where a Registration is due")
            if not isinstance(item.name, str) or not item.name:
                raise PluginError(f"{where} registered something without a name")
            if not callable(item.factory):
                raise PluginError(
                    f"{where}: the factory of {item.name!r} is {_what(item.factory)}, which cannot be called"
                )
            if not (inspect.isclass(item.options) and issubclass(item.options, Options)):
                raise PluginError(
                    f"{where}: the options of {item.name!r} are {_what(item.options)}, not a class of distrl.Options"
                )
        return returned

    # --- asking ---------------------------------------------------------------------------------

    def plugins(self) -> list[PluginInfo]:
        """Every loaded plugin, in the order of loading."""
        return list(self._infos)

    def names(self, kind: Kind) -> list[str]:
        """What can be picked as ``kind``, in order of name."""
        return sorted(name for offered, name in self._offers if offered == kind)

    def registration(self, kind: Kind, name: str) -> Registration[Any]:
        """What is registered as ``kind`` under ``name``. Raises ``UnknownPluginError``."""
        if kind not in CONTRACTS:
            raise ValueError(f"{kind!r} is no kind of plugin; kinds are {', '.join(KINDS)}")
        offer = self._offers.get((kind, name))
        if offer is None:
            known = self.names(kind)
            broken = f"; left out as broken: {', '.join(plugin.name for plugin in self.broken)}" if self.broken else ""
            raise UnknownPluginError(
                f"no {kind} {name!r}{_nearest(name, known)}; there are {', '.join(known) or 'none'}, from installed packages "
                f"(entry points of the group {GROUP}) and files (--plugin FILE.py){broken}"
            )
        return offer[0]

    def options(self, kind: Kind, name: str, table: Mapping[str, Any]) -> Options:
        """A configuration's ``options`` table as the plugin's options. Raises ``ConfigError`` that names the key."""
        model = self.registration(kind, name).options
        try:
            return model.model_validate(dict(table))
        except ValidationError as error:
            raise ConfigError(
                f"{explain(error, model, prefix=f'{SECTIONS[kind]}.options')} ({kind} {name!r})"
            ) from error

    # --- calling --------------------------------------------------------------------------------

    def create(self, kind: Kind, name: str, options_table: Mapping[str, Any], *arguments: Any) -> Any:
        """Make the ``kind`` that is registered as ``name``; ``arguments`` follow the options (see ``plugins.spec``).

        Raises ``UnknownPluginError``, ``ConfigError`` for bad options, ``MissingPackageError`` for a package that is not
        installed, ``PluginError`` if the factory raises or what it returns lacks a part of its contract.
        Any ``DistrlError`` of the factory comes through as it is.
        """
        registration = self.registration(kind, name)
        options = self.options(kind, name, options_table)
        where = f"{kind} {name!r} (plugin {self._offers[kind, name][1]})"
        try:
            made = registration.factory(options, *arguments)
        except DistrlError:
            raise
        except ImportError as error:
            raise _missing(kind, where, error) from error
        except Exception as error:
            raise PluginError(f"{where} cannot be made: {_reason(error)}") from error
        if inspect.isclass(made):
            raise PluginError(f"{where}: its factory returned the class {made.__name__}, not an instance")
        lacking = [part for part in _parts(CONTRACTS[kind]) if not _has(made, part)]
        if lacking:
            raise PluginError(
                f"{where} is {_what(made)}, which lacks {', '.join(lacking)} of {CONTRACTS[kind].__name__}"
            )
        return made

    def observe(self, hook: str, **arguments: Any) -> None:
        """Call an observe hook of every plugin. An exception is logged with the plugin's name and ignored."""
        if hook not in OBSERVE_HOOKS:
            raise ValueError(f"{hook!r} is no observe hook; those are {', '.join(OBSERVE_HOOKS)}")
        for implementation in reversed(getattr(self._pluggy.hook, hook).get_hookimpls()):
            try:
                implementation.function(*(arguments[name] for name in implementation.argnames))
            except Exception as error:
                log.warning(
                    "[%s] plugin %s raised in %s, which is ignored: %s",
                    PluginError.code,
                    implementation.plugin_name,
                    hook,
                    _reason(error),
                )


def load_plugins(files: Sequence[Path] = (), *, entry_points: bool = True, strict: bool = False) -> PluginManager:
    """Load the project's own plugins, with ``entry_points`` those of installed packages, and those in ``files``.

    A broken one is logged and listed in ``PluginManager.broken``. Raises ``PluginError`` for a broken file, which somebody
    asked for, and with ``strict`` for any.
    """
    manager = PluginManager()
    own = own_plugins()
    sources = {found.source for found in own}
    others = [found for found in installed_plugins() if found.source not in sources] if entry_points else []
    for found in [*own, *others]:
        try:
            manager.add(found)
        except PluginError as error:
            if strict:
                raise
            manager.broken.append(BrokenPlugin(found.name, found.source, error.message))
            log.warning("%s; it is left out", error)
    for found in file_plugins(files):
        manager.add(found)
    return manager


def _missing(kind: Kind, where: str, error: ImportError) -> DistrlError:
    """What an ``ImportError`` of a factory means: an extra, a foreign package, or a fault of the plugin."""
    package = (error.name or "").partition(".")[0]
    if not isinstance(error, ModuleNotFoundError) or not package or package == "distrl":
        return PluginError(f"{where} does not import: {_reason(error)}")
    if package in EXTRAS:
        extra = "torch" if kind in ("policy", "learner") else EXTRAS[package]
        return MissingPackageError(f'{where} needs {package}: pip install "distrl[{extra}]"')
    return MissingPackageError(f"{where} needs the package that brings the module {package}: install it with pip")


def _parts(contract: type[Any]) -> list[str]:
    """The names of a Protocol's members."""
    bases = [base for base in contract.__mro__ if base.__module__.startswith("distrl.")]
    return sorted({name for base in bases for name in vars(base) if not name.startswith("_")})


def _has(made: Any, part: str) -> bool:
    """Whether ``made`` has the member; a property is not run, a ``__getattr__`` that passes calls on counts."""
    try:
        inspect.getattr_static(made, part)
    except AttributeError:
        return hasattr(type(made), "__getattr__") and hasattr(made, part)
    return True


def _nearest(name: str, known: Sequence[str]) -> str:
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f" (did you mean {nearest[0]!r}?)" if nearest else ""


def _what(value: Any) -> str:
    return f"the class {value.__name__}" if inspect.isclass(value) else f"a {type(value).__name__}"


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:500]


def _reason(error: BaseException) -> str:
    """The error in one line, with the place in the code that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if not frame.filename.startswith(("<frozen", *MACHINERY))]
    place = f" ({theirs[-1].filename}:{theirs[-1].lineno})" if theirs else ""
    text = error.message if isinstance(error, DistrlError) else _one_line(error)
    return f"{type(error).__name__}: {text}{place}"
