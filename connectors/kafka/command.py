"""Command lines of Kafka's own tools, for an administrator who makes for a run what it may not make itself.

Printed by ``distrl topics``. Each is one line for a POSIX shell.
"""

from __future__ import annotations

import shlex

from distrl.connectors.kafka.admin import settings_of
from distrl.core.config import BusConfig
from distrl.core.contracts.bus import TopicSpec

ADMIN_PROPERTIES = "admin.properties"
"""File with the administrator's own login, named where the brokers ask for one."""


def create_topic(config: BusConfig, spec: TopicSpec) -> str:
    """Make a topic as declared; no harm if it is there."""
    settings = [part for key, value in settings_of(spec).items() for part in ("--config", f"{key}={value}")]
    return tool(
        "kafka-topics.sh",
        config,
        *("--create", "--if-not-exists", "--topic", spec.name),
        *("--partitions", str(spec.partitions), "--replication-factor", str(spec.replication)),
        *settings,
    )


def alter_topic(config: BusConfig, spec: TopicSpec) -> str:
    """Bring the settings of a topic to what is declared."""
    settings = ",".join(f"{key}={f'[{value}]' if ',' in value else value}" for key, value in settings_of(spec).items())
    return tool(
        "kafka-configs.sh",
        config,
        *("--alter", "--entity-type", "topics", "--entity-name", spec.name, "--add-config", settings),
    )


def tool(name: str, config: BusConfig, *arguments: str) -> str:
    """One call of a tool that comes with Kafka, on the brokers of ``config``."""
    login = () if config.security_protocol == "PLAINTEXT" else ("--command-config", ADMIN_PROPERTIES)
    return shlex.join((name, "--bootstrap-server", ",".join(config.bootstrap), *login, *arguments))
