"""A run over Kafka and a schema registry: read by somebody else's deserializer, and unharmed while the registry is away."""

from __future__ import annotations

import os
import signal
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from distrl.core.contracts.flow import FLOWS
from distrl.schemas import records

if TYPE_CHECKING:
    from conftest import StartRun
    from kafka_broker import KafkaServer

pytestmark = [pytest.mark.torch, pytest.mark.kafka, pytest.mark.registry, pytest.mark.timeout(600)]


def test_a_run_over_a_registry_is_read_by_those_who_know_nothing_of_it(
    start_run: StartRun, kafka_server: KafkaServer, tmp_path: Path
) -> None:
    from apicurio import start_registry

    with start_registry(tmp_path / "registry") as server:
        run = start_run(
            f'kind = "kafka"\nbootstrap = ["{kafka_server.bootstrap}"]\n[registry]\nkind = "confluent"\nurl = "{server.url}"',
            *("--episodes", "60"),
        )
        run.wait_for("trajectories", 20)
        evaluator = run.pid("evaluator")
        server.kill()
        os.kill(evaluator, signal.SIGKILL)  # the next one starts without a registry
        summary = run.finish()
        assert summary["collected"] == summary["evaluated"] == summary["ingested"] >= 60
        assert summary["dead_letters"] == 0
        assert len(run.ids("trajectories")) == summary["collected"]

        server.start()
        topics = {topic: run.topic(topic) for topic in FLOWS}
        values = deserialized(kafka_server.bootstrap, server.url, list(topics.values()))
        read = {topic: values[name] for topic, name in topics.items()}
        finished = [value for value in read["trajectories"] if value["outcome"] != "aborted"]
        assert {value["trajectory_id"] for value in finished} == run.ids("trajectories")
        assert all(value["steps"] and value["goal"] for value in finished)
        assert {value["trajectory_id"] for value in read["rewards"]} == run.ids("rewards")
        assert all(0 <= value["success"] <= 1 for value in read["rewards"])
        assert max(value["version"] for value in read["weights"]) == summary["weight_versions"] - 1
        assert {value["role"] for value in read["nodes"]} == {"collector", "evaluator", "prioritizer", "learner"}
        assert {value["role"] for value in read["metrics"]} == {"collector", "evaluator", "prioritizer", "learner"}
        for topic in (
            "trajectories",
            "rewards",
            "priorities",
            "feedback",
            "weights",
            "weights-latest",
            "nodes",
            "metrics",
        ):
            assert read[topic], topic
            assert {value["envelope"]["run"] for value in read[topic]} == {run.config.run.name}
        with SchemaRegistryClient({"url": server.url}) as client:
            assert len(client.get_subjects()) == len(records())


def deserialized(bootstrap: str, registry: str, topics: list[str]) -> dict[str, list[dict[str, Any]]]:
    """All values of some topics, by topic, as Confluent's client and deserializer read them. Tombstones are left out."""
    values: dict[str, list[dict[str, Any]]] = defaultdict(list)
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "nobody",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    with SchemaRegistryClient({"url": registry}) as client:
        deserialize = AvroDeserializer(client)
        try:
            described = consumer.list_topics(timeout=30).topics
            parts = [TopicPartition(topic, number, 0) for topic in topics for number in described[topic].partitions]
            consumer.assign(parts)
            open_parts = {(part.topic, part.partition) for part in parts}
            while open_parts:
                message = consumer.poll(30.0)
                assert message is not None, f"nothing comes of {open_parts}"
                if (error := message.error()) is not None:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    open_parts.discard((message.topic(), message.partition()))
                elif message.value() is not None:
                    context = SerializationContext(message.topic(), MessageField.VALUE, message.headers())
                    values[message.topic()].append(deserialize(message.value(), context))
        finally:
            consumer.close()
    return values
