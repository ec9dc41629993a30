"""What stands between a topic as declared and as it is, and what would be done about it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from distrl.core.config import parse_config
from distrl.core.contracts.bus import TopicSpec
from distrl.core.runtime.topic import Difference, compare, declared_topics

KEYED = TopicSpec("distrl.r.rewards", partitions=4, replication=3, retention_ms=1000)
SINGLE = TopicSpec("distrl.r.metrics", replication=3, retention_ms=1000)


def test_what_is_as_declared_needs_nothing() -> None:
    planned = compare(KEYED, KEYED)
    assert (planned.state, planned.action, planned.differences) == ("as declared", "", ())
    assert (compare(KEYED, None).state, compare(KEYED, None).action) == ("missing", "create")


@pytest.mark.parametrize(
    ("setting", "value", "shown"),
    [
        ("cleanup", "compact", "cleanup compact -> delete"),
        ("retention_ms", None, "retention_ms unbounded -> 1000"),
        ("retention_bytes", 5, "retention_bytes 5 -> unbounded"),
        ("max_record_bytes", 1, "max_record_bytes 1 -> 1048576"),
    ],
)
def test_settings_are_altered(setting: str, value: Any, shown: str) -> None:
    planned = compare(KEYED, replace(KEYED, **{setting: value}))
    assert (planned.state, planned.action) == ("differs", "alter")
    assert [str(difference) for difference in planned.differences] == [shown]


@pytest.mark.parametrize(
    ("declared", "change", "advice"),
    [
        (KEYED, {"partitions": 3}, "keys would move to other partitions: set bus.partitions=3"),
        (KEYED, {"partitions": 5}, "a log never gives up partitions: set bus.partitions=5"),
        (SINGLE, {"partitions": 2}, "this topic has one partition"),
        (KEYED, {"replication": 1}, "set bus.replication=1"),
        (KEYED, {"replication": 1, "partitions": 5}, "set bus.partitions=5, or use another run.name and set bus.rep"),
    ],
)
def test_partitions_and_copies_are_refused(declared: TopicSpec, change: dict[str, int], advice: str) -> None:
    planned = compare(declared, replace(declared, retention_ms=None, **change))
    assert (planned.state, planned.action) == ("differs", "refuse")
    assert advice in planned.do
    assert Difference("retention_ms", None, 1000) in planned.differences
    assert {d.setting: d.present for d in planned.differences} == {**change, "retention_ms": None}


def test_settings_that_may_not_be_read_are_not_judged() -> None:
    unread = TopicSpec(KEYED.name, partitions=4, replication=3, readable=False)
    planned = compare(KEYED, unread)
    assert (planned.state, planned.action, planned.differences) == ("settings unknown", "", ())
    assert "ask for the right" in planned.do
    assert compare(KEYED, replace(unread, partitions=5)).action == "refuse"


def test_the_configuration_declares_every_bound() -> None:
    bus = {"kind": "kafka", "partitions": 7, "replication": 3, "retention_hours": 1.0, "retention_bytes": 1_000_000}
    config = parse_config({"run": {"name": "r"}, "bus": bus})
    topics = {spec.name.rpartition(".")[2]: spec for spec in declared_topics(config)}
    assert topics["rewards"] == TopicSpec("distrl.r.rewards", 7, 3, "delete", 3_600_000, 1_000_000, 1_000_000)
    assert topics["metrics"] == TopicSpec("distrl.r.metrics", 1, 3, "delete", 3_600_000, 1_000_000, 1_000_000)
    assert topics["nodes"] == TopicSpec("distrl.r.nodes", 1, 3, "compact", None, None, 1_000_000)
    assert topics["dead-letters"].retention_ms == 7 * 24 * 3_600_000
    unbounded = declared_topics(parse_config({"bus": {**bus, "retention_bytes": 0, "kind": "embedded"}}))
    assert {(spec.retention_bytes, spec.replication) for spec in unbounded} == {(None, 1)}
