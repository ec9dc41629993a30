"""``make test`` on a machine that lacks a tool: it is named, with the command that brings it, before anything is installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_missing_tools_are_named_all_at_once_with_what_brings_them(tmp_path: Path) -> None:
    (tmp_path / "java").write_text("#!/bin/sh\n")
    (tmp_path / "java").chmod(0o755)
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
    assert "java is missing" not in done.stderr


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
