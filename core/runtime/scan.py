"""Reads a stretch of the log once, from a broadcast reader's start to where the log ends now."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

import structlog

from distrl.core.codec import Codec
from distrl.core.contracts.bus import Consumer, Record, TopicPartition
from distrl.core.contracts.events import Event
from distrl.core.errors import BusUnavailableError, CodecError, RegistryUnavailableError

log = structlog.get_logger(__name__)
STALL_S = 30.0
"""A scan that gets no further for this long although there is more ends with an error."""
RETRY_S = 0.5
OnUnreadable = Callable[[Record, CodecError], None]
"""Hears of a record that is no event."""


def scan(
    consumer: Consumer,
    codec: Codec,
    until: Mapping[TopicPartition, int] | None = None,
    *,
    on_unreadable: OnUnreadable | None = None,
) -> Iterator[tuple[Record, Event]]:
    """Events with their records, each partition in order, up to ``until`` (default: the ends as they are now).

    Tombstones are skipped. What cannot be read goes to ``on_unreadable``, or is passed over with a warning: the role whose work
    it is sends it to the dead letters. Raises ``BusUnavailableError`` when the log stops answering, ``RegistryUnavailableError`` when a schema has to be asked for
    and the registry does not answer for as long.
    """
    for record in records(consumer, until):
        if record.value is None:
            continue
        try:
            event = _decode(codec, record)
        except CodecError as error:
            if on_unreadable is not None:
                on_unreadable(record, error)
                continue
            log.warning(
                "passed over a record",
                topic=record.topic,
                partition=record.partition,
                offset=record.offset,
                error=str(error),
            )
            continue
        yield record, event


def records(consumer: Consumer, until: Mapping[TopicPartition, int] | None = None) -> Iterator[Record]:
    """The records themselves, tombstones too, in the same order and with the same end."""
    ends = consumer.end_offsets() if until is None else until
    beginnings = consumer.beginning_offsets()
    progressed = time.monotonic()
    while any(max(consumer.position(part), beginnings.get(part, 0)) < end for part, end in ends.items()):
        found = consumer.poll(0.5)
        if found:
            progressed = time.monotonic()
        elif time.monotonic() - progressed > STALL_S:
            raise BusUnavailableError(f"the log gave nothing for {STALL_S:.0f} s although there is more to read")
        yield from (record for record in found if record.offset < ends.get(record.topic_partition, 0))


def _decode(codec: Codec, record: Record) -> Event:
    """Waits for a registry that is away: to pass over what it alone can explain would lose it."""
    assert record.value is not None
    deadline = time.monotonic() + STALL_S
    while True:
        try:
            return codec.decode(record.value, headers=record.headers)
        except RegistryUnavailableError:
            if time.monotonic() > deadline:
                raise
            time.sleep(RETRY_S)
