"""The topics of a configured run: what is declared, how that differs from the log's, and making it so.

Used by the supervisor and by ``distrl topics``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from distrl.core.config import Config
from distrl.core.contracts.bus import ALTERABLE, TopicAdmin, TopicSpec
from distrl.core.contracts.topic import CO_PARTITIONED, HOUR_MS, TopicName, run_topics
from distrl.core.errors import BusAuthorizationError, TopicMismatchError

Action = Literal["create", "alter", "refuse", ""]
State = Literal["missing", "differs", "as declared", "settings unknown", "undeclared"]


def declared_topics(config: Config) -> list[TopicSpec]:
    """What must exist before a node of this run starts."""
    bus = config.bus
    return run_topics(
        config.run.name,
        partitions=bus.partitions,
        replication=bus.replication if bus.kind == "kafka" else 1,
        retention_ms=round(bus.retention_hours * HOUR_MS),
        retention_bytes=bus.retention_bytes or None,
        max_record_bytes=bus.max_record_bytes,
    )


@dataclass(frozen=True, slots=True)
class Difference:
    """One setting that is not as declared. ``None`` is a retention without bound."""

    setting: str
    present: int | str | None
    declared: int | str | None

    def __str__(self) -> str:
        present, declared = ("unbounded" if value is None else value for value in (self.present, self.declared))
        return f"{self.setting} {present} -> {declared}"


@dataclass(frozen=True, slots=True)
class PlannedTopic:
    """One topic, and what ``apply`` would do about it."""

    name: str
    state: State
    action: Action = ""
    spec: TopicSpec | None = None
    """As declared; ``None`` for what is not declared any more."""
    differences: tuple[Difference, ...] = ()
    do: str = ""
    """What a person has to do, where ``apply`` does not."""


def plan(config: Config, admin: TopicAdmin) -> list[PlannedTopic]:
    """Declared topics against the log's, in the order of declaration, then those of the run that are not declared.

    Changes nothing. Raises ``BusAuthorizationError`` when a topic may not be looked at.
    """
    specs = declared_topics(config)
    names = [spec.name for spec in specs]
    present = admin.topics(names)
    planned = [compare(spec, present.get(spec.name)) for spec in specs]
    left = sorted(name for name in admin.topics() if name.startswith(TopicName.prefix(config.run.name)))
    do = "no longer declared; nothing here deletes it"
    return planned + [PlannedTopic(name, "undeclared", do=do) for name in left if name not in names]


def compare(declared: TopicSpec, present: TopicSpec | None) -> PlannedTopic:
    """One declaration against what is there."""
    name = declared.name
    if present is None:
        return PlannedTopic(name, "missing", "create", declared)
    fixed, alterable = (
        tuple(
            Difference(setting, getattr(present, setting), getattr(declared, setting))
            for setting in settings
            if getattr(present, setting) != getattr(declared, setting)
        )
        for settings in (("partitions", "replication"), ALTERABLE if present.readable else ())
    )
    if fixed:
        do = " and ".join(_remedy(declared, difference) for difference in fixed)
        return PlannedTopic(name, "differs", "refuse", declared, fixed + alterable, do)
    if alterable:
        return PlannedTopic(name, "differs", "alter", declared, alterable)
    if not present.readable:
        return PlannedTopic(name, "settings unknown", "", declared, do="ask for the right to read its settings")
    return PlannedTopic(name, "as declared", "", declared)


def apply(planned: Sequence[PlannedTopic], admin: TopicAdmin) -> Mapping[str, BusAuthorizationError]:
    """Make and alter what is planned; returns, by topic, what the log did not allow.

    Raises ``TopicMismatchError`` before anything is done when a topic would have to be changed in a way that no one
    should: shrunk, its keys torn apart, its copies moved.
    """
    refused = [topic for topic in planned if topic.action == "refuse"]
    if refused:
        raise TopicMismatchError(
            "nothing was changed: "
            + "; ".join(f"{topic.name}: {_fixed(topic.differences)}: {topic.do}" for topic in refused)
        )
    denied: dict[str, BusAuthorizationError] = {}
    for topic in planned:
        if topic.spec is None or not topic.action:
            continue
        try:
            (admin.create if topic.action == "create" else admin.alter)([topic.spec])
        except BusAuthorizationError as error:
            denied[topic.name] = error
    return denied


def _fixed(differences: Sequence[Difference]) -> str:
    return ", ".join(str(difference) for difference in differences if difference.setting not in ALTERABLE)


def _remedy(declared: TopicSpec, difference: Difference) -> str:
    if difference.setting == "replication":
        return f"set bus.replication={difference.present}, or have the brokers' administrator move its replicas"
    if declared.name.rpartition(".")[2] not in CO_PARTITIONED:
        return "this topic has one partition: use another run.name, or delete it and apply again"
    shrunk = declared.partitions < int(difference.present or 0)
    why = "a log never gives up partitions" if shrunk else "keys would move to other partitions"
    return f"{why}: set bus.partitions={difference.present}, or use another run.name"
