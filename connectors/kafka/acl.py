"""What each part of a run may do on the brokers, and no more. Printed by ``distrl topics acls``; tests hold it complete and least.

Found by experiment. What is not listed comes along: Read, Write and Delete of a topic let one Describe it, Write is enough
for an idempotent producer, AlterConfigs lets one read settings. Nothing is asked of the cluster itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from distrl.connectors.kafka.command import tool
from distrl.core.config import Config
from distrl.core.contracts.flow import FLOWS
from distrl.core.contracts.topic import TopicName
from distrl.core.errors import ConfigError

Part = Literal["collector", "evaluator", "prioritizer", "learner", "supervisor", "status", "administrator"]
"""A role; the supervisor's part of ``distrl run``; ``distrl status``; whoever makes and removes topics."""
PARTS: tuple[Part, ...] = (
    "collector",
    "evaluator",
    "prioritizer",
    "learner",
    "supervisor",
    "status",
    "administrator",
)
STATUS_TOPICS = ("weights", "nodes", "metrics", "dead-letters")


@dataclass(frozen=True, slots=True)
class Acl:
    """One right: an operation on a resource, by its whole name or by what the name begins with."""

    operation: Literal["Read", "Write", "Describe", "Create", "Delete", "AlterConfigs"]
    resource: Literal["topic", "group", "transactional-id"]
    name: str
    pattern: Literal["literal", "prefixed"] = "literal"

    def __str__(self) -> str:
        return f"{self.operation} on {self.resource} {self.name}{'*' if self.pattern == 'prefixed' else ''}"


def acls(config: Config, part: Part) -> list[Acl]:
    """The least set of rights with which ``part`` of this run works, on topics that are there."""
    run = config.run.name
    topic, prefix = TopicName(run), TopicName.prefix(run)
    if part == "administrator":
        return [
            Acl("Create", "topic", prefix, "prefixed"),
            Acl("AlterConfigs", "topic", prefix, "prefixed"),
            Acl("Delete", "topic", prefix, "prefixed"),
            Acl("Delete", "group", prefix, "prefixed"),
        ]
    if part == "status":
        return [Acl("Read", "topic", topic(name)) for name in STATUS_TOPICS]
    if part == "supervisor":
        # It makes sure of all topics and follows those that tell of the run.
        return [
            Acl("Read" if part in flow.read_by else "Describe", "topic", topic(name)) for name, flow in FLOWS.items()
        ]
    rights = [Acl("Write", "topic", topic(name)) for name, flow in FLOWS.items() if part in flow.written_by]
    rights += [Acl("Read", "topic", topic(name)) for name, flow in FLOWS.items() if part in flow.read_by]
    if part != "collector":
        rights.append(Acl("Read", "group", f"{prefix}{part}.{getattr(config, part).plugin}"))
    if part == "learner":
        rights.append(Acl("Write", "transactional-id", f"{prefix}learner"))
    return rights


def command_line(config: Config, acl: Acl, principal: str) -> str:
    """The call of Kafka's own tool that gives ``acl`` to ``principal`` (``User:name``)."""
    check_principal(principal)
    return tool(
        "kafka-acls.sh",
        config.bus,
        *("--add", "--allow-principal", principal, "--operation", acl.operation),
        *(f"--{acl.resource}", acl.name, "--resource-pattern-type", acl.pattern),
    )


def check_principal(principal: str) -> None:
    """Raise ``ConfigError`` for what Kafka would not take for a principal."""
    kind, _, name = principal.partition(":")
    if not kind or not name:
        raise ConfigError(f"--principal {principal}: write it as User:NAME")
