"""Every configuration in ``examples/`` is one that this version reads, with options that its plugins accept."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from distrl.core.config import load_config
from distrl.plugins.manager import SECTIONS, Kind, load_plugins

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "examples").glob("*.toml"))


def test_there_are_examples() -> None:
    assert EXAMPLES


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_valid_to_the_last_option(path: Path) -> None:
    config = load_config(path, environment={})
    manager = load_plugins(entry_points=False)
    kinds: tuple[Kind, ...] = get_args(Kind)
    for kind in kinds:
        section = getattr(config, SECTIONS[kind])
        manager.options(kind, section.plugin, section.options)
    assert config.collector.demonstrations >= config.learner.options.get("demonstrations", 0)
