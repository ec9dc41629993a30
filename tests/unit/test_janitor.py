"""The supervisor collects garbage on a schedule, in a process that never holds it up; and bounds its nodes' output."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from distrl.connectors.folder import FolderStore
from distrl.core.config import load_config
from distrl.core.contracts.clock import SystemClock
from distrl.core.runtime import process as process_module
from distrl.core.runtime.janitor import FIRST_S, Janitor
from distrl.core.runtime.process import NodeProcess
from distrl.testing import ManualClock


def settle(janitor: Janitor) -> None:
    """Let a collection end and be taken note of."""
    assert janitor._process is not None
    janitor._process.wait()
    janitor.tick()


def test_it_collects_at_first_soon_and_then_at_an_interval(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(
        f'[run]\nname = "r"\ndirectory = "{tmp_path}"\n[bus]\npath = "{tmp_path}/log"\n[store]\npath = "{tmp_path}/store"\n'
    )
    store = FolderStore(load_config(file, environment={}).store.path)
    store.put("r/notes/a", b"1", media_type="x/y")
    clock = ManualClock()
    janitor = Janitor(file, tmp_path, os.environ, clock, every_hours=2.0)
    janitor.tick()
    assert janitor._process is None
    clock.advance(FIRST_S)
    janitor.tick()
    settle(janitor)
    assert json.loads((tmp_path / "garbage.json").read_text())["found"]["other"]["objects"] == 1
    assert janitor._process is None
    clock.advance(2 * 3600)
    janitor.tick()
    janitor.close()
    assert janitor._process is None


def test_one_that_fails_is_said_and_comes_again(tmp_path: Path) -> None:
    clock = ManualClock()
    janitor = Janitor(tmp_path / "missing.toml", tmp_path, os.environ, clock, every_hours=1.0)
    for _ in range(2):
        clock.advance(3600)
        janitor.tick()
        settle(janitor)
        assert "DISTRL-100" in (tmp_path / "garbage.out").read_text()


def test_never_means_never(tmp_path: Path) -> None:
    clock = ManualClock()
    janitor = Janitor(tmp_path / "c.toml", tmp_path, {}, clock, every_hours=0.0)
    clock.advance(1e6)
    janitor.tick()
    assert janitor._process is None


def test_a_node_s_output_is_set_aside_when_it_is_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_module, "OUTPUT_BYTES", 1000)
    output = tmp_path / "n.out"
    node = NodeProcess("n", "collector", [], output, {}, SystemClock(), patience_s=1.0)
    with output.open("ab", buffering=0) as file:  # as a child writes
        file.write(b"a" * 900)
        node._bound_output()
        assert output.stat().st_size == 900
        file.write(b"b" * 900)
        node._bound_output()
        file.write(b"last words\n")
    assert (output.stat().st_size, node.last_line()) == (11, "last words")
    assert (tmp_path / "n.out.1").stat().st_size == 1800
