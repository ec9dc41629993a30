"""The AsyncAPI 3.0 document of a run: topics as channels, roles' reading and writing as operations, events as messages. Made from the
code for ``distrl schemas asyncapi``.

Bindings are those of Kafka (version 0.5.0). The extensions ``x-subject`` and ``x-versions`` say under which subject a schema is
registered, and which versions of it may be met on the log, with their committed ids.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from distrl.core.codec import RECORDS
from distrl.core.config import Config
from distrl.core.contracts.bus import TopicSpec
from distrl.core.contracts.events import Role
from distrl.core.contracts.flow import FLOWS, Flow
from distrl.core.contracts.topic import CO_PARTITIONED, RUN_PATTERN, TopicName
from distrl.core.runtime.topic import declared_topics
from distrl.schemas import all_schemas, latest

BINDING = "0.5.0"
AVRO = "application/vnd.apache.avro;version=1.9.0"
Node = dict[str, Any]

HEADERS: dict[str, str] = {
    "content-type": "What the value is: application/avro.",
    "ce_specversion": "Version of CloudEvents: 1.0.",
    "ce_type": "Full name of the event's schema.",
    "ce_source": "Who made the event: /distrl/<run>/<role>/<node>.",
    "ce_id": "The event's id, by which a repeated record is recognised.",
    "ce_time": "When the event was made, RFC 3339.",
    "ce_subject": "The trajectory that the event is about.",
    "traceparent": "W3C trace context of the episode or update that the event belongs to.",
}
"""What ``core.runtime.header`` puts beside the value."""
REQUIRED_HEADERS = ("content-type", "ce_specversion", "ce_type", "ce_source", "ce_id")


def document(config: Config) -> Node:
    """The document, with partitions, retention, servers and default run name as configured."""
    specs = {spec.name.removeprefix(TopicName.prefix(config.run.name)): spec for spec in declared_topics(config)}
    return {
        "asyncapi": "3.0.0",
        "id": "urn:distrl",
        "info": {
            "title": "distrl",
            "version": version("distrl"),
            "description": "Fine-tuning of agents that operate devices, over a durable log. Records are Avro in Confluent's frame: a zero "
            "byte, the schema's id in 4 big-endian bytes, the Avro bytes. Delivery is at least once.",
            "license": {"name": "Apache-2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0"},
        },
        "defaultContentType": "application/avro",
        **({"servers": servers} if (servers := _servers(config)) else {}),
        "channels": {topic: _channel(topic, flow, specs[topic], config) for topic, flow in FLOWS.items()},
        "operations": dict(_operations()),
        "components": {"messages": {flow.event.__name__: _message(flow) for flow in FLOWS.values()}},
    }


def _servers(config: Config) -> Node:
    """Brokers by number; none for the embedded log, which no other program can reach."""
    if config.bus.kind != "kafka":
        return {}
    secure = config.bus.security_protocol in ("SSL", "SASL_SSL")
    bindings: Node = {}
    if config.registry.kind == "confluent":
        bindings = {"bindings": {"kafka": {"schemaRegistryUrl": config.registry.url, "bindingVersion": BINDING}}}
    return {
        f"broker-{number}": {"host": address, "protocol": "kafka-secure" if secure else "kafka", **bindings}
        for number, address in enumerate(config.bus.bootstrap, 1)
    }


def _channel(topic: str, flow: Flow, spec: TopicSpec, config: Config) -> Node:
    name = flow.event.__name__
    return {
        "address": f"{TopicName.prefix('{run}')}{topic}",
        "title": topic,
        "description": f"{name} by {flow.key}."
        + (" A record without a value says that its key is gone." if flow.tombstones else ""),
        "messages": {name: {"$ref": f"#/components/messages/{name}"}},
        "parameters": {
            "run": {"description": f"Name of the run: {RUN_PATTERN.pattern}", "default": config.run.name},
        },
        "bindings": {
            "kafka": {
                "partitions": spec.partitions,
                "replicas": spec.replication,
                "topicConfiguration": {
                    "cleanup.policy": [spec.cleanup],
                    "retention.ms": -1 if spec.retention_ms is None else spec.retention_ms,
                    "retention.bytes": -1 if spec.retention_bytes is None else spec.retention_bytes,
                    "max.message.bytes": spec.max_record_bytes,
                },
                "bindingVersion": BINDING,
            }
        },
    }


def _operations() -> list[tuple[str, Node]]:
    """One for each role and topic."""
    operations: list[tuple[str, Node]] = []
    for topic, flow in FLOWS.items():
        for role in flow.written_by:
            operations.append((f"{role}-writes-{topic}", _operation("send", role, topic, flow)))
        for role in flow.read_by:
            operations.append((f"{role}-reads-{topic}", _operation("receive", role, topic, flow)))
    return operations


def _operation(action: str, role: Role, topic: str, flow: Flow) -> Node:
    name = flow.event.__name__
    operation: Node = {
        "action": action,
        "title": f"{role} {'writes' if action == 'send' else 'reads'} {topic}",
        "channel": {"$ref": f"#/channels/{topic}"},
        "messages": [{"$ref": f"#/channels/{topic}/messages/{name}"}],
        "tags": [{"name": role}],
    }
    if action == "receive" and topic in CO_PARTITIONED and role != "supervisor":
        group = {
            "type": "string",
            "description": f"distrl.<run>.{role}.<plugin>: nodes of one plugin share the partitions.",
        }
        operation["bindings"] = {"kafka": {"groupId": group, "bindingVersion": BINDING}}
    return operation


def _message(flow: Flow) -> Node:
    schema = latest(RECORDS[flow.event])
    return {
        "name": schema.name,
        "title": flow.event.__name__,
        "summary": schema.definition["doc"],
        "contentType": "application/avro",
        "headers": {
            "type": "object",
            "properties": {name: {"type": "string", "description": text} for name, text in HEADERS.items()},
            "required": list(REQUIRED_HEADERS),
        },
        "payload": {"schemaFormat": AVRO, "schema": schema.definition},
        "bindings": {
            "kafka": {
                "key": {"type": "string", "description": f"{flow.key}, in UTF-8."},
                "schemaIdLocation": "payload",
                "schemaIdPayloadEncoding": "confluent",
                "schemaLookupStrategy": "RecordNameStrategy",
                "bindingVersion": BINDING,
            }
        },
        "x-subject": schema.name,
        "x-versions": {
            str(committed.version): committed.schema_id
            for committed in all_schemas()
            if committed.record == schema.record
        },
    }
