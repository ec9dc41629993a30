"""The Kafka broker without docker: one KRaft node from Maven's jars, on 127.0.0.1. Used by the tests and ``stack.py``.

Open to everyone on this machine, or, with a ``Security``, behind TLS, logins and rights.
"""

from __future__ import annotations

import base64
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from program import fetch, find_program
from server import HOST, Server, ServerError, free_port, port_answers, write_private

POM = Path(__file__).parent / "kafka" / "pom.xml"
_NEEDED_BY = "the Kafka broker"


def broker_jars() -> Path:
    """The folder with the broker's jars, fetched through Maven the first time. Raises ``ServerError``."""

    def command(folder: Path) -> list[str]:
        maven = find_program("mvn", needed_by=_NEEDED_BY, command="apt-get install -y maven")
        return [maven, "-q", "-B", "-f", str(POM), "dependency:copy-dependencies", f"-DoutputDirectory={folder}"]

    return fetch("Kafka", POM, command)


def _java() -> str:
    return find_program("java", needed_by=_NEEDED_BY, command="apt-get install -y openjdk-17-jre-headless")


@dataclass(frozen=True, slots=True)
class Security:
    """How a broker lets clients in, and what they may do there. Passwords must not hold quotes or backslashes."""

    protocol: Literal["SSL", "SASL_SSL", "SASL_PLAINTEXT"]
    key_store: Path | None = None
    """With TLS, a PEM file: the broker's private key (PKCS 8) and its certificate."""
    client_ca: Path | None = None
    """A PEM file; a client needs a certificate that this authority signed."""
    users: Mapping[str, str] = field(default_factory=dict)
    """With SASL: passwords by name, by ``PLAIN`` and by ``SCRAM-SHA-512``. ``ADMIN`` may do all."""
    rights: bool = False
    """Nobody but ``ADMIN`` may do what no access control list allows."""


ADMIN = "admin"


