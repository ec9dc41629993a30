"""The Kafka broker without docker: one KRaft node from Maven's jars, on 127.0.0.1. Used by the tests and ``stack.py``."""

from __future__ import annotations

import base64
import subprocess
import uuid
from collections.abc import Sequence
from pathlib import Path

from program import fetch, find_program
from server import HOST, Server, ServerError, free_port, port_answers

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


class KafkaServer(Server):
    """One broker that is its own controller. Data, offsets and transactions outlive ``kill`` and ``restart``."""

    name = "Kafka"

    def __init__(self, state_dir: Path, *, port: int | None = None, detached: bool = False) -> None:
        super().__init__(state_dir, port=port, detached=detached)
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
        self._properties.write_text("".join(f"{key}={value}\n" for key, value in self._settings().items()))
        if (self.state_dir / "data" / "meta.properties").exists():
            return
        # Any base64 of 16 bytes will do, but one that starts with a dash is taken for an option.
        cluster = base64.urlsafe_b64encode(b"\0" + uuid.uuid4().bytes[1:]).decode().rstrip("=")
        done = subprocess.run(
            [
                *(java, "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{self._jars}/*"),
                *("kafka.tools.StorageTool", "format", "--standalone", "-t", cluster, "-c", str(self._properties)),
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


def start_kafka(state_dir: Path, *, port: int | None = None, detached: bool = False) -> KafkaServer:
    """A broker that answers. ``state_dir`` holds all that it keeps. Raises ``ServerError``."""
    return KafkaServer(state_dir, port=port, detached=detached).start()
