"""What reaches behind kafka-python's public surface, with the reason. Used in this package; ``feed`` does so for records.

Each function works around something that would otherwise wait without an end, or be lost; the tests of the contract
and of faults fail when a release of kafka-python moves what is used here.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from kafka import errors
from kafka.admin import ConfigResourceType
from kafka.protocol.admin import DescribeConfigsRequest, IncrementalAlterConfigsRequest


class Holder(NamedTuple):
    """Who may write under a fence: what the broker knows a transactional producer by."""

    producer_id: int
    epoch: int


# --- every client -------------------------------------------------------------------------------------


def make_no_topics(client: Any) -> None:
    """Hold a client to ``allow_auto_create_topics=False``: kafka-python takes the setting and forgets it, and with a
    broker that makes topics by use a deleted one would come back."""
    client._manager.cluster.config["allow_auto_create_topics"] = False


def try_bootstrap(client: Any, timeout_s: float) -> list[Exception]:
    """Connect, log in and ask for metadata once at each bootstrap broker until one answers; what stopped the others.

    kafka-python's own bootstrap tries again for all of its time, and says in the end that time is over, not why.
    """
    manager = client._manager
    brokers = manager.cluster.bootstrap_brokers()
    give_up = time.monotonic() + timeout_s

    async def attempt(broker: Any, attempt_ms: float) -> None:
        node = broker.node_id
        connection = manager.get_connection(
            node,
            timeout_ms=attempt_ms,
            pop_on_close=False,
            refresh_metadata_on_err=False,
            reset_backoff_on_connect=False,
        )
        _read_last_words(connection)
        try:
            await manager.wait_for(connection.init_future, attempt_ms)
            answer = manager.call_soon(manager.cluster.refresh_metadata, node)
            await manager.wait_for(answer, attempt_ms)
        finally:
            manager._conns.pop(node, connection).close()
            manager.reset_backoff(node)
            manager._auth_failures.pop(node, None)

    failures: list[Exception] = []
    for place, broker in enumerate(brokers):
        left_s = max(0.1, give_up - time.monotonic())
        try:
            manager.run(attempt, broker, 1000 * left_s / (len(brokers) - place))
        except (errors.KafkaError, OSError) as error:
            failures.append(error)
        else:
            return []
    return failures


def _read_last_words(connection: Any) -> None:
    """Read what came before the end of a connection. A broker says why it refuses a login and hangs up; kafka-python
    sees both at once, and drops the reason."""
    made = connection.connection_made

    def connection_made(transport: Any) -> None:
        receive = transport._sock_recv

        def data_before_end() -> tuple[bytes, Exception | None]:
            data, error = receive()
            return data, None if data else error  # the end is there to be read again

        transport._sock_recv = data_before_end
        made(transport)

    connection.connection_made = connection_made


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


def drop_assignment(consumer: Any) -> None:
    """Call when a rebalance takes everything. kafka-python goes on where it stood with what comes back, so what was delivered and
    not acknowledged would be passed over; with nothing left, it asks for what is committed (as the Java client does)."""
    consumer._subscription.assign_from_subscribed([])


def fenced(consumer: Any) -> bool:
    """Whether another member took this static member's name: kafka-python then stops its heartbeats and says nothing."""
    coordinator = consumer._coordinator
    with coordinator._lock:  # the network thread ends a join under it
        return coordinator.stable() and not coordinator.rejoining and not coordinator._heartbeat_enabled
