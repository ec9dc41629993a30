"""Loading plugins: each by itself, the broken ones named, what they register checked and made."""

from __future__ import annotations

import logging
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distrl.core.errors import (
    ConfigError,
    DeviceError,
    DistrlError,
    MissingPackageError,
    PluginError,
    UnknownPluginError,
)
from distrl.plugins import source
from distrl.plugins.deferred import deferred
from distrl.plugins.manager import KINDS, PluginManager, load_plugins
from distrl.plugins.source import Found, own_plugins
from distrl.plugins.spec import Options, Registration, hookimpl

Write = Callable[..., Path]

GOOD = """
import distrl

class Lenient:
    name = "lenient"
    version = "1"
    def __init__(self, options, context): self.options = options
    def evaluate(self, batch): return [distrl.Verdict(1.0) for _ in batch]

class LenientOptions(distrl.Options):
    threshold: float = 0.5

@distrl.hookimpl
def distrl_evaluators():
    return [distrl.Registration("lenient", Lenient, LenientOptions, "likes everything")]
"""


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str, name: str = f"plugin_{random.getrandbits(40)}.py") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, dict[str, str], dict[str, str]], None]:
    """Installs a distribution, as pip lays it out, where Python looks for packages."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))

    def install(name: str, points: dict[str, str], modules: dict[str, str]) -> None:
        info = site / f"{name.replace('-', '_')}-1.2.3.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2.3\n", encoding="utf-8")
        lines = [f"{point} = {value}" for point, value in points.items()]
        (info / "entry_points.txt").write_text("\n".join(["[distrl]", *lines, ""]), encoding="utf-8")
        for module, text in modules.items():
            (site / f"{module}.py").write_text(text, encoding="utf-8")
            monkeypatch.delitem(sys.modules, module, raising=False)

    return install


# --- the project's own --------------------------------------------------------------------------


def test_the_projects_own_parts_come_through_the_same_door() -> None:
    manager = load_plugins(entry_points=False, strict=True)
    assert [info.name for info in manager.plugins()] == ["builtin", "devices"]
    assert manager.broken == []
    assert set(manager.names("evaluator")) >= {"state", "environment"}
    assert set(manager.names("prioritizer")) >= {"dper", "uniform"}
    assert "a-ride" in manager.names("learner")
    assert "factored" in manager.names("policy")
    assert set(manager.names("collector")) >= {"episodes", "demonstrator"}
    assert set(manager.names("device")) >= {"simulated-phone", "appium"}
    assert set(manager.names("task_source")) >= {"simulated-phone", "miniwob"}


def test_they_are_loaded_without_any_package_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "entry_points", lambda group: [])
    assert [(found.name, found.source) for found in own_plugins()] == list(source.OWN.items())
    assert "state" in load_plugins(strict=True).names("evaluator")


def test_every_registration_of_ours_is_complete() -> None:
    for info in load_plugins(entry_points=False, strict=True).plugins():
        for _, registration in info.registrations:
            assert registration.summary
            for name, field in registration.options.model_fields.items():
                assert not field.is_required(), f"{registration.name}: {name} has no default"


def test_loading_and_checking_options_imports_nothing_heavy() -> None:
    program = (
        "import sys, distrl, distrl.plugins.manager as m\n"
        "manager = m.load_plugins(strict=True)\n"
        "[manager.options(kind, name, {}) for kind in m.KINDS for name in manager.names(kind)]\n"
        "heavy = {'torch', 'numpy', 'PIL', 'kafka', 'minio', 'appium', 'selenium', 'safetensors', 'miniwob'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        "bare = {'core', 'plugins', 'connectors', 'schemas'} & set(sys.modules)\n"
        "assert not bare, bare\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr


# --- files --------------------------------------------------------------------------------------


def test_a_file_is_a_plugin(write: Write) -> None:
    path = write(GOOD, "lenient.py")
    manager = load_plugins([path, path], entry_points=False)
    info = manager.plugins()[-1]
    assert (info.name, info.source, info.distribution, info.version) == ("lenient.py", str(path), "", "")
    assert info.hooks == ("distrl_evaluators",)
    [(kind, registration)] = info.registrations
    assert (kind, registration.name, registration.summary) == ("evaluator", "lenient", "likes everything")
    made = manager.create("evaluator", "lenient", {"threshold": 0.25}, None)
    assert made.options.threshold == 0.25


def test_two_files_of_one_name_are_two_plugins(tmp_path: Path) -> None:
    paths = []
    for folder in ("a", "b"):
        path = tmp_path / folder / "same.py"
        path.parent.mkdir()
        path.write_text(GOOD.replace('"lenient"', f'"lenient-{folder}"'), encoding="utf-8")
        paths.append(path)
    manager = load_plugins(paths, entry_points=False)
    assert {"lenient-a", "lenient-b"} <= set(manager.names("evaluator"))
    assert len({info.name for info in manager.plugins()}) == len(manager.plugins())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import nonsense_that_is_not_there", "does not import: ModuleNotFoundError: No module named 'nonsense_that"),
        ("def broken(:\n", "does not import: SyntaxError"),
        ("raise SystemExit(3)", "does not import: SystemExit: 3"),
        ("x = 1 / 0", r"does not import: ZeroDivisionError: division by zero \(.*bad\.py:1\)"),
        ("", "implements no hook"),
        ("import distrl\n@distrl.hookimpl\ndef distrl_evaluator(): return []", r"distrl_evaluator, which is no hook \(did you mean 'distrl_evaluators'"),
        ("import distrl\n@distrl.hookimpl\ndef distrl_evaluators(config): return []", "does not fit its hooks: .*config"),
        ("import distrl\n@distrl.hookimpl\ndef distrl_on_rewards(rewards): pass", "does not fit its hooks: .*rewards"),
        ("import distrl\n@distrl.hookimpl(wrapper=True)\ndef distrl_evaluators():\n    return (yield)", "hook wrapper"),
        ("import distrl\n@distrl.hookimpl\ndef distrl_evaluators(): 1 / 0", r"distrl_evaluators raised ZeroDivisionError: division by zero \(.*bad\.py:3\)"),
        ("import distrl\n@distrl.hookimpl\ndef distrl_evaluators(): return None", "returned a NoneType; return a list of Registration"),
        (GOOD.replace("return [distrl.Reg", "return distrl.Reg").replace('everything")]', 'everything")'), "returned a Registration; return a list"),
        (GOOD.replace("return [distrl.Registration(", "return [Lenient] + [distrl.Registration("), "returned the class Lenient where a Registration"),
        (GOOD.replace("return [distrl.Registration(", "return [Lenient({}, None)] + [distrl.Registration("), "returned a Lenient where a Registration"),
        (GOOD.replace("Lenient, LenientOptions", "Lenient({}, None), LenientOptions"), "factory of 'lenient' is a Lenient, which cannot be called"),
        (GOOD.replace("Lenient, LenientOptions", "Lenient, dict"), "options of 'lenient' are the class dict"),
        (GOOD.replace("Lenient, LenientOptions", "Lenient, LenientOptions()"), "options of 'lenient' are a LenientOptions"),
        (GOOD.replace('Registration("lenient"', 'Registration(""'), "without a name"),
        (GOOD.replace('Registration("lenient"', 'Registration("state"'), "registers evaluator 'state', which builtin has registered already"),
        (GOOD + GOOD.replace("distrl_evaluators", "distrl_devices") + "@distrl.hookimpl\ndef distrl_collectors(): return [distrl.Registration('x', Lenient)] * 2", "registers collector 'x', which bad.py has registered already"),
    ],
)  # fmt: skip
def test_a_broken_file_is_refused_whole_with_the_reason_in_one_line(write: Write, text: str, reason: str) -> None:
    path = write(text, "bad.py")
    with pytest.raises(PluginError, match=reason) as caught:
        load_plugins([path], entry_points=False)
    assert "\n" not in str(caught.value)
    assert "bad.py" in str(caught.value)
    manager = load_plugins(entry_points=False)
    with pytest.raises(PluginError):
        manager.add(Found("bad.py", str(path), lambda: source._import_file(path)))
    assert [info.name for info in manager.plugins()] == ["builtin", "devices"]
    assert "lenient" not in manager.names("evaluator")


def test_a_file_that_is_not_there_or_no_python_is_named(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match=r"absent\.py: there is no such file"):
        load_plugins([tmp_path / "absent.py"])
    with pytest.raises(PluginError, match=r"plugin\.txt: its name must end in \.py"):
        load_plugins([tmp_path / "plugin.txt"])


# --- installed packages -------------------------------------------------------------------------


def test_an_installed_plugin_is_known_with_its_version(install: Callable[..., None]) -> None:
    install("lenient-judge", {"lenient": "lenient_judge"}, {"lenient_judge": GOOD})
    [info] = [info for info in load_plugins(strict=True).plugins() if info.name == "lenient"]
    assert (info.distribution, info.version, info.source) == ("lenient-judge", "1.2.3", "lenient_judge")
    assert "lenient" not in load_plugins(entry_points=False).names("evaluator")


def test_a_broken_installed_plugin_is_named_and_stops_no_other(
    install: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    install(
        "mixed",
        {"a-broken": "broken_one", "absent": "module_nowhere", "class": "fine_one:Lenient", "z-fine": "fine_one"},
        {"broken_one": "1 / 0", "fine_one": GOOD},
    )
    with caplog.at_level(logging.WARNING):
        manager = load_plugins()
    assert "lenient" in manager.names("evaluator")
    assert [(plugin.name, plugin.source) for plugin in manager.broken] == [
        ("a-broken", "broken_one"),
        ("absent", "module_nowhere"),
        ("class", "fine_one:Lenient"),
    ]
    assert "ZeroDivisionError" in manager.broken[0].error
    assert "name a module or an instance" in manager.broken[2].error
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 3
    assert all("[DISTRL-110]" in message and "\n" not in message for message in messages)
    with pytest.raises(PluginError, match="a-broken"):
        load_plugins(strict=True)
    with pytest.raises(UnknownPluginError, match="left out as broken: a-broken, absent, class"):
        manager.registration("evaluator", "nothing")


def test_an_entry_point_may_name_an_instance(install: Callable[..., None]) -> None:
    text = GOOD.replace(
        "@distrl.hookimpl\ndef distrl_evaluators():", "class P:\n  @distrl.hookimpl\n  def distrl_evaluators(self):"
    )
    install("objects", {"thing": "with_object:plugin"}, {"with_object": f"{text}\nplugin = P()\n"})
    manager = load_plugins(strict=True)
    assert manager.create("evaluator", "lenient", {}, None).name == "lenient"


# --- picking and making -------------------------------------------------------------------------


class Numbered(Options):
    learning_rate: float = 0.1
    layers: tuple[int, ...] = (1,)


class Judge:
    name = "judge"
    version = "1"

    def evaluate(self, batch: Any) -> list[Any]:
        return []


def manager_with(factory: Any, kind: str = "evaluator") -> PluginManager:
    def offer(self: Any) -> list[Registration[Any]]:
        return [Registration("mine", factory, Numbered)]

    hook = {"evaluator": "distrl_evaluators", "learner": "distrl_learners", "device": "distrl_devices"}[kind]
    plugin = type("Plugin", (), {hook: hookimpl(offer)})
    manager = PluginManager()
    manager.add(Found("test", "here", plugin))
    return manager


def test_an_unknown_name_lists_the_known_ones_and_where_plugins_come_from() -> None:
    manager = manager_with(lambda options, context: Judge())
    with pytest.raises(
        UnknownPluginError, match=r"no evaluator 'mien' \(did you mean 'mine'\?\); there are mine, .*--plugin FILE\.py"
    ):
        manager.create("evaluator", "mien", {}, None)
    with pytest.raises(UnknownPluginError, match="there are none"):
        manager.create("device", "mine", {}, None)
    with pytest.raises(ValueError, match="is no kind"):
        manager.create("judge", "mine", {}, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ({"learning_rat": 1}, r"unknown key 'evaluator\.options\.learning_rat'; did you mean 'evaluator\.options\.learning_rate'\? \(evaluator 'mine'\)"),
        ({"zzz": 1}, r"unknown key 'evaluator\.options\.zzz'; known are learning_rate, layers"),
        ({"learning_rate": "fast"}, r"evaluator\.options\.learning_rate: Input should be a valid number"),
        ({"layers": [1, "two"]}, r"evaluator\.options\.layers\.1: Input should be a valid integer"),
    ],
)  # fmt: skip
def test_bad_options_name_the_key(table: dict[str, Any], reason: str) -> None:
    manager = manager_with(lambda options, context: Judge())
    with pytest.raises(ConfigError, match=reason):
        manager.create("evaluator", "mine", table, None)
    with pytest.raises(ConfigError, match=reason):
        manager.options("evaluator", "mine", table)


def test_options_of_tasks_are_named_by_their_section() -> None:
    with pytest.raises(ConfigError, match=r"unknown key 'tasks\.options\.colour'"):
        load_plugins(entry_points=False).options("task_source", "simulated-phone", {"colour": 1})


def test_options_come_first_and_arguments_follow() -> None:
    seen: list[Any] = []

    def factory(*arguments: Any) -> Judge:
        seen.extend(arguments)
        return Judge()

    manager_with(factory).create("evaluator", "mine", {"learning_rate": 0.5}, "context", "more")
    assert seen == [Numbered(learning_rate=0.5), "context", "more"]


def missing(package: str) -> Callable[..., Any]:
    def factory(*arguments: Any) -> Any:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)

    return factory


@pytest.mark.parametrize(
    ("kind", "package", "error", "reason"),
    [
        ("learner", "torch", MissingPackageError, r'needs torch: pip install "distrl\[torch\]"'),
        ("learner", "numpy", MissingPackageError, r'needs numpy: pip install "distrl\[torch\]"'),
        ("device", "PIL", MissingPackageError, r'needs PIL: pip install "distrl\[simulated\]"'),
        ("device", "appium.webdriver", MissingPackageError, r'needs appium: pip install "distrl\[appium\]"'),
        ("evaluator", "rapidocr", MissingPackageError, "needs the package that brings the module rapidocr"),
        ("evaluator", "distrl.plugins.nowhere", PluginError, "does not import"),
    ],
)
def test_a_missing_package_names_the_extra(kind: Any, package: str, error: type[DistrlError], reason: str) -> None:
    with pytest.raises(error, match=reason):
        manager_with(missing(package), kind).create(kind, "mine", {}, None)


def test_an_import_error_that_is_not_a_missing_package_is_the_plugins_fault() -> None:
    manager = manager_with(deferred("distrl.plugins.deferred:Nothing"))
    with pytest.raises(PluginError, match="AttributeError"):
        manager.create("evaluator", "mine", {}, None)

    def wrong_name(*arguments: Any) -> Any:
        from json import nothing_of_that_name  # type: ignore[attr-defined]

        return nothing_of_that_name

    with pytest.raises(PluginError, match="does not import: ImportError"):
        manager_with(wrong_name).create("evaluator", "mine", {}, None)


def raising(error: Exception) -> Callable[..., Any]:
    def factory(*arguments: Any) -> Any:
        raise error

    return factory


def test_what_a_factory_raises_is_named_or_comes_through() -> None:
    with pytest.raises(
        PluginError, match=r"evaluator 'mine' \(plugin test\) cannot be made: KeyError: 'x' \(.*test_plugin_manager"
    ):
        manager_with(raising(KeyError("x"))).create("evaluator", "mine", {}, None)
    with pytest.raises(DeviceError, match="gone"):
        manager_with(raising(DeviceError("gone"))).create("evaluator", "mine", {}, None)


def test_what_does_not_fit_the_contract_is_refused() -> None:
    with pytest.raises(PluginError, match="returned the class Judge, not an instance"):
        manager_with(lambda options, context: Judge).create("evaluator", "mine", {}, None)
    with pytest.raises(PluginError, match="is a object, which lacks evaluate, name, version of Evaluator"):
        manager_with(lambda options, context: object()).create("evaluator", "mine", {}, None)

    class Passing:
        """Passes on what it lacks."""

        def __getattr__(self, name: str) -> Any:
            return getattr(Judge(), name)

    assert manager_with(lambda options, context: Passing()).create("evaluator", "mine", {}, None).name == "judge"


# --- observing ----------------------------------------------------------------------------------


def test_an_observer_that_raises_is_logged_and_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[Any] = []

    class Raises:
        @hookimpl
        def distrl_on_update(self, version: int, result: Any) -> None:
            raise RuntimeError("no\nmood")

    class Listens:
        @hookimpl
        def distrl_on_update(self, version: int) -> None:
            seen.append(version)

        @hookimpl
        def distrl_on_rewards(self, batch: Any) -> None:
            seen.append(batch)

    manager = PluginManager()
    for name, plugin in (("one", Listens), ("two", Raises), ("three", Listens)):
        manager.add(Found(name, name, plugin))
    with caplog.at_level(logging.WARNING):
        manager.observe("distrl_on_update", version=7, result=None)
    assert seen == [7, 7]
    [record] = caplog.records
    assert record.getMessage().startswith(
        "[DISTRL-110] plugin two raised in distrl_on_update, which is ignored: RuntimeError: no mood"
    )
    manager.observe("distrl_on_rewards", batch=["reward"])
    assert seen[2:] == [["reward"], ["reward"]]
    manager.observe("distrl_on_weights", update=None)
    with pytest.raises(ValueError, match="no observe hook"):
        manager.observe("distrl_on_nothing")


def test_a_plugin_may_implement_a_hook_in_several_functions(write: Write) -> None:
    more = GOOD.replace(
        "@distrl.hookimpl\ndef distrl_evaluators", '@distrl.hookimpl(specname="distrl_evaluators")\ndef more'
    )
    path = write(GOOD + more.replace('Registration("lenient"', 'Registration("also-lenient"'))
    manager = load_plugins([path], entry_points=False)
    assert {"lenient", "also-lenient"} <= set(manager.names("evaluator"))


def test_kinds_are_these() -> None:
    assert KINDS == ("collector", "evaluator", "prioritizer", "learner", "policy", "device", "task_source")


def test_a_deferred_factory_wants_a_whole_target() -> None:
    assert deferred("json:dumps")([1]) == "[1]"
    for target in ("json", "json:", ":dumps", "json:a.b"):
        with pytest.raises(ValueError, match=r"package\.module:Name"):
            deferred(target)