class KafkaServer(Server):
    """One broker that is its own controller. Data, offsets and transactions outlive ``kill`` and ``restart``."""

    name = "Kafka"
    start_seconds = 120.0
    """A busy machine of two cores has taken 50."""

    def __init__(
        self,
        state_dir: Path,
        *,
        port: int | None = None,
        detached: bool = False,
        security: Security | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """``settings`` go over those of ``server.properties`` that stand here."""
        super().__init__(state_dir, port=port, detached=detached)
        self._security = security
        self._extra = settings or {}
        self._controller_port = free_port()
        self._jars = Path()

    @property
    def bootstrap(self) -> str:
        """``host:port`` for clients."""
        return self.address

    @property
    def _properties(self) -> Path:
        return self.state_dir / "server.properties"

    def prepare(self) -> None:
        java = _java()
        self._jars = broker_jars()
        settings = {**self._settings(), **self._secured(), **self._extra}
        write_private(self._properties, "".join(f"{key}={value}\n" for key, value in settings.items()))
        if (self.state_dir / "data" / "meta.properties").exists():
            return
        # Any base64 of 16 bytes will do, but one that starts with a dash is taken for an option.
        cluster = base64.urlsafe_b64encode(b"\0" + uuid.uuid4().bytes[1:]).decode().rstrip("=")
        done = subprocess.run(
            [
                *(java, "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{self._jars}/*"),
                *("kafka.tools.StorageTool", "format", "--standalone", "-t", cluster, "-c", str(self._properties)),
                *(f"--add-scram=SCRAM-SHA-512=[name={name},password={word}]" for name, word in self._users.items()),
            ],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=self.start_seconds,
            check=False,
        )
        if done.returncode != 0:
            raise ServerError(f"Kafka's storage could not be formatted:\n{(done.stdout + done.stderr)[-2000:]}")

    def command(self) -> Sequence[str]:
        return [
            _java(),
            "-Xmx512m",
            "-XX:+UseSerialGC",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-cp",
            f"{self._jars}/*",
            "kafka.Kafka",
            str(self._properties),
        ]

    def answers(self) -> bool:
        return port_answers(self.port)

    def tool(self, main_class: str, *arguments: str) -> list[str]:
        """What runs one of Kafka's own tools, ``org.apache.kafka.tools.TopicCommand`` for example."""
        return [_java(), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", f"{self._jars}/*", main_class, *arguments]

    @property
    def _users(self) -> Mapping[str, str]:
        return self._security.users if self._security and self._security.protocol.startswith("SASL") else {}

    def _secured(self) -> dict[str, object]:
        security = self._security
        if security is None:
            return {}
        name = security.protocol
        settings: dict[str, object] = {
            "listeners": f"{name}://{HOST}:{self.port},CONTROLLER://{HOST}:{self._controller_port}",
            "advertised.listeners": f"{name}://{HOST}:{self.port}",
            "inter.broker.listener.name": name,
            "listener.security.protocol.map": f"{name}:{name},CONTROLLER:PLAINTEXT",
        }
        if security.key_store is not None:
            settings |= {
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": security.key_store,
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": security.client_ca or security.key_store,
                "ssl.client.auth": "required" if security.client_ca else "none",
                # The broker is its own client and need not like its certificate, which a test may have made too old.
                "ssl.endpoint.identification.algorithm": "",
            }
        if self._users:
            plain = " ".join(f'user_{user}="{word}"' for user, word in self._users.items())
            login = f'username="{ADMIN}" password="{self._users[ADMIN]}"'
            module = "org.apache.kafka.common.security"
            settings |= {
                "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
                "sasl.mechanism.inter.broker.protocol": "PLAIN",
                f"listener.name.{name.lower()}.plain.sasl.jaas.config": (
                    f"{module}.plain.PlainLoginModule required {login} {plain};"
                ),
                f"listener.name.{name.lower()}.scram-sha-512.sasl.jaas.config": (
                    f"{module}.scram.ScramLoginModule required;"
                ),
            }
        if security.rights:
            settings |= {
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                # The controller's port is open: who comes there has no name.
                "super.users": f"User:{ADMIN};User:ANONYMOUS",
                "allow.everyone.if.no.acl.found": "false",
            }
        return settings

    def _settings(self) -> dict[str, object]:
        return {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.bootstrap.servers": f"{HOST}:{self._controller_port}",
            "listeners": f"PLAINTEXT://{HOST}:{self.port},CONTROLLER://{HOST}:{self._controller_port}",
            "advertised.listeners": f"PLAINTEXT://{HOST}:{self.port}",
            "inter.broker.listener.name": "PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": self.state_dir / "data",
            "num.partitions": 1,
            "auto.create.topics.enable": "false",
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 4,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.num.partitions": 4,
            "transaction.state.log.min.isr": 1,
            "share.coordinator.state.topic.replication.factor": 1,
            "share.coordinator.state.topic.min.isr": 1,
            # After a crash the controller waits for the dead broker's session to end before it lets the new one in.
            "broker.session.timeout.ms": 2000,
            "broker.heartbeat.interval.ms": 400,
            "group.initial.rebalance.delay.ms": 0,
            # A member that dies should be replaced within a test's patience; the default minimum is 6 s.
            "group.min.session.timeout.ms": 500,
            "num.network.threads": 2,
            "num.io.threads": 2,
            "log.cleaner.dedupe.buffer.size": 8_000_000,
            "log.cleaner.backoff.ms": 2000,
            "log.retention.check.interval.ms": 5000,
        }


def start_kafka(
    state_dir: Path,
    *,
    port: int | None = None,
    detached: bool = False,
    security: Security | None = None,
    settings: Mapping[str, str] | None = None,
) -> KafkaServer:
    """A broker that answers. ``state_dir`` holds all that it keeps. Raises ``ServerError``."""
    return KafkaServer(state_dir, port=port, detached=detached, security=security, settings=settings).start()
