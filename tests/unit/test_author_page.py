"""The page for authors of plugins: its example and its test run as they stand there."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import distrl
import distrl.plugins
import distrl.testing
from distrl.plugins.manager import load_plugins
from distrl.testing import make_context, make_trajectory

PAGE = distrl.plugins.__doc__ or ""


def block(start: str) -> str:
    """The indented block after the ``::`` whose first line starts with ``start``."""
    found = re.search(rf"::\n\n((?:    {re.escape(start)}.*\n)(?:    .*\n|\n)*)", PAGE)
    assert found, start
    return textwrap.dedent(found[1])


def test_the_example_runs_as_one_file(tmp_path: Path) -> None:
    path = tmp_path / "brief.py"
    path.write_text(block("from collections.abc import Sequence"), encoding="utf-8")
    manager = load_plugins([path], entry_points=False)
    evaluator = manager.create("evaluator", "brief", {"most_steps": 3}, make_context(tmp_path))
    verdicts = evaluator.evaluate(
        [make_trajectory(steps=2), make_trajectory(steps=6), make_trajectory(outcome="horizon")]
    )
    assert [verdict.success for verdict in verdicts] == [1.0, 0.5, 0.0]


def test_the_test_on_the_page_passes(tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    exec(block("from collections.abc import Sequence"), names)
    exec(block("from distrl.testing import"), names)
    names["test_brief"](tmp_path)


def test_the_configuration_on_the_page_is_one(tmp_path: Path) -> None:
    from distrl.core.config import load_config

    path = tmp_path / "run.toml"
    path.write_text(block("[evaluator]"), encoding="utf-8")
    assert load_config(path, environment={}).evaluator.options == {"most_steps": 3}


def test_everything_that_the_facades_promise_is_there() -> None:
    for module in (distrl, distrl.testing):
        assert sorted(module.__all__) == sorted(set(module.__all__))
        for name in module.__all__:
            assert getattr(module, name) is not None
    assert {"Collector", "Evaluator", "Prioritizer", "Learner", "Policy", "Device", "TaskSource"} <= set(distrl.__all__)
