"""Secrets of a supervised run reach its nodes by environment alone: none is in the configuration that it writes."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import SecretStr

from distrl.core.config import Config, load_config, parse_config
from distrl.core.runtime.supervisor import _write_config, child_environment

SECRETS = {
    "bus": {"password": "bus's own"},
    "store": {"access_key": "key", "secret_key": 'store\'s "own"'},
    "registry": {"password": "registry's own"},
}


def test_every_secret_of_a_section_is_among_those_looked_for() -> None:
    """A new one must be added here, and so be tested below."""
    found = {
        (section, key)
        for section, field in Config.model_fields.items()
        for key, inner in getattr(field.annotation, "model_fields", {}).items()
        if inner.annotation is SecretStr
    }
    assert found | {("store", "access_key")} == {(section, key) for section, keys in SECRETS.items() for key in keys}


def test_nodes_get_what_the_file_leaves_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTRL_REGISTRY__URL", "http://elsewhere")
    config = parse_config({**SECRETS, "run": {"name": "r", "directory": str(tmp_path)}})
    path = tmp_path / "config.toml"
    _write_config(config, path, ())
    text = path.read_text(encoding="utf-8")
    assert not any(value in text for keys in SECRETS.values() for value in keys.values())
    assert "****" not in text
    environment = child_environment(config)
    assert "DISTRL_REGISTRY__URL" not in environment, (
        "what stands in the file as used goes over the parent's environment"
    )
    read = load_config(path, environment=environment)
    assert read == config
