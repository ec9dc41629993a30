"""The consumer of the embedded log. Made by ``bus``.

Reading is a query a partition, from the position on. An idle consumer watches each file's ``data_version`` and
sleeps ever longer in between, up to ``IDLE_MAX_S``, so that it costs next to nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Self

from distrl.connectors.embedded.catalogue import Catalogue
from distrl.connectors.embedded.group import Membership
from distrl.connectors.embedded.heartbeat import Heartbeat
from distrl.connectors.embedded.partition import Partition
from distrl.connectors.low_water import LowWater
from distrl.core.contracts.bus import RebalanceCallback, Record, RecordPosition, Start, TopicPartition
from distrl.core.contracts.clock import Clock
from distrl.core.errors import BusError

IDLE_MIN_S = 0.001
IDLE_MAX_S = 0.02
"""First and longest pause between two looks at idle partitions: the longest delay of a record, too."""

POLL_BYTES = 32_000_000
"""A poll stops adding records once it holds more than this."""


class Reader:
    """One assigned partition: its file, where it stands, and what is not acknowledged."""

    def __init__(self, partition: Partition, position: int, *, tracked: bool) -> None:
        self.partition = partition
        self.mark = LowWater(position)
        self.committed = -1
        """What this consumer committed last."""
        self._tracked = tracked
        self._more = True
        self._version = -1

    def fetch(self, max_records: int, max_bytes: int) -> list[Record]:
        """The next records; touches the table only if it may have changed."""
        version = self.partition.version()  # before the query: a write in between shows as a change next time
        if not self._more and version == self._version:
            return []
        records, end = self.partition.read(self.mark.position, max_records, max_bytes)
        self._version = version
        self._more = end is None
        if records and self._tracked:
            self.mark.deliver([record.offset for record in records])
        elif records:
            self.mark.advance(records[-1].offset + 1)
        if end is not None:
            self.mark.advance(end)
        return records

    def seek(self, offset: int) -> None:
        self.mark.seek(offset)
        self._more = True


class EmbeddedConsumer:
    """Implements ``Consumer``. Not safe for use by several threads.

    ``membership`` is that of its group, or ``None`` for a broadcast reader.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        topics: Sequence[str],
        *,
        start: Start,
        membership: Membership | None,
        heartbeat: Heartbeat,
        on_assign: RebalanceCallback | None,
        on_revoke: RebalanceCallback | None,
        clock: Clock,
        on_close: Callable[[EmbeddedConsumer], None],
    ) -> None:
        self._catalogue = catalogue
        self._topics = [catalogue.topic(name) for name in dict.fromkeys(topics)]
        self._start = start
        self._membership = membership
        self._heartbeat = heartbeat
        self._on_assign = on_assign
        self._on_revoke = on_revoke
        self._clock = clock
        self._on_close = on_close
        self._readers: dict[TopicPartition, Reader] = {}
        self._announced: set[TopicPartition] = set()
        self._paused: set[TopicPartition] = set()
        self._files: dict[TopicPartition, Partition] = {}
        self._turn = 0
        self._closed = False
        if membership is None:
            try:
                self._open(self._subscribed())
            except BaseException:
                for partition in self._files.values():
                    partition.close()
                raise
        else:
            heartbeat.touch(membership.incarnation)

    # --- reading ----------------------------------------------------------------------------------

    def poll(self, timeout_s: float, max_records: int = 500) -> list[Record]:
        if self._closed:
            raise BusError("the consumer is closed")
        deadline = self._clock.monotonic() + timeout_s
        pause = IDLE_MIN_S
        while True:
            self._rebalance()
            records = self._fetch(max_records)
            remaining = deadline - self._clock.monotonic()
            if records or remaining <= 0:
                return records
            self._clock.sleep(min(pause, remaining))
            pause = min(2 * pause, IDLE_MAX_S)

    def _fetch(self, max_records: int) -> list[Record]:
        readers = [reader for partition, reader in self._readers.items() if partition not in self._paused]
        records: list[Record] = []
        size = 0
        # Each poll starts one partition further, so that a busy one cannot starve the others.
        self._turn += 1
        for index in range(len(readers)):
            if len(records) >= max_records or size >= POLL_BYTES:
                break
            reader = readers[(self._turn + index) % len(readers)]
            try:
                found = reader.fetch(max_records - len(records), POLL_BYTES - size)
            except BusError:
                if records:
                    break  # what was read already must not be lost; a later poll begins with this partition and says it
                raise
            size += sum(len(record.value or b"") for record in found)
            records += found
        return records

    # --- rebalancing ------------------------------------------------------------------------------

    def _rebalance(self) -> None:
        membership = self._membership
        if membership is not None:
            self._heartbeat.touch(membership.incarnation)
            if membership.changed():
                target = membership.target()
                if target is None:  # expelled: what was held belongs to others now, and commits are refused
                    self._heartbeat.forget(membership.incarnation)
                    self._give_up(frozenset(self._readers))
                    membership.join()
                    self._heartbeat.touch(membership.incarnation)
                    target = membership.target() or frozenset()
                self._give_up(frozenset(self._readers) - target)
                self._open(membership.claim(frozenset(self._readers)))
        new = frozenset(self._readers) - self._announced
        if new:
            self._announced |= new
            if self._on_assign is not None:
                self._on_assign(new)

    def _open(self, partitions: Collection[TopicPartition]) -> None:
        """Start reading ``partitions`` where the group stands, or at ``start``."""
        membership = self._membership
        committed = membership.committed() if membership is not None and partitions else {}
        first: dict[TopicPartition, int] = {}
        for name in sorted(partitions):
            partition = self._file(name)
            position = committed.get(name)
            if position is None:
                position = self._first(name, partition)
                if self._start.kind == "latest":
                    # Said to the group at once: if this member dies, its successor must not start later than it did.
                    first[name] = position
            self._readers[name] = Reader(partition, position, tracked=membership is not None)
        if membership is not None:
            membership.commit(first)

    def _first(self, name: TopicPartition, partition: Partition) -> int:
        match self._start.kind:
            case "latest":
                return partition.end()
            case "time":
                return partition.at_time(self._start.time_ms)
            case "offsets":
                return min(self._start.offsets.get(name, 0), partition.end())
            case "earliest":
                return partition.begin()

    def _give_up(self, partitions: frozenset[TopicPartition], *, keep: bool = False) -> None:
        """Tell the role, commit, release; a static member that closes may ``keep`` its claims for its return."""
        if not partitions:
            return
        told = partitions & self._announced
        try:
            if told and self._on_revoke is not None:
                self._on_revoke(told)
        finally:
            positions = {name: self._readers[name].mark.committable for name in partitions}
            for name in partitions:
                del self._readers[name]
            self._announced -= partitions
            self._paused -= partitions
            if self._membership is not None:
                self._membership.release(frozenset() if keep else partitions, positions)

    # --- acknowledging ----------------------------------------------------------------------------

    def ack(self, record: Record | RecordPosition) -> None:
        reader = self._readers.get(TopicPartition(record.topic, record.partition))
        if reader is not None:
            reader.mark.ack(record.offset)

    def commit(self) -> None:
        if self._membership is None:
            return
        positions = {
            name: reader.mark.committable
            for name, reader in self._readers.items()
            if reader.mark.committable != reader.committed
        }
        self._membership.commit(positions)
        for name, position in positions.items():
            self._readers[name].committed = position

    def committed(self, partition: TopicPartition) -> int | None:
        return None if self._membership is None else self._membership.committed().get(partition)

    # --- position ---------------------------------------------------------------------------------

    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset(self._readers)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        wanted = set(partitions)
        for partition in wanted:
            self._reader(partition)
        self._paused |= wanted

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        self._paused -= set(partitions)

    def paused(self) -> frozenset[TopicPartition]:
        return frozenset(self._paused)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        reader = self._reader(partition)
        # Beyond the end there is nothing to wait for: records that come would be passed over in silence.
        reader.seek(min(offset, reader.partition.end()))

    def position(self, partition: TopicPartition) -> int:
        return self._reader(partition).mark.position

    def beginning_offsets(self) -> dict[TopicPartition, int]:
        return {name: self._file(name).begin() for name in self._subscribed()}

    def end_offsets(self) -> dict[TopicPartition, int]:
        return {name: self._file(name).end() for name in self._subscribed()}

    def lag(self) -> dict[TopicPartition, int]:
        return {
            name: max(0, reader.partition.end() - reader.mark.position)
            for name, reader in sorted(self._readers.items())
        }

    def _reader(self, partition: TopicPartition) -> Reader:
        reader = self._readers.get(partition)
        if reader is None:
            raise BusError(f"partition {partition.partition} of {partition.topic!r} is not assigned to this consumer")
        return reader

    def _subscribed(self) -> list[TopicPartition]:
        return [name for topic in self._topics for name in topic.partitions()]

    def _file(self, name: TopicPartition) -> Partition:
        """The file of a subscribed partition, opened once."""
        partition = self._files.get(name)
        if partition is None:
            (topic,) = (topic for topic in self._topics if topic.spec.name == name.topic)
            partition = self._files[name] = self._catalogue.open(topic, name.partition)
        return partition

    # --- the end ----------------------------------------------------------------------------------

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        membership = self._membership
        try:
            if membership is not None:
                self._heartbeat.forget(membership.incarnation)
                self._give_up(frozenset(self._readers), keep=membership.static)
                membership.leave()
        finally:
            for partition in self._files.values():
                partition.close()
            self._catalogue.close()
            self._on_close(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
