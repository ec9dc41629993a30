"""Secrets are left out of files, handed on by environment, and hidden in whatever text they turn up in."""

from __future__ import annotations

import logging
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
import tomli_w

from distrl.core.config import Config, load_config, parse_config
from distrl.core.errors import BusError
from distrl.core.runtime import redaction
from distrl.core.runtime.log import configure_logging
from distrl.core.runtime.process import NodeProcess
from distrl.core.runtime.redaction import HIDDEN, conceal, remember, without_secrets

TABLE: dict[str, Any] = {
    "bus": {"password": "MARKED-bus-\"'\\ü", "username": "me"},
    "store": {"access_key": "MARKED-access", "secret_key": "MARKED-secret"},
    "registry": {"password": "MARKED-registry", "url": "https://me:MARKED-url@registry.example/v7"},
    "device": {
        "options": {"servers": ["http://u:MARKED-server@a:1", "http://b:2"], "api_key": "MARKED-option", "n": 1}
    },
    "policy": {"options": {"tokens": [1, 2], "nested": {"auth_token": "MARKED-nested"}}},
}


@pytest.fixture
def config() -> Iterator[Config]:
    before = set(redaction._known)
    config = parse_config(TABLE)
    remember(config)
    yield config
    redaction._known.clear()
    redaction._known.update(before)


def test_a_file_and_the_environment_make_the_configuration_again(config: Config, tmp_path: Path) -> None:
    table, environment = without_secrets(config)
    file = tmp_path / "config.toml"
    file.write_text(tomli_w.dumps(table))
    assert "MARKED" not in file.read_text()
    assert tomllib.loads(file.read_text())["device"]["options"] == {"n": 1}
    assert load_config(file, environment=environment) == config


def test_a_configuration_without_secrets_stands_whole() -> None:
    table, environment = without_secrets(parse_config({"registry": {"url": "https://registry.example/v7"}}))
    assert environment == {}
    assert table["registry"]["url"] == "https://registry.example/v7"


def test_no_secret_is_in_a_line_of_the_log_or_in_a_traceback(
    config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "node.log"
    configure_logging("debug", file, "n", "r")
    log = structlog.get_logger("distrl.test")
    try:
        try:
            raise BusError(f"cannot log in as {config.bus.password.get_secret_value()} at {config.registry.url}")
        except BusError as error:
            log.exception("failed", error=str(error), store=config.store.secret_key.get_secret_value(), config=config)
        logging.getLogger("other").error("said %s", config.device.options)
    finally:
        configure_logging("info", None, "n", "r")
    written = file.read_text() + capsys.readouterr().err
    assert written.count("failed") == 2
    assert "MARKED" not in written
    assert HIDDEN in written


def test_a_repr_shows_no_secret(config: Config) -> None:
    assert "MARKED-bus" not in repr(config.bus)
    assert "MARKED-secret" not in repr(config.store)
    process = NodeProcess(
        node_id="n",
        role="learner",
        arguments=[],
        output=Path("out"),
        environment=without_secrets(config)[1],
        clock=None,  # type: ignore[arg-type]
        patience_s=1.0,
    )
    assert "MARKED" not in repr(process)


def test_concealing_leaves_other_text() -> None:
    text = '{"url": "http://127.0.0.1:1/x", "to": "a@b", "next": "ftp://host", "who": "c@d"}'
    assert conceal(text) == text
    assert conceal("https://u:p@host/x") == f"https://{HIDDEN}@host/x"
