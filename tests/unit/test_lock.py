"""The locks fit ``pyproject.toml``, carry a hash for everything and no registry's address."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]
GROUPS: dict[str, list[str]] = PROJECT["dependency-groups"]
PINNED = re.compile(r"^([a-z0-9][a-z0-9._-]*)==(\S+)", re.MULTILINE)


def pins(name: str) -> dict[str, str]:
    return dict(PINNED.findall((ROOT / "locks" / f"{name}.lock").read_text(encoding="utf-8")))


def wanted(extras: list[str], groups: list[str]) -> list[Requirement]:
    texts = [*PROJECT["project"]["dependencies"]]
    for extra in extras:
        texts += EXTRAS[extra]
    for group in groups:
        texts += GROUPS[group]
    return [requirement for text in texts if (requirement := Requirement(text)).name != "distrl"]


@pytest.mark.parametrize(
    ("name", "extras", "groups"),
    [
        ("demo", ["torch", "simulated"], ["build"]),
        ("test", sorted(EXTRAS), sorted(GROUPS)),
    ],
)
def test_a_lock_has_what_the_project_asks_for(name: str, extras: list[str], groups: list[str]) -> None:
    locked = pins(name)
    for requirement in wanted(extras, groups):
        version = locked.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement.name} is not in {name}.lock: run make lock"
        assert requirement.specifier.contains(version), f"{requirement} against {version}: run make lock"


def test_the_demo_uses_the_versions_that_are_tested() -> None:
    assert pins("demo").items() <= pins("test").items()


@pytest.mark.parametrize("name", ["demo", "test"])
def test_a_lock_names_hashes_and_no_address(name: str) -> None:
    text = (ROOT / "locks" / f"{name}.lock").read_text(encoding="utf-8")
    assert "://" not in text
    assert "--index-url" not in text
    entries = re.split(r"^(?=\S)", text, flags=re.MULTILINE)
    assert all("--hash=sha256:" in entry for entry in entries if entry.strip())
