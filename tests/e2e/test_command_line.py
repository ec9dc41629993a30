"""``distrl`` and ``distrl-node`` as a user meets them: processes, exit codes, one-line errors, what is imported."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from distrl.core.cli.main import COMMANDS
from distrl.core.cli.template import TEMPLATES

HEAVY = ("torch", "numpy", "PIL", "kafka", "minio", "fastavro", "rich", "structlog", "appium")
MODULES = {"distrl": "distrl.core.cli.main", "distrl-node": "distrl.core.cli.node"}
BARE = ("core", "plugins", "connectors", "schemas")


def call(
    program: str, *arguments: str, cwd: Path | None = None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", MODULES[program], *arguments],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def fails(done: subprocess.CompletedProcess[str], code: int, *texts: str) -> None:
    assert done.returncode == code, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("error [DISTRL-")
    for text in texts:
        assert text in done.stderr


@pytest.mark.parametrize("program", sorted(MODULES))
def test_help_imports_nothing_heavy(program: str) -> None:
    code = (
        f"import sys\nfrom distrl.core.cli import exit\nfrom {MODULES[program]} import command\n"
        "code = exit.run(command, ['--help'])\n"
        f"print([name for name in {HEAVY + BARE!r} if name in sys.modules], code, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("Usage: ")
    assert done.stderr == "[] 0\n"


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_help_without_torch(name: str) -> None:
    code = (
        "import sys\nfrom distrl.core.cli import exit\nfrom distrl.core.cli.main import command\n"
        f"code = exit.run(command, [{name!r}, '--help'])\n"
        "print([name for name in ('torch', 'kafka', 'appium') if name in sys.modules], code, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == "[] 0\n"
    assert "Options:" in done.stdout


def test_help_lists_every_command_with_its_line() -> None:
    done = call("distrl", "--help")
    assert done.returncode == 0
    for name, summary in COMMANDS.items():
        assert name in done.stdout
        assert summary in " ".join(done.stdout.split())


def test_the_version_is_that_of_the_package() -> None:
    from importlib.metadata import version

    assert version("distrl") in call("distrl", "--version").stdout


def test_usage_and_configuration_errors_are_one_line_with_a_hint(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("[learner]\nmaxlag = 3\n")
    fails(call("distrl", "stauts"), 2, "did you mean 'status'?")
    fails(call("distrl", "run"), 2, "--config")
    fails(call("distrl", "run", "--config", str(tmp_path / "no.toml")), 2, "DISTRL-100", "no.toml")
    fails(call("distrl", "run", "--config", str(config)), 2, "learner.maxlag", "learner.max_lag")
    fails(call("distrl-node", "--role", "learner", "--config", str(config)), 2, "learner.max_lag")
    fails(call("distrl-node", "--role", "judge", "--config", str(config)), 2, "collector")
    config.write_text("")
    fails(call("distrl", "run", "--config", str(config), "--set", "bugdet.minutes=1"), 2, "budget")
    fails(call("distrl", "run", "--config", str(config), env={"DISTRL_RUN__SED": "1"}), 2, "run.seed")


def test_an_unknown_plugin_is_named_with_the_nearest(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text('[evaluator]\nplugin = "sate"\n')
    fails(call("distrl", "plugins", "show", "a-rid"), 2, "DISTRL-111", "'a-ride'")
    node = call("distrl-node", "--role", "evaluator", "--config", str(config), cwd=tmp_path)
    assert node.returncode == 2
    last = node.stderr.splitlines()[-1]
    assert last.startswith("error [DISTRL-111]")
    assert "'state'" in last


def test_a_plugin_that_does_not_import_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import a_package_that_is_nowhere\n")
    config = tmp_path / "run.toml"
    config.write_text("")
    for call_of in (
        ("distrl", "run", "--config", str(config)),
        ("distrl-node", "--role", "evaluator", "--config", str(config)),
    ):
        done = call(*call_of, "--plugin", str(tmp_path / "broken.py"), cwd=tmp_path)
        assert done.returncode == 2, done.stderr
        last = done.stderr.strip().splitlines()[-1]
        assert last.startswith("error [DISTRL-110]")
        assert "broken.py" in last
        assert "a_package_that_is_nowhere" in last


def test_a_missing_plugin_file_is_named(tmp_path: Path) -> None:
    fails(call("distrl", "plugins", "list", "--plugin", str(tmp_path / "no.py")), 2, "DISTRL-110", "no.py")


def test_a_traceback_comes_with_debug_alone() -> None:
    plain = call("distrl", "plugins", "show", "nothing-of-that-name")
    debug = call("distrl", "plugins", "show", "nothing-of-that-name", "--debug")
    assert "Traceback" not in plain.stderr
    assert "Traceback" in debug.stderr
    assert plain.returncode == debug.returncode == 2


def test_plugins_are_listed_for_people_and_programs() -> None:
    rows = json.loads(call("distrl", "plugins", "list", "--json").stdout)
    offered = {(row["kind"], row["name"]) for row in rows}
    assert {("policy", "factored"), ("learner", "a-ride"), ("prioritizer", "dper"), ("device", "appium")} <= offered
    assert "a-ride" in call("distrl", "plugins", "list").stdout
    [plugin] = json.loads(call("distrl", "plugins", "show", "dper", "--json").stdout)
    assert "td_weight" in {option["key"] for option in plugin["offers"][0]["options"]}


@pytest.mark.parametrize("template", TEMPLATES)
def test_init_writes_what_run_reads(template: str, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "run"
    assert call("distrl", "init", str(folder), "--template", template).returncode == 0
    config = folder / "config.toml"
    fails(call("distrl", "init", str(folder), "--template", template), 2, "--force")
    config.write_text("[run]\n")
    assert call("distrl", "init", str(folder), "--template", template, "--force").returncode == 0
    planned = call("distrl", "topics", "plan", "--config", str(config), "--json", cwd=tmp_path)
    assert planned.returncode == 0, planned.stderr
    assert {row["state"] for row in json.loads(planned.stdout)} == {"missing"}


def test_a_closed_pipe_is_no_error() -> None:
    script = f"{sys.executable} -m {MODULES['distrl']} plugins show a-ride --json | head -c 1"
    done = subprocess.run(["/bin/bash", "-c", f"{script}; exit ${{PIPESTATUS[0]}}"], capture_output=True, timeout=60)
    assert done.returncode == 0
    assert done.stderr == b""


def test_an_interrupted_command_ends_with_130(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("")
    assert call("distrl", "topics", "apply", "--config", str(config), cwd=tmp_path).returncode == 0
    process = subprocess.Popen(
        [sys.executable, "-m", MODULES["distrl"], "status", "--watch", "--json", "--config", str(config)],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"{")
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    assert error.strip() == b"interrupted"
