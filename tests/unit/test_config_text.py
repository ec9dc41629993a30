"""Text from the environment and from ``--set`` stays the text that it is, whatever it looks like."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import SecretStr

from distrl.core.config import Config, load_config
from distrl.core.errors import ConfigError

LOOKS = ["123456", "true", "1e5", "1979-05-27", "0x10", "[1]", "{}", '"quoted"', "nan", "a=b", " padded ", "ü"]
"""What TOML would take for something else."""


@pytest.mark.parametrize("text", LOOKS)
@pytest.mark.parametrize(
    "name",
    [
        "bus.password",
        "bus.username",
        "store.access_key",
        "store.secret_key",
        "registry.password",
        "registry.username",
        "policy.plugin",
    ],
)
def test_the_environment_gives_text_as_it_is(name: str, text: str) -> None:
    section, _, key = name.partition(".")
    config = load_config(None, environment={f"DISTRL_{section}__{key}".upper(): text})
    value = getattr(getattr(config, section), key)
    assert (value.get_secret_value() if isinstance(value, SecretStr) else value) == text


def test_every_secret_and_every_text_takes_digits() -> None:
    for section, field in Config.model_fields.items():
        assert isinstance(field.annotation, type)
        for key, setting in field.annotation.model_fields.items():  # type: ignore[attr-defined]
            if setting.annotation in (str, SecretStr, Path):
                text = "1234" if (section, key) != ("run", "name") else "7"
                value = getattr(
                    getattr(load_config(None, environment={f"DISTRL_{section}__{key}".upper(): text}), section), key
                )
                assert (value.get_secret_value() if isinstance(value, SecretStr) else str(value)) == text


@pytest.mark.parametrize("text", LOOKS)
def test_set_takes_text_where_text_is_wanted(text: str) -> None:
    config = load_config(None, overrides=[f"bus.username={text}"], environment={})
    assert config.bus.username == text.strip().strip('"')


def test_what_is_no_text_is_still_toml() -> None:
    environment = {
        "DISTRL_BUS__PARTITIONS": "3",
        "DISTRL_BUS__BOOTSTRAP": '["a:1", "b:2"]',
        "DISTRL_STORE__SECURE": "true",
        "DISTRL_COLLECTOR__OPTIONS__SPEED": "1.5",
        "DISTRL_BUS__CA_FILE": "42",
    }
    config = load_config(None, environment=environment)
    assert (config.bus.partitions, config.bus.bootstrap, config.store.secure) == (3, ("a:1", "b:2"), True)
    assert config.collector.options == {"speed": 1.5}
    assert config.bus.ca_file == Path("42")
    with pytest.raises(ConfigError, match="partitions"):
        load_config(None, environment={"DISTRL_BUS__PARTITIONS": "many"})


def test_a_secret_is_never_part_of_what_is_said_of_it() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, environment={"DISTRL_BUS__PASSWORD": "hunter2", "DISTRL_BUS__PASWORD": "hunter2"})
    assert "hunter2" not in str(caught.value)
