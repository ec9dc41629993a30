"""An S3 store behind TLS, and one clear line for each way to get it wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from distrl.connectors import open_store
from distrl.core.cli import exit
from distrl.core.cli.main import command
from distrl.core.config import StoreConfig
from distrl.core.errors import ConfigError, StoreCredentialsError, StoreError

if TYPE_CHECKING:
    from certificate import Authority
    from seaweedfs import S3Server

pytestmark = [pytest.mark.s3, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    from certificate import Authority

    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def server(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    from seaweedfs import start_s3

    certificate = authority.issue()
    with start_s3(tmp_path_factory.mktemp("s3") / "state", tls=(certificate.cert_file, certificate.key_file)) as server:
        yield server


@pytest.fixture
def config(server: S3Server, authority: Authority) -> Callable[..., StoreConfig]:
    def make(**settings: Any) -> StoreConfig:
        return StoreConfig(
            **{
                "kind": "s3",
                "endpoint": server.endpoint,
                "secure": True,
                "ca_file": authority.ca_file,
                "bucket": "tls",
                "access_key": server.access_key,
                "secret_key": server.secret_key,
                "timeout_seconds": 10.0,
                **settings,
            }
        )

    return make


def test_objects_go_over_tls(config: Callable[..., StoreConfig]) -> None:
    with open_store(config()) as store:
        store.ping()
        ref = store.put("run/a", b"content", media_type="text/plain")
        assert store.get(ref) == b"content"
        assert [stat.key for stat in store.list("run/")] == ["run/a"]
        large = bytes(range(256)) * 80_000  # in parts
        assert store.get(store.put("run/large", large, media_type="application/octet-stream")) == large


def other_authority(folder: Path) -> Path:
    from certificate import Authority

    return Authority(folder / "other").ca_file


@pytest.mark.parametrize(
    ("settings", "kind", "words"),
    [
        ({"ca_file": other_authority}, StoreCredentialsError, "cannot be trusted (unable to get local issuer"),
        ({"ca_file": None}, StoreCredentialsError, "cannot be trusted (unable to get local issuer"),
        ({"secret_key": "wrong"}, StoreCredentialsError, "see store.access_key and store.secret_key"),
        ({"access_key": "unknown"}, StoreCredentialsError, "see store.access_key and store.secret_key"),
        ({"secure": False}, StoreError, "it may want TLS (store.secure)"),
    ],
    ids=["wrong authority", "no authority", "wrong secret", "unknown key", "no TLS"],
)
def test_what_is_wrong_is_said_in_one_line(
    config: Callable[..., StoreConfig], tmp_path: Path, settings: dict[str, Any], kind: type[StoreError], words: str
) -> None:
    made = {key: value(tmp_path) if callable(value) else value for key, value in settings.items()}
    with open_store(config(**made)) as store, pytest.raises(kind) as caught:
        store.ping()
    assert type(caught.value) is kind
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_certificate_for_another_host_is_not_trusted(
    authority: Authority, config: Callable[..., StoreConfig], tmp_path: Path
) -> None:
    from seaweedfs import start_s3

    certificate = authority.issue("elsewhere.example", file="elsewhere")
    with (
        start_s3(tmp_path / "state", tls=(certificate.cert_file, certificate.key_file)) as other,
        open_store(config(endpoint=other.endpoint)) as store,
        pytest.raises(StoreCredentialsError, match="IP address mismatch"),
    ):
        store.ping()


def test_a_missing_authority_file_is_named(config: Callable[..., StoreConfig], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"store\.ca_file: there is no file"):
        open_store(config(ca_file=tmp_path / "absent.pem"))
    (tmp_path / "garbage.pem").write_text("no certificate")
    with pytest.raises(ConfigError, match=r"store\.ca_file.*no certificate"):
        open_store(config(ca_file=tmp_path / "garbage.pem"))


def test_doctor_says_it_too(
    config: Callable[..., StoreConfig], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = config(ca_file=other_authority(tmp_path))
    file = tmp_path / "config.toml"
    file.write_text(
        f'[bus]\npath = "{tmp_path}/log"\n[store]\nkind = "s3"\nendpoint = "{store.endpoint}"\nsecure = true\n'
        f'ca_file = "{store.ca_file}"\naccess_key = "{store.access_key}"\n'
    )
    arguments = ["doctor", "--config", str(file), "--set", f"store.secret_key={store.secret_key.get_secret_value()}"]
    assert exit.run(command, arguments) == 3
    shown = " ".join(capsys.readouterr().out.split())
    assert "[DISTRL-407]" in shown
    assert "cannot be trusted" in shown
    assert store.secret_key.get_secret_value() not in shown
