"""Every configuration that ships is one that this version reads, with options that its plugins accept."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import get_args

import pytest

from distrl.core.cli.template import TEMPLATES, template_path
from distrl.core.config import Config, load_config
from distrl.plugins.manager import SECTIONS, Kind, PluginManager, load_plugins

NAMES = ("demo", *TEMPLATES)
OWN_TASKS = {"android": "my-tasks"}
"""The Android template names a task source that its user writes."""


@pytest.fixture(scope="module")
def manager() -> PluginManager:
    return load_plugins(entry_points=False)


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_configuration_is_valid_to_the_last_option(name: str, manager: PluginManager) -> None:
    config = load_config(template_path(name), environment={})
    assert config.run.name == name
    kinds: tuple[Kind, ...] = get_args(Kind)
    for kind in kinds:
        section = getattr(config, SECTIONS[kind])
        if section.plugin != OWN_TASKS.get(name):
            manager.options(kind, section.plugin, section.options)
    assert config.collector.demonstrations >= config.learner.options.get("demonstrations", 0)


def test_every_shipped_file_is_offered() -> None:
    assert {path.stem for path in template_path("demo").parent.glob("*.toml")} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_commented_out_would_be_valid_too(name: str) -> None:
    text = template_path(name).read_text(encoding="utf-8")
    section = ""
    for line in text.splitlines():
        if header := re.match(r"\[(\w+)\]", line):
            section = header[1]
        if not (option := re.match(r"# ((?:[a-z_]+\.)*[a-z_]+ = .+)", line)):
            continue
        table = tomllib.loads(f"[{section}]\n{option[1]}")
        assert Config.model_validate(table), Path(name)
