"""Reading from Kafka: ``Consumer`` over kafka-python's, with low-water commits. Opened by ``bus.KafkaBus``.

A group member commits, for each partition, the lowest offset that is not acknowledged; it does so when asked, before
partitions are taken away and when it is closed, never by itself. The range assignor keeps equal partition numbers of
co-partitioned topics together, and a rebalance takes all partitions and gives all: what was delivered and not
acknowledged is delivered again. The cooperative one splits them, and a rebalance leaves alone what stays where it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any, Self, TypeVar

from kafka import TopicPartition as KafkaTopicPartition
from kafka import errors
from kafka.structs import OffsetAndMetadata

from distrl.connectors.kafka.backdoor import call_on_loop, drop_assignment, fenced, load_metadata
from distrl.connectors.kafka.connection import Connection
from distrl.connectors.kafka.failure import KafkaError, translated
from distrl.connectors.kafka.group import GroupPoll, assignor
from distrl.connectors.kafka.quiet import QuietPoll
from distrl.connectors.kafka.rebalance import Listener, Pump, ours
from distrl.connectors.low_water import LowWater
from distrl.core.contracts.bus import (
    Assignment,
    RebalanceCallback,
    Record,
    RecordPosition,
    Start,
    TopicPartition,
)
from distrl.core.contracts.clock import Clock
from distrl.core.errors import BusError, BusUnavailableError, FencedError, GroupMismatchError

ANSWER_S = 15.0
"""Longest wait for offsets and positions, seconds."""
CLOSE_S = 5.0
"""Longest wait for the last commit and for leaving the group, seconds."""
_RETRY_S = 0.2
PARTITION_FETCH_BYTES = 2 * 1024 * 1024

_GONE = (
    errors.CommitFailedError,
    errors.RebalanceInProgressError,
    errors.IllegalGenerationError,
    errors.UnknownMemberIdError,
)
"""A commit came too late: the partitions are somebody else's, who will read the records again."""

T = TypeVar("T")


