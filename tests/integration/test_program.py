"""A server's programs are fetched once, whole or not at all."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

WRITES = "from pathlib import Path; Path('program').write_text('whole')"
FAILS = "from pathlib import Path; Path('program').write_text('half'); raise SystemExit('the registry is away')"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("DISTRL_CACHE", str(folder))
    return folder


def test_what_is_fetched_is_fetched_once_for_each_description(tmp_path: Path, cache: Path) -> None:
    from program import fetch

    description = tmp_path / "package.json"
    description.write_text("1")
    calls: list[Path] = []

    def command(folder: Path) -> list[str]:
        calls.append(folder)
        return [sys.executable, "-c", WRITES]

    first = fetch("Tool", description, command)
    assert fetch("Tool", description, command) == first
    assert (first / "program").read_text() == "whole"
    assert (first / "package.json").read_text() == "1"
    description.write_text("2")
    second = fetch("Tool", description, command)
    assert second != first
    assert len(calls) == 2
    assert set(cache.iterdir()) == {first, second}


def test_half_of_a_download_is_never_used(tmp_path: Path, cache: Path) -> None:
    from program import fetch
    from server import ServerError

    description = tmp_path / "package.json"
    description.write_text("1")
    with pytest.raises(ServerError, match=r"Tool could not be fetched(.|\n)*the registry is away"):
        fetch("Tool", description, lambda _folder: [sys.executable, "-c", FAILS])
    assert list(cache.iterdir()) == []
    folder = fetch("Tool", description, lambda _folder: [sys.executable, "-c", WRITES])
    assert (folder / "program").read_text() == "whole"
