"""``make test`` on a machine that lacks a tool, or has an old one, and after an environment that was only half made."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_missing_tools_are_named_all_at_once_with_what_brings_them(tmp_path: Path) -> None:
    program(tmp_path / "java", 'openjdk version "25.0.3" 2026-04-21')
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "prepare.py", "test"],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 3
    assert done.stdout == ""
    for tool in ("mvn", "node", "npm"):
        [line] = [line for line in done.stderr.splitlines() if f"{tool} is missing" in line]
        assert "install" in line
    assert "java" not in done.stderr


OLD_JAVA = 'java version "1.8.0_402"'
"""As releases before 9 say it."""


@pytest.mark.parametrize(
    ("java", "node", "named"),
    [
        (OLD_JAVA, "v20.19.0", ["java"]),
        ('openjdk version "11.0.2" 2019-01-15', "v22.12.0", ["java"]),
        ('openjdk version "21" 2023-09-19', "v18.20.4", ["node"]),
        ('openjdk version "21" 2023-09-19', "v22.11.0", ["node"]),
        ('openjdk version "25.0.3" 2026-04-21', "v21.7.0", ["node"]),
        ("Unable to locate a Java Runtime.", "v20.18.3", ["java", "node"]),
    ],
)
def test_tools_that_are_too_old_are_named_with_what_brings_others(
    tmp_path: Path, java: str, node: str, named: list[str]
) -> None:
    for tool, says in {"java": java, "node": node, "mvn": "", "npm": ""}.items():
        program(tmp_path / tool, says)
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "prepare.py", "test"],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 3
    lines = done.stderr.splitlines()
    assert [Path(line.split(" is no ")[0].split()[-1]).name for line in lines] == named
    assert all("install" in line for line in lines)


def program(path: Path, says: str) -> None:
    """A program that only says its version, where Java says it."""
    path.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    path.chmod(0o755)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout without an environment, as far as ``prepare.py`` looks at it."""
    for name in ("tools/prepare.py", "locks/demo.lock", "locks/test.lock", "pyproject.toml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def prepare(checkout: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Up to the point where packages are asked for: there is no index."""
    return subprocess.run(
        [sys.executable, checkout / "tools" / "prepare.py", "demo"],
        env={**os.environ, "PIP_NO_INDEX": "1", **variables},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def has_pip(checkout: Path) -> bool:
    command = [checkout / ".venv" / "bin" / "python", "-m", "pip", "--version"]
    return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0


def test_an_environment_that_was_left_without_pip_is_made_again(checkout: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", checkout / ".venv"], check=True, timeout=60)
    assert not has_pip(checkout)
    done = prepare(checkout)
    assert "pip install" in done.stderr  # that far it came
    assert has_pip(checkout)


def test_a_python_without_ensurepip_leaves_nothing_behind(
    checkout: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    # As Debian's Python without python3-venv does: it makes bin/python, then misses ensurepip and ends with status 1.
    broken = tmp_path_factory.mktemp("broken")
    (broken / "venv.py").write_text(
        "import os, sys\n"
        "os.makedirs(sys.argv[1] + '/bin')\n"
        "os.symlink(sys.executable, sys.argv[1] + '/bin/python')\n"
        "sys.exit(1)\n"
    )
    done = prepare(checkout, PYTHONPATH=str(broken))
    assert done.returncode == 3
    assert "apt-get install -y python3-venv" in done.stderr
    assert not (checkout / ".venv").exists()


def test_a_machine_without_python_is_told_what_to_install(tmp_path: Path) -> None:
    done = subprocess.run(
        ["/usr/bin/make", "-C", ROOT, "python", "PYTHON="],
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    assert "apt-get install -y python3" in done.stderr
