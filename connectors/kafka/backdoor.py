"""All that reaches behind kafka-python's public surface, with the reason. Used in this package.

Each function works around something that would otherwise wait without an end, or be lost; the tests of the contract
and of faults fail when a release of kafka-python moves what is used here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from kafka import errors
from kafka.admin import ConfigResourceType
from kafka.protocol.admin import DescribeConfigsRequest, IncrementalAlterConfigsRequest

TOMBSTONE = object()
"""Stands for no value until kafka-python has checked that key or value is there (``connection``'s serializer)."""


class Holder(NamedTuple):
    """Who may write under a fence: what the broker knows a transactional producer by."""

    producer_id: int
    epoch: int


# --- admin clients ------------------------------------------------------------------------------------

# kafka-python's own methods lose the broker's answer: what may not be read looks as if it were not there, and what may
# not be changed is told in a sentence.


def topic_settings(client: Any, names: Sequence[str]) -> dict[str, dict[str, str] | Exception]:
    """Each topic's settings as they stand, or why the broker does not tell them."""
    topics = [(ConfigResourceType.TOPIC, name, None) for name in names]
    answer = client._manager.run(client._manager.send, DescribeConfigsRequest(resources=topics))
    return {
        topic.resource_name: {setting.name: setting.value for setting in topic.configs}
        if topic.error_code == 0
        else errors.for_code(topic.error_code)(topic.error_message)
        for topic in answer.results
    }


def change_topic_settings(client: Any, changes: Mapping[str, Mapping[str, str]]) -> dict[str, Exception]:
    """Set some settings of topics and leave their others; why the broker refused, by topic."""
    setting = 0  # of the four operations of the protocol
    topics = [
        (ConfigResourceType.TOPIC, name, [(key, setting, value) for key, value in settings.items()])
        for name, settings in changes.items()
    ]
    answer = client._manager.run(client._manager.send, IncrementalAlterConfigsRequest(resources=topics))
    return {
        topic.resource_name: errors.for_code(topic.error_code)(topic.error_message)
        for topic in answer.responses
        if topic.error_code != 0
    }


# --- producers ----------------------------------------------------------------------------------------


def hand_over(
    producer: Any, topic: str, partition: int, key: bytes | None, value: bytes | None, **settings: Any
) -> Any:
    """``KafkaProducer.send`` that takes records without key and value too."""
    return producer.send(topic, TOMBSTONE if value is None else value, key=key, partition=partition, **settings)


def discard(producer: Any) -> None:
    """Throw a producer away with all that it holds; a public ``close`` would first wait for what is stuck."""
    producer._sender.force_close()
    with contextlib.suppress(errors.KafkaError):
        producer.close(timeout=2.0)


def holder(producer: Any) -> Holder:
    """What the broker knows this transactional producer by."""
    known = producer._transaction_manager.producer_id_and_epoch
    return Holder(known.producer_id, known.epoch)


def begin_commit(producer: Any) -> Any:
    """Start ``commit_transaction``; the result has ``wait(timeout_ms)``, which the public method calls without a limit."""
    result = producer._transaction_manager.begin_commit()
    producer._sender.wakeup()
    return result


# --- consumers ----------------------------------------------------------------------------------------


def call_on_loop(consumer: Any, action: Callable[[], object]) -> None:
    """Run ``action`` soon on the consumer's own network thread."""
    consumer._net.call_soon_threadsafe(action)


def load_metadata(consumer: Any, timeout_s: float) -> None:
    """Wait until the consumer knows its topics. A member that joins earlier and leads its group gives out nothing."""
    consumer._net.run(consumer._manager.wait_for, consumer._cluster.request_update(), timeout_s * 1000)


def fenced(consumer: Any) -> bool:
    """Whether another member took this static member's name: kafka-python then stops its heartbeats and says nothing."""
    coordinator = consumer._coordinator
    return coordinator.stable() and not coordinator.rejoining and not coordinator._heartbeat_enabled
