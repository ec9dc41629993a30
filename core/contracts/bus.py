"""The bus contract: a durable, partitioned log. Implemented by ``connectors.embedded`` and ``connectors.kafka``.

The bus carries bytes; ``core.codec`` frames events. Offsets are dense or sparse but grow within a
partition; records of one key go to one partition and keep their order. Delivery is at least once.

The loop that every role runs::

    with bus.consumer(["distrl.demo.rewards"], group="learner", start=Start.earliest()) as consumer:
        while running:
            for record in consumer.poll(timeout_s=0.5):
                handle(record)          # make the effect durable first
                consumer.ack(record)    # then say so; any order
            consumer.commit()           # commits the lowest offset that is not yet acknowledged
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol, Self

Headers = tuple[tuple[str, bytes], ...]


class TopicPartition(NamedTuple):
    """One partition of one topic. Compares and hashes as the pair it is."""

    topic: str
    partition: int


class Record(NamedTuple):
    """One record as read from the log. A tuple because one is made for every record that is read."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    """Set by the producer; milliseconds since the epoch."""
    key: bytes | None
    value: bytes | None
    """``None`` is a tombstone: on a compacted topic the key is gone."""
    headers: Headers = ()

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class RecordPosition(NamedTuple):
    """Where an acknowledged record was written."""

    topic: str
    partition: int
    offset: int


ALTERABLE = ("cleanup", "retention_ms", "retention_bytes", "max_record_bytes")
"""Settings of a ``TopicSpec`` that can change while the topic is there."""


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """One topic as declared. ``None`` for a retention means without bound."""

    name: str
    partitions: int = 1
    replication: int = 1
    cleanup: Literal["delete", "compact", "compact,delete"] = "delete"
    """``compact`` keeps the newest record of each key whatever its age, ``delete`` what the retentions allow."""
    retention_ms: int | None = None
    retention_bytes: int | None = None
    """Per partition, as in Kafka."""
    max_record_bytes: int = 1_048_576
    readable: bool = True
    """False on a topic that may be seen and whose settings may not: what is said of them is then a guess."""


@dataclass(frozen=True, slots=True)
class Start:
    """Where a consumer starts in a partition for which its group has committed nothing.

    A broadcast reader (no group) always starts there. ``offsets`` names partitions one by one;
    a partition that it does not name starts at the earliest record.
    """

    kind: Literal["earliest", "latest", "time", "offsets"]
    time_ms: int = 0
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)

    @classmethod
    def earliest(cls) -> Start:
        return cls("earliest")

    @classmethod
    def latest(cls) -> Start:
        return cls("latest")

    @classmethod
    def at_time(cls, time_ms: int) -> Start:
        """At the first record whose timestamp is not before ``time_ms``; the end if there is none."""
        return cls("time", time_ms=time_ms)

    @classmethod
    def at_offsets(cls, offsets: Mapping[TopicPartition, int]) -> Start:
        return cls("offsets", offsets=dict(offsets))


RebalanceCallback = Callable[[Collection[TopicPartition]], None]

Assignment = Literal["together", "cooperative"]
"""How the members of a group share partitions; all of one group share in the same way.

``together``: equal partition numbers of topics with the same number of partitions are one member's, so it can join what they
hold. Whoever joins or leaves may move any partition, and callbacks tell of it.
``cooperative``: shares differ by one at most, and whoever joins or leaves moves no more than that needs. The others go on
reading what they keep, and callbacks name only what is gained or lost.
"""


class Producer(Protocol):
    """Writes records. Safe for use by several threads."""

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Future[RecordPosition]:
        """Hand a record over; the future resolves when it is durable, or fails with a ``BusError``.

        Without ``partition``, the key decides (murmur2 as Kafka's default partitioner, so both
        implementations agree); without a key the partitions take turns. Blocks while the bound on what is in
        flight is reached, at most the configured time, then raises ``BusBackpressureError``. Raises
        ``UnknownTopicError``, ``RecordTooLargeError`` and ``FencedError`` at once or through the future.
        """

    def in_flight(self) -> tuple[int, int]:
        """Records that were sent and are not acknowledged yet, and their bytes. Never waits for the log."""

    def flush(self, timeout_s: float) -> None:
        """Wait until nothing is in flight; raises ``DeliveryError`` when time runs out."""

    def close(self, timeout_s: float = 10.0) -> None:
        """Flush, then release everything. Idempotent."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc: object) -> None: ...


