"""Topics and groups on the brokers: ``TopicAdmin`` over kafka-python's admin client. Opened by ``bus.KafkaBus``."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeVar

from kafka import TopicPartition as KafkaTopicPartition
from kafka import errors
from kafka.admin import OffsetSpec
from kafka.protocol.consumer import IsolationLevel

from distrl.connectors.kafka.backdoor import Holder, change_topic_settings, topic_settings
from distrl.connectors.kafka.catalog import Catalog, KnownTopic
from distrl.connectors.kafka.connection import REQUEST_BYTES, Connection
from distrl.connectors.kafka.failure import KafkaError, translate, translated
from distrl.core.contracts.bus import TopicPartition, TopicSpec
from distrl.core.contracts.clock import Clock
from distrl.core.errors import BusAuthorizationError, BusError, ConfigError, TopicMismatchError

PATIENCE_S = 5.0
"""How long a call is tried again while the broker is away: a restarted one is found within that."""
_PAUSE_S = 0.2
_NAME = re.compile(r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}")

_CLEANUP: dict[frozenset[str], Literal["delete", "compact", "compact,delete"]] = {
    frozenset({"delete"}): "delete",
    frozenset({"compact"}): "compact",
    frozenset({"compact", "delete"}): "compact,delete",
}

T = TypeVar("T")


class KafkaAdmin:
    """``TopicAdmin``. Connects at the first call. Safe for use by several threads."""

    def __init__(self, connection: Connection, clock: Clock) -> None:
        self._connection = connection
        self._clock = clock
        self._lock = threading.Lock()
        self._client: Any = None
        self._closed = False
        self.catalog = Catalog(self.describe)
        """Kept up to date with what this object makes and removes."""

    def topics(self, names: Sequence[str] | None = None) -> dict[str, TopicSpec]:
        if names is not None:
            return self._described(names)
        described = self._call("listing topics", lambda client: client.describe_topics())
        found = {topic["name"]: topic for topic in described if not topic["is_internal"] and topic["error_code"] == 0}
        return self._specs(found)

    def describe(self, names: Sequence[str]) -> dict[str, KnownTopic]:
        """Those of the named topics that exist. Where a limit may not be read, the broker alone keeps to it."""
        return {
            name: KnownTopic(spec.partitions, spec.max_record_bytes if spec.readable else REQUEST_BYTES)
            for name, spec in self._described(names).items()
        }

    def create(self, specs: Sequence[TopicSpec]) -> list[str]:
        for spec in specs:
            if not _NAME.fullmatch(spec.name):
                raise BusError(f"no topic can be called {spec.name!r}: use letters, digits, '.', '_', '-', at most 249")
        missing = [spec for spec in specs if not self._exists(spec)]
        made: list[str] = []
        for spec in missing:
            if self._call(f"making topic {spec.name}", partial(_create, spec=spec)):
                made.append(spec.name)
            else:
                self._exists(spec)  # somebody was quicker, which is fine if he wants the same
            self.catalog.forget([spec.name])
        return made

    def alter(self, specs: Sequence[TopicSpec]) -> list[str]:
        present = self._described([spec.name for spec in specs])
        for known in present.values():
            if not known.readable:
                raise BusAuthorizationError(
                    f"changing topic {known.name}: its settings may not even be read; it takes the rights "
                    "DescribeConfigs and AlterConfigs on it"
                )
        changes: dict[str, dict[str, str]] = {}
        for spec in specs:
            if spec.name in present:
                old, new = settings_of(present[spec.name]), settings_of(spec)
                changes[spec.name] = {key: value for key, value in new.items() if old[key] != value}
        changes = {name: settings for name, settings in changes.items() if settings}
        if changes:
            refusals = self._call("changing topics", lambda client: change_topic_settings(client, changes))
            self.catalog.forget(list(changes))
            for name, failure in refusals.items():
                raise translate(failure, f"changing topic {name}", self._connection.brokers) from failure
        return list(changes)

    def delete(self, names: Sequence[str]) -> None:
        if not names:
            return
        answer = self._call("deleting topics", lambda client: client.delete_topics(list(names), raise_errors=False))
        self.catalog.forget(names)
        for topic in answer["topics"]:
            failure = errors.for_code(topic["error_code"])
            if topic["error_code"] != 0 and not issubclass(failure, errors.UnknownTopicOrPartitionError):
                raise translate(failure(), f"deleting topic {topic['name']}", self._connection.brokers)

    def delete_records(self, before: Mapping[TopicPartition, int]) -> None:
        if before:
            offsets = {KafkaTopicPartition(*partition): offset for partition, offset in before.items()}
            self._call("deleting records", lambda client: client.delete_records(offsets))

    def groups(self, prefix: str = "") -> list[str]:
        found = self._call("listing groups", lambda client: client.list_groups())
        return sorted({group["group_id"] for group in found if group["group_id"].startswith(prefix)})

    def delete_groups(self, names: Sequence[str]) -> None:
        if not names:
            return
        wanted = sorted(set(names))
        answer = self._call(f"deleting groups {', '.join(wanted)}", lambda client: client.delete_groups(wanted))
        inhabited = sorted(name for name, said in answer.items() if said == errors.NonEmptyGroupError.__name__)
        for name, said in answer.items():
            if said not in ("OK", errors.GroupIdNotFoundError.__name__, errors.NonEmptyGroupError.__name__):
                failure = getattr(errors, said, errors.UnknownError)()
                raise translate(failure, f"deleting group {name}", self._connection.brokers)
        if inhabited:
            raise BusError(f"group {', '.join(inhabited)} has members: stop them, or wait until their sessions end")

    def group_offsets(self, group: str) -> dict[TopicPartition, int]:
        offsets = self._call(f"asking for group {group}", lambda client: client.list_group_offsets(group)[group])
        return {TopicPartition(*tp): known.offset for tp, known in offsets.items() if known.offset >= 0}

    def end_offsets(self, topics: Sequence[str]) -> dict[TopicPartition, int]:
        partitions = self.catalog.partitions(topics)
        if not partitions:
            return {}
        wanted = {KafkaTopicPartition(*partition): OffsetSpec.LATEST for partition in partitions}
        found = self._call(
            "asking for end offsets",
            lambda client: client.list_partition_offsets(wanted, isolation_level=IsolationLevel.READ_COMMITTED),
        )
        return {TopicPartition(*tp): known.offset for tp, known in found.items()}

    def sizes(self, prefix: str = "") -> dict[str, int]:
        found = self._call("asking for the sizes of topics", lambda client: client.describe_log_dirs())
        if not any(broker["log_dirs"] for broker in found):  # all that the client lets through of a refusal
            raise BusAuthorizationError(
                "the brokers do not tell the sizes of topics: that takes Describe on the cluster"
            )
        sizes: dict[str, int] = {}
        for broker in found:
            for directory in broker["log_dirs"]:
                failure = errors.for_code(directory["error_code"])
                if directory["error_code"] != 0:
                    raise translate(failure(), "asking for the sizes of topics", self._connection.brokers)
                for topic in directory["topics"]:
                    if (name := topic["name"]).startswith(prefix):
                        sizes[name] = sizes.get(name, 0) + sum(part["partition_size"] for part in topic["partitions"])
        return sizes

    def holder(self, fence: str) -> Holder | None:
        """Who holds a fence now, ``None`` if nobody ever did."""
        try:
            found = self._call(f"asking who holds fence {fence}", lambda client: client.describe_transactions([fence]))
        except BusError as error:
            if isinstance(error.__cause__, errors.TransactionalIdNotFoundError):
                return None
            raise
        return Holder(found[fence].producer_id, found[fence].producer_epoch)

    def ping(self, timeout_s: float) -> None:
        """A connection of its own, so that an answer means that the brokers can be reached now."""
        client = self._connection.admin(bootstrap_s=timeout_s)
        client.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            client, self._client = self._client, None
        if client is not None:
            client.close()

    # --- inside -----------------------------------------------------------------------------------

    def _connected(self) -> Any:
        with self._lock:
            if self._closed:
                raise BusError("the bus is closed")
            if self._client is None:
                self._client = self._connection.admin()
            return self._client

    def _call(self, doing: str, action: Callable[[Any], T]) -> T:
        """Run ``action`` on the admin client, again while the broker is away but no longer than ``PATIENCE_S``."""
        client = self._connected()
        deadline = self._clock.monotonic() + PATIENCE_S
        with translated(doing, self._connection.brokers):
            while True:
                try:
                    return action(client)
                except KafkaError as error:
                    gone = isinstance(error, errors.UnknownTopicOrPartitionError)
                    if gone or not isinstance(error, errors.RetriableError) or self._clock.monotonic() > deadline:
                        raise
                self._clock.sleep(_PAUSE_S)

    def _described(self, names: Sequence[str]) -> dict[str, TopicSpec]:
        """Those of the named topics that exist, as they stand."""
        usable = [name for name in names if _NAME.fullmatch(name)]
        if not usable:
            return {}
        described = self._call("looking for topics", lambda client: client.describe_topics(usable))
        for topic in described:
            failure = errors.for_code(topic["error_code"])
            if issubclass(failure, errors.AuthorizationError):
                raise translate(failure(), f"looking at topic {topic['name']}", self._connection.brokers)
        return self._specs({topic["name"]: topic for topic in described if topic["error_code"] == 0})

    def _specs(self, found: Mapping[str, Mapping[str, Any]]) -> dict[str, TopicSpec]:
        """With their settings. A topic that vanishes meanwhile is left out."""
        if not found:
            return {}
        answer = self._call("reading settings of topics", lambda client: topic_settings(client, list(found)))
        specs: dict[str, TopicSpec] = {}
        for name, settings in answer.items():
            if isinstance(settings, errors.UnknownTopicOrPartitionError):
                continue
            if isinstance(settings, Exception):
                if not isinstance(settings, errors.AuthorizationError):
                    doing = f"reading settings of topic {name}"
                    raise translate(settings, doing, self._connection.brokers) from settings
                specs[name] = _spec(name, found[name], None)
            else:
                specs[name] = _spec(name, found[name], settings)
        return specs

    def _exists(self, spec: TopicSpec) -> bool:
        known = self.describe([spec.name]).get(spec.name)
        if known is None:
            return False
        if known.partitions != spec.partitions:
            raise TopicMismatchError(
                f"topic {spec.name!r} has {known.partitions} partitions and {spec.partitions} are declared; "
                "a keyed topic never changes their number: start a run of another name, or declare what is there"
            )
        return True


def _create(client: Any, spec: TopicSpec) -> bool:
    """Make a topic and wait until it has leaders; False if it exists."""
    try:
        client.create_topics(
            {
                spec.name: {
                    "num_partitions": spec.partitions,
                    "replication_factor": spec.replication,
                    "configs": settings_of(spec),
                }
            },
            wait_for_metadata=True,
        )
    except errors.TopicAlreadyExistsError:
        return False
    except errors.InvalidReplicationFactorError as error:
        alive = len(client.describe_cluster()["brokers"])
        raise ConfigError(
            f"bus.replication: {spec.replication} copies are declared and {alive} broker{'s are' if alive != 1 else ' is'} "
            f"alive, too few for topic {spec.name}: start more of them, or declare fewer copies"
        ) from error
    return True


def settings_of(spec: TopicSpec) -> dict[str, str]:
    """What a declaration says, as the broker calls it."""
    return {
        "cleanup.policy": spec.cleanup,
        "retention.ms": str(-1 if spec.retention_ms is None else spec.retention_ms),
        "retention.bytes": str(-1 if spec.retention_bytes is None else spec.retention_bytes),
        "max.message.bytes": str(spec.max_record_bytes),
    }


def _spec(name: str, topic: Mapping[str, Any], settings: Mapping[str, str] | None) -> TopicSpec:
    """``settings`` are ``None`` where they may not be read."""
    partitions, replication = len(topic["partitions"]), len(topic["partitions"][0]["replica_nodes"])
    if settings is None:
        return TopicSpec(name, partitions=partitions, replication=replication, readable=False)

    def bound(key: str) -> int | None:
        value = int(settings[key])
        return None if value < 0 else value

    return TopicSpec(
        name,
        partitions=partitions,
        replication=replication,
        cleanup=_CLEANUP.get(frozenset(settings["cleanup.policy"].split(",")), "delete"),
        retention_ms=bound("retention.ms"),
        retention_bytes=bound("retention.bytes"),
        max_record_bytes=int(settings["max.message.bytes"]),
    )
