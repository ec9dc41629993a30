"""TLS and logins of Kafka: what works, and one clear line for each way to get it wrong, at once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from distrl.connectors import open_bus
from distrl.core.cli import exit
from distrl.core.cli.main import command
from distrl.core.config import BusConfig
from distrl.core.contracts.bus import TopicSpec
from distrl.core.contracts.clock import SystemClock
from distrl.core.errors import BusCredentialsError, BusUnavailableError, ConfigError, DistrlError

if TYPE_CHECKING:
    from certificate import Authority
    from conftest import SecureKafka
    from kafka_broker import KafkaServer

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(400)]

PATIENCE_S = 60.0
"""Given to a ping that must not use it up: what is wrong is said at once, not when time is over."""


def ping(config: BusConfig) -> None:
    with open_bus(config, clock=SystemClock(), client_id="test") as bus:
        bus.ping(PATIENCE_S)


def refusal(config: BusConfig) -> DistrlError:
    with pytest.raises(DistrlError) as caught:
        ping(config)
    assert "\n" not in str(caught.value)
    assert "password" not in str(caught.value).replace("DISTRL_BUS__PASSWORD", "").replace("username or password", "")
    return caught.value


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_records_go_over_a_login_and_tls(secure_kafka: SecureKafka, mechanism: str) -> None:
    config = secure_kafka.bus_config(sasl_mechanism=mechanism)
    name = f"distrl.login.{mechanism.lower()}"
    with open_bus(config, clock=SystemClock(), client_id="test") as bus:
        bus.admin().create([TopicSpec(name)])
        with bus.producer(fence=name) as producer:
            producer.send(name, b"v").result(60.0)
        with bus.consumer([name], group=name) as consumer:
            while not (records := consumer.poll(1.0)):
                pass
        assert [record.value for record in records] == [b"v"]
        bus.admin().delete([name])


def wrong_authority(folder: Path) -> dict[str, Any]:
    from certificate import Authority

    return {"ca_file": Authority(folder / "other").ca_file}


REFUSED: dict[str, tuple[dict[str, Any], type[DistrlError], str]] = {
    "wrong password": ({"password": "no"}, BusCredentialsError, "refused the login (Authentication failed"),
    "wrong password, SCRAM": (
        {"password": "no", "sasl_mechanism": "SCRAM-SHA-512"},
        BusCredentialsError,
        "refused the login (Authentication failed",
    ),
    "unknown user": ({"username": "stranger"}, BusCredentialsError, "refused the login (Authentication failed"),
    "a login that is not offered": (
        {"sasl_mechanism": "SCRAM-SHA-256"},
        BusCredentialsError,
        "refused the login (UnsupportedSaslMechanismError)",
    ),
    "wrong authority": ({"ca_file": wrong_authority}, BusCredentialsError, "cannot be trusted (unable to get local"),
    "no authority": ({"ca_file": None}, BusCredentialsError, "cannot be trusted (unable to get local"),
    "no TLS": ({"security_protocol": "PLAINTEXT"}, BusUnavailableError, "another protocol, TLS perhaps"),
    "a login without TLS": (
        {"security_protocol": "SASL_PLAINTEXT"},
        BusUnavailableError,
        "another protocol, TLS perhaps",
    ),
    "no login": ({"security_protocol": "SSL"}, BusUnavailableError, "bus.security_protocol is theirs"),
    "no user": ({"username": ""}, ConfigError, "set bus.sasl_mechanism, bus.username"),
    "no mechanism": ({"sasl_mechanism": ""}, ConfigError, "set bus.sasl_mechanism, bus.username"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_wrong_is_said_in_one_line(secure_kafka: SecureKafka, tmp_path: Path, case: str) -> None:
    settings, kind, words = REFUSED[case]
    made = {key: value(tmp_path)[key] if callable(value) else value for key, value in settings.items()}
    error = refusal(secure_kafka.bus_config(**made))
    assert type(error) is kind
    assert words in str(error)


def test_tls_where_none_is_spoken(kafka_server: KafkaServer) -> None:
    error = refusal(BusConfig(kind="kafka", bootstrap=(kafka_server.bootstrap,), security_protocol="SSL"))
    assert type(error) is BusUnavailableError
    assert "do not speak TLS" in str(error)


@pytest.mark.parametrize("program", ["distrl", "distrl-node"])
def test_programs_say_it_and_end(secure_kafka: SecureKafka, tmp_path: Path, program: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(
        f'[bus]\nkind = "kafka"\nbootstrap = ["{secure_kafka.server.bootstrap}"]\nsecurity_protocol = "SASL_SSL"\n'
        f'sasl_mechanism = "SCRAM-SHA-512"\nusername = "admin"\nca_file = "{secure_kafka.authority.ca_file}"\n'
    )
    if program == "distrl":
        call = ["distrl.core.cli.main", "topics", "plan"]
    else:
        call = ["distrl.core.cli.node", "--role", "prioritizer"]
    done = subprocess.run(
        [sys.executable, "-m", *call, "--config", str(file)],
        cwd=tmp_path,
        env={**os.environ, "DISTRL_BUS__PASSWORD": "987654321"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 3
    assert done.stderr.splitlines()[-1].startswith("error [DISTRL-308]: connecting: the Kafka brokers")
    assert "Traceback" not in done.stderr
    assert "987654321" not in done.stdout + done.stderr


def test_doctor_says_it(secure_kafka: SecureKafka, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "config.toml"
    file.write_text(
        f'[bus]\nkind = "kafka"\nbootstrap = ["{secure_kafka.server.bootstrap}"]\nsecurity_protocol = "SSL"\n'
        f'[store]\npath = "{tmp_path}/store"\n'
    )
    assert exit.run(command, ["doctor", "--config", str(file)]) == 3
    shown = " ".join(capsys.readouterr().out.split())
    assert "[DISTRL-308] connecting: the certificate of the Kafka brokers" in shown


# --- certificates of brokers and clients ----------------------------------------------------------------


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    from certificate import Authority

    return Authority(tmp_path_factory.mktemp("tls"))


@contextmanager
def behind_tls(folder: Path, **security: Any) -> Iterator[KafkaServer]:
    from kafka_broker import Security, start_kafka

    with start_kafka(folder / "state", security=Security("SSL", **security)) as server:
        yield server


def test_a_certificate_that_ran_out_or_is_anothers_is_not_trusted(authority: Authority, tmp_path: Path) -> None:
    for number, (made, words) in enumerate(
        (
            (authority.issue(file="expired", expired=True), "certificate has expired"),
            (authority.issue("elsewhere.example", file="elsewhere"), "IP address mismatch"),
        )
    ):
        with behind_tls(tmp_path / str(number), key_store=made.both_file) as server:
            error = refusal(
                BusConfig(
                    kind="kafka",
                    bootstrap=(server.bootstrap,),
                    security_protocol="SSL",
                    ca_file=authority.ca_file,
                )
            )
            assert type(error) is BusCredentialsError
            assert words in str(error)


def test_a_client_shows_its_certificate(authority: Authority, tmp_path: Path) -> None:
    from certificate import Authority as Another

    client = authority.issue("client", file="client")
    stranger = Another(tmp_path / "other").issue("stranger", file="stranger")
    with behind_tls(tmp_path, key_store=authority.issue().both_file, client_ca=authority.ca_file) as server:

        def config(**files: Path) -> BusConfig:
            return BusConfig(
                kind="kafka",
                bootstrap=(server.bootstrap,),
                security_protocol="SSL",
                ca_file=authority.ca_file,
                **files,  # type: ignore[arg-type]
            )

        ping(config(cert_file=client.cert_file, key_file=client.key_file))
        ping(config(cert_file=client.both_file))
        for files in ({}, {"cert_file": stranger.cert_file, "key_file": stranger.key_file}):
            error = refusal(config(**files))
            assert type(error) is BusCredentialsError
            assert "check bus.cert_file and bus.key_file" in str(error)


def test_files_that_cannot_be_used_are_named(authority: Authority, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    client, other = authority.issue("client", file="client"), authority.issue("other", file="other")
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("no certificate")
    encrypted = tmp_path / "encrypted.key"
    encrypted.write_bytes(
        serialization.load_pem_private_key(client.key_file.read_bytes(), None).private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    wrong: list[tuple[dict[str, Path], str]] = [
        ({"ca_file": tmp_path / "absent"}, r"bus\.ca_file: there is no file"),
        ({"ca_file": garbage}, r"bus\.ca_file: .* holds no certificate"),
        ({"cert_file": tmp_path / "absent", "key_file": client.key_file}, r"bus\.cert_file: there is no file"),
        ({"cert_file": client.cert_file, "key_file": tmp_path / "absent"}, r"bus\.key_file: there is no file"),
        ({"cert_file": client.cert_file, "key_file": other.key_file}, r"bus\.key_file .* with its private key"),
        ({"cert_file": client.cert_file}, r"bus\.key_file in it .* with its private key"),
        ({"cert_file": client.cert_file, "key_file": encrypted}, "not encrypted"),
        ({"key_file": client.key_file}, r"bus\.cert_file, which is not set"),
    ]
    for files, words in wrong:
        config = BusConfig(kind="kafka", bootstrap=("127.0.0.1:1",), security_protocol="SSL", **files)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=words):
            ping(config)