class KafkaLogConsumer:
    """``Consumer``: a member of ``group``, or a broadcast reader of all ``partitions``."""

    def __init__(
        self,
        connection: Connection,
        partitions: Sequence[TopicPartition],
        clock: Clock,
        *,
        group: str | None,
        start: Start,
        member: str | None,
        assignment: Assignment,
        on_assign: RebalanceCallback | None,
        on_revoke: RebalanceCallback | None,
    ) -> None:
        self._brokers = connection.brokers
        self._partitions = list(partitions)
        self._group = group
        self._member = member
        self._start = start
        self._on_assign = on_assign
        self._on_revoke = on_revoke
        self._marks: dict[TopicPartition, LowWater] = {}
        """Of partitions that are ours, from their first record or a start that is not the first record on."""
        self._committed: dict[TopicPartition, int] = {}
        """What this member has committed of partitions that are ours."""
        self._held: set[TopicPartition] = set(partitions) if group is None else set()
        """What is ours, as the callbacks have told."""
        self._paused: set[TopicPartition] = set()
        self._clock = clock
        self._patience_s = connection.config.delivery_seconds
        self._away_since: float | None = None
        """When polls began to fail with what passes: no broker answers, a former version's members are still there."""
        self._assignment: Assignment = assignment
        self._closed = False
        self._announce = on_assign is not None
        """Whether a broadcast reader has yet to call ``on_assign``."""
        self._pump = Pump() if group is not None else None
        self._session_s = connection.config.session_seconds
        session_ms = int(self._session_s * 1000)
        shares = assignor(assignment)
        try:
            self._client = connection.consumer(
                group_id=group,
                group_instance_id=member if group is not None else None,
                session_timeout_ms=session_ms,
                heartbeat_interval_ms=max(50, min(3000, session_ms // 5)),
                max_poll_interval_ms=int(connection.config.poll_gap_seconds * 1000),
                partition_assignment_strategy=(shares,),
                max_partition_fetch_bytes=PARTITION_FETCH_BYTES,
            )
        except BaseException:
            if self._pump is not None:
                self._pump.close()
            raise
        self._quiet_poll = QuietPoll(self._client, clock, partitions=len(self._partitions)) if group is None else None
        try:
            if self._pump is not None:
                listener = Listener(self._assigned, self._revoked, self._lost)
                self._client.subscribe(topics=sorted({p.topic for p in partitions}), listener=listener)
                with self._translated("joining"):
                    load_metadata(self._client, ANSWER_S)
                self._group_poll = GroupPoll(self._client, shares)
            else:
                self._client.assign(_theirs(partitions))
                self._go_to_start(self._partitions)
        except BaseException:
            self._client.close(autocommit=False)
            raise

    # --- reading ----------------------------------------------------------------------------------

    def poll(self, timeout_s: float, max_records: int = 500) -> list[Record]:
        self._check()
        if self._announce and self._pump is None and self._on_assign is not None:
            self._announce = False
            self._on_assign(self._partitions)
        if timeout_s <= 0 and self._quiet_poll is not None and self._quiet_poll.held():
            return []
        with self._translated("polling"):
            try:
                if self._quiet_poll is not None:
                    batches = self._quiet_poll(int(timeout_s * 1000), max_records)
                else:
                    batches = self._poll_member(int(timeout_s * 1000), max_records)
                # A join that is under way may fail as the last one did.
                if self._pump is None or not self._group_poll.joining:
                    self._away_since = None
            except errors.RetriableError:
                if not self._patient(self._patience_s):
                    raise
                self._clock.sleep(min(timeout_s, _RETRY_S))
                return []
            except errors.InconsistentGroupProtocolError as error:
                # Members that died or left by a static name count until their sessions end.
                if not self._patient(2 * self._session_s):
                    raise GroupMismatchError(
                        f"group {self._group} has members that do not share partitions in the way {self._assignment!r}: they "
                        "run another version of distrl, or another role by this group's name; stop them first"
                    ) from error
                self._clock.sleep(min(timeout_s, _RETRY_S))
                return []
        records: list[Record] = []
        for partition, batch in batches.items():
            if self._pump is not None:
                self._deliver(TopicPartition(*partition), [record.offset for record in batch])
            records += map(_record, batch)
        return records

    def _poll_member(self, timeout_ms: int, max_records: int) -> dict[Any, Any]:
        assert self._pump is not None
        batches = self._pump.run(partial(self._group_poll, timeout_ms, max_records))
        if self._member is not None and fenced(self._client):
            raise FencedError(
                f"group {self._group}: another process has joined as {self._member!r}, so this one must stop; "
                "give each node an id of its own"
            )
        # What was taken away while it was on its way comes to its next owner.
        return {partition: batch for partition, batch in batches.items() if TopicPartition(*partition) in self._held}

    def _patient(self, bound_s: float) -> bool:
        """Whether to go on although a poll failed with what passes: until that has lasted for too long."""
        now = self._clock.monotonic()
        if self._away_since is None:
            self._away_since = now
        return now - self._away_since <= bound_s

    def ack(self, record: Record | RecordPosition) -> None:
        mark = self._marks.get((record.topic, record.partition))  # type: ignore[call-overload]  # equal, and made faster
        if mark is not None:
            mark.ack(record.offset)

    def commit(self) -> None:
        self._check()
        if self._group is None:
            return
        there = self._there()
        for partition, mark in self._marks.items():
            if partition in there and not mark.outstanding:
                # Past what is never delivered: the marks that end a transaction, what compaction removed.
                mark.position = max(mark.position, self.position(partition))
        offsets = self._to_commit(self._marks)
        if offsets:
            with self._translated("committing"):
                try:
                    self._client.commit(_metadata(offsets), timeout_ms=ANSWER_S * 1000)
                except _GONE:
                    return
            self._committed.update(offsets)

    # --- where it stands --------------------------------------------------------------------------

    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset(self._held)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        chosen = self._mine(partitions)
        self._client.pause(*_theirs(self._there().intersection(chosen)))
        self._paused.update(chosen)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        chosen = self._mine(partitions)
        self._client.resume(*_theirs(self._there().intersection(chosen)))
        self._paused.difference_update(chosen)

    def paused(self) -> frozenset[TopicPartition]:
        return frozenset(self._paused & self._held)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self._readable(partition)
        if offset < 0:
            raise BusError(f"cannot seek to offset {offset} of {partition.topic!r}")
        # Beyond the end kafka-python would go back to the first record.
        self._seek(partition, min(offset, self._offsets(self._client.end_offsets, [partition])[partition]))

    def _seek(self, partition: TopicPartition, offset: int) -> None:
        self._client.seek(KafkaTopicPartition(*partition), offset)
        if self._group is not None:
            self._marks.setdefault(partition, LowWater(offset)).seek(offset)

    def position(self, partition: TopicPartition) -> int:
        self._readable(partition)
        with self._translated("asking for the position"):
            position = self._client.position(KafkaTopicPartition(*partition), timeout_ms=ANSWER_S * 1000)
        if position is None:
            raise BusUnavailableError(
                f"the Kafka brokers {self._brokers} did not say within {ANSWER_S:g} s where {partition.topic!r} "
                f"partition {partition.partition} stands"
            )
        return int(position)

    def committed(self, partition: TopicPartition) -> int | None:
        self._check()
        if self._group is None:
            return None
        with self._translated("asking for what is committed"):
            offset = self._client.committed(KafkaTopicPartition(*partition), timeout_ms=ANSWER_S * 1000)
        return None if offset is None else int(offset)

    def beginning_offsets(self) -> dict[TopicPartition, int]:
        return self._offsets(self._client.beginning_offsets, self._partitions)

    def end_offsets(self) -> dict[TopicPartition, int]:
        return self._offsets(self._client.end_offsets, self._partitions)

    def lag(self) -> dict[TopicPartition, int]:
        mine = sorted(self._there())
        ends = self._offsets(self._client.end_offsets, mine)
        return {partition: max(0, ends[partition] - self.position(partition)) for partition in mine}

    def close(self) -> None:
        if self._closed:
            return
        try:
            mine = sorted(self._held)
            try:
                if self._group is not None and mine and self._on_revoke is not None:
                    self._on_revoke(mine)
            finally:
                self._commit_last()
        finally:
            self._closed = True
            if self._pump is not None:
                self._pump.close()
            with self._translated("closing"):
                self._client.close(autocommit=False, timeout_ms=CLOSE_S * 1000)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # --- rebalances: called on kafka-python's network thread ------------------------------------------

    async def _assigned(self, partitions: Collection[TopicPartition]) -> None:
        if not self._closed:
            await self._in_poll(partial(self._begin, list(partitions)))

    async def _revoked(self, partitions: Collection[TopicPartition]) -> None:
        if self._closed or not partitions:
            return
        offsets: dict[TopicPartition, int] = {}
        await self._in_poll(partial(self._end, list(partitions), offsets))
        if offsets:
            with contextlib.suppress(KafkaError):  # else they are read again; nothing is lost
                await self._client.commit_async(_metadata(offsets))
        if self._assignment == "together":
            drop_assignment(self._client)

    async def _lost(self, partitions: Collection[TopicPartition]) -> None:
        if self._closed or not partitions:
            return
        self._group_poll.forget()
        await self._in_poll(partial(self._end, list(partitions), None))

    async def _in_poll(self, action: Callable[[], None]) -> None:
        assert self._pump is not None
        await self._pump.ask(action, partial(call_on_loop, self._client))

    # --- inside -----------------------------------------------------------------------------------

    def _begin(self, partitions: list[TopicPartition]) -> None:
        """Take partitions over, besides those that are ours; runs in the caller's thread."""
        self._held.update(partitions)
        self._paused &= self._held
        self._client.pause(*_theirs(self._paused & self._there()))
        if self._start.kind != "earliest":
            self._go_to_start([partition for partition in partitions if self.committed(partition) is None])
        if self._start.kind == "latest":
            # Said to the group at once: if this member dies, its successor must not start later than it did.
            self.commit()
        if self._on_assign is not None and partitions:
            self._on_assign(partitions)

    def _end(self, partitions: list[TopicPartition], offsets: dict[TopicPartition, int] | None) -> None:
        """Let go of partitions, and put into ``offsets`` what is to be committed of them; runs in the caller's thread."""
        mine = [partition for partition in partitions if partition in self._held]
        try:
            if offsets is None:  # they are somebody else's already
                self._forget(mine)
            if self._on_revoke is not None and mine:
                self._on_revoke(mine)
            if offsets is not None:
                offsets.update(self._to_commit(mine))
        finally:
            self._forget(mine)
            if self._assignment == "cooperative":  # else they may come back at once
                self._paused.difference_update(mine)

    def _go_to_start(self, partitions: Sequence[TopicPartition]) -> None:
        """Seek to where reading starts. Without a seek it starts at the earliest record."""
        if self._start.kind == "earliest" or not partitions:
            return
        ends = self._offsets(self._client.end_offsets, partitions)
        starts = dict(ends)
        if self._start.kind == "time":
            times = {KafkaTopicPartition(*partition): self._start.time_ms for partition in partitions}
            found = self._offsets(self._client.offsets_for_times, times)
            starts.update({partition: at.offset for partition, at in found.items() if at is not None})
        elif self._start.kind == "offsets":
            wanted = self._start.offsets
            # Beyond the end there is nothing to seek to, and kafka-python would go back to the first record.
            starts = {p: min(wanted[p], ends[p]) for p in partitions if p in wanted}
        for partition, offset in starts.items():
            self._seek(partition, offset)

    def _deliver(self, partition: TopicPartition, offsets: Sequence[int]) -> None:
        """Records of a partition go to the caller."""
        mark = self._marks.get(partition)
        if mark is None:
            mark = self._marks[partition] = LowWater(offsets[0])
        elif offsets[0] < mark.position:
            mark.seek(offsets[0])  # the log lost its end, or its start moved; the broker knows best
        mark.deliver(offsets)

    def _to_commit(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        offsets = {p: self._marks[p].committable for p in partitions if p in self._marks}
        return {p: offset for p, offset in offsets.items() if self._committed.get(p) != offset}

    def _commit_last(self) -> None:
        offsets = self._to_commit(self._marks)
        if self._group is None or not offsets:
            return
        with contextlib.suppress(KafkaError):  # else they are read again; nothing is lost
            self._client.commit(_metadata(offsets), timeout_ms=CLOSE_S * 1000)

    def _forget(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._held.discard(partition)
            self._marks.pop(partition, None)
            self._committed.pop(partition, None)

    def _offsets(self, ask: Callable[..., dict[Any, T]], partitions: Any) -> dict[TopicPartition, T]:
        self._check()
        if self._quiet_poll is not None:
            self._quiet_poll.interrupt()
        given = partitions if isinstance(partitions, dict) else _theirs(partitions)
        with self._translated("asking for offsets"):
            return {TopicPartition(*p): offset for p, offset in ask(given, timeout_ms=ANSWER_S * 1000).items()}

    def _mine(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        self._check()
        chosen = list(partitions)
        foreign = set(chosen) - self.assignment()
        if foreign:
            raise BusError(
                f"not assigned to this consumer: {', '.join(f'{p.topic}[{p.partition}]' for p in sorted(foreign))}"
            )
        return chosen

    def _there(self) -> set[TopicPartition]:
        """What is ours and known to kafka-python as such: a rebalance shows there before the callbacks tell of it."""
        return self._held.intersection(ours(self._client.assignment()))

    def _readable(self, partition: TopicPartition) -> None:
        self._mine([partition])
        if partition not in self._there():
            raise BusError(f"{partition.topic}[{partition.partition}] is being taken away from this consumer")

    def _check(self) -> None:
        if self._closed:
            raise BusError("the consumer is closed")

    def _translated(self, doing: str) -> Any:
        name = "a broadcast reader" if self._group is None else f"group {self._group}"
        return translated(f"{doing} ({name})", self._brokers)


def _record(record: Any) -> Record:
    headers = record.headers
    for _, value in headers:
        if value is None:  # a foreign writer's: ours always have one
            headers = [(name, value or b"") for name, value in headers]
            break
    return Record(
        record.topic, record.partition, record.offset, record.timestamp, record.key, record.value, tuple(headers)
    )


def _theirs(partitions: Iterable[TopicPartition]) -> list[Any]:
    return [KafkaTopicPartition(*partition) for partition in partitions]


def _metadata(offsets: dict[TopicPartition, int]) -> dict[Any, Any]:
    return {KafkaTopicPartition(*p): OffsetAndMetadata(offset, "", -1) for p, offset in offsets.items()}