class Consumer(Protocol):
    """Reads records of some topics. Not safe for use by several threads.

    With a group, the group's members share the partitions (see ``Assignment``), and offsets are committed for the
    group. Without one (broadcast) this reader has all partitions, and ``commit`` does nothing.
    """

    def poll(self, timeout_s: float, max_records: int = 500) -> list[Record]:
        """The next records of the assigned, not paused partitions, in offset order within each.

        Waits up to ``timeout_s`` seconds for the first. Also where rebalances happen: callbacks run
        inside ``poll``. Call it at least every few seconds, paused or not.
        """

    def ack(self, record: Record | RecordPosition) -> None:
        """Mark one record as done, in any order. Acknowledging a partition that was revoked is ignored."""

    def commit(self) -> None:
        """Commit, per partition, the lowest offset not acknowledged. Also done on revoke and close."""

    def assignment(self) -> frozenset[TopicPartition]: ...

    def pause(self, partitions: Iterable[TopicPartition]) -> None: ...

    def resume(self, partitions: Iterable[TopicPartition]) -> None: ...

    def paused(self) -> frozenset[TopicPartition]: ...

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Read from ``offset`` next; what was delivered and not acknowledged there is forgotten."""

    def position(self, partition: TopicPartition) -> int:
        """The offset that the next ``poll`` reads."""

    def committed(self, partition: TopicPartition) -> int | None:
        """The group's committed offset, or ``None``."""

    def beginning_offsets(self) -> dict[TopicPartition, int]:
        """The first offset still held, per partition of the subscribed topics."""

    def end_offsets(self) -> dict[TopicPartition, int]:
        """The offset that the next record will get, per partition of the subscribed topics."""

    def lag(self) -> dict[TopicPartition, int]:
        """Records from ``position`` to the end, per assigned partition."""

    def close(self) -> None:
        """Commit, leave the group, release everything. Idempotent."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc: object) -> None: ...


class TopicAdmin(Protocol):
    """Looks at topics and groups and makes what is declared."""

    def topics(self, names: Sequence[str] | None = None) -> dict[str, TopicSpec]:
        """Topics by name, as they stand: every one that may be seen, or those of ``names`` that exist. Raises
        ``BusAuthorizationError`` for a named one that may not be looked at."""

    def create(self, specs: Sequence[TopicSpec]) -> list[str]:
        """Make those that are missing; return their names. An existing one with other partitions
        raises ``TopicMismatchError``; nothing is ever shrunk or removed."""

    def alter(self, specs: Sequence[TopicSpec]) -> list[str]:
        """Bring the settings (``ALTERABLE``) of those that exist to what is declared; return the names of those that
        changed. Partitions and replication stay as they are, whatever is declared. Missing topics are ignored."""

    def delete(self, names: Sequence[str]) -> None:
        """Remove topics with all their records. Unknown names are ignored."""

    def delete_records(self, before: Mapping[TopicPartition, int]) -> None:
        """Let go of all records below the given offsets."""

    def groups(self, prefix: str = "") -> list[str]:
        """Names of the groups that have members or committed offsets and begin with ``prefix``, sorted."""

    def delete_groups(self, names: Sequence[str]) -> None:
        """Forget groups and what they committed. Unknown names are ignored. One that has members is kept, and
        ``BusError`` names it once the others are gone."""

    def group_offsets(self, group: str) -> dict[TopicPartition, int]:
        """What a group has committed; empty if it is unknown."""

    def end_offsets(self, topics: Sequence[str]) -> dict[TopicPartition, int]: ...

    def sizes(self, prefix: str = "") -> dict[str, int]:
        """Bytes on disk, all copies together, of each topic whose name begins with ``prefix``."""


class Bus(Protocol):
    """One log. Opened from a configuration by ``connectors.open_bus``."""

    def producer(self, *, fence: str | None = None) -> Producer:
        """A producer. With ``fence`` it is the only live one of that name: an older holder's sends
        fail with ``FencedError`` from this moment on, and what it had not finished is not read."""

    def consumer(
        self,
        topics: Sequence[str],
        *,
        group: str | None = None,
        start: Start | None = None,
        member: str | None = None,
        assignment: Assignment = "together",
        on_assign: RebalanceCallback | None = None,
        on_revoke: RebalanceCallback | None = None,
    ) -> Consumer:
        """A consumer of ``topics``, which must exist (``UnknownTopicError``). ``start`` defaults to earliest.
        ``member`` is a stable name for static membership: a restart within the session keeps its
        partitions, and whoever joins by a name in use replaces its holder, whose ``poll`` raises ``FencedError``.
        ``on_revoke`` runs before the final commit of the partitions it is given. A group whose live members share partitions in the
        other way raises ``GroupMismatchError``, here or from ``poll``, once their sessions should have ended."""

    def admin(self) -> TopicAdmin: ...

    def ping(self, timeout_s: float) -> None:
        """Return if the log answers; raise ``BusUnavailableError`` if not."""

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc: object) -> None: ...
