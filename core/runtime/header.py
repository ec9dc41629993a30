"""The headers of every event's record, for those who have no Avro: what it is (CloudEvents) and what it belongs to (W3C trace
context). Made by ``EventWriter``, in this one place.

CloudEvents 1.0, Kafka protocol binding, binary content mode: attributes are headers with the prefix ``ce_``, ``content-type`` says
what the value is, all in UTF-8. ``docs/tracing.md`` lists them.
"""

from __future__ import annotations

from datetime import UTC, datetime
from urllib.parse import quote

from distrl.core.codec import RECORDS
from distrl.core.contracts.bus import Headers
from distrl.core.contracts.events import DeadLetter, Event, Feedback, Priority, Reward, Role, Trajectory
from distrl.core.contracts.topic import CO_PARTITIONED
from distrl.core.runtime.trace import trace_id
from distrl.schemas import latest

TRACEPARENT = "traceparent"
CONTENT_TYPE = b"application/avro"


class EventHeaders:
    """Makes the headers of one node's events. Safe for use by several threads."""

    def __init__(self, *, run: str, role: Role, node: str) -> None:
        # A source is a URI reference.
        source = f"/distrl/{quote(run, safe='')}/{role}/{quote(node, safe='')}".encode()
        self._constant: dict[type[Event], Headers] = {
            kind: (
                ("content-type", CONTENT_TYPE),
                ("ce_specversion", b"1.0"),
                ("ce_type", latest(record).name.encode()),
                ("ce_source", source),
            )
            for kind, record in RECORDS.items()
        }
        self._second: tuple[int | None, bytes] = (None, b"")
        """The last second that was asked for, and its text: events come many a second."""

    def of(self, event: Event) -> Headers:
        """The headers of an event that its schema admits."""
        envelope = event.envelope
        headers = (*self._constant[type(event)], ("ce_id", envelope.event_id.encode()))
        if time := self._time(envelope.time_ms):
            headers += (("ce_time", time),)
        if subject := _subject(event):
            headers += (("ce_subject", subject),)
        if trace_id(envelope.traceparent):
            headers += ((TRACEPARENT, envelope.traceparent.encode()),)
        return headers

    def _time(self, time_ms: int) -> bytes:
        """RFC 3339; empty for a time that it cannot tell (beyond the year 9999)."""
        second, millisecond = divmod(time_ms, 1000)
        known, text = self._second
        if known != second:
            try:
                text = datetime.fromtimestamp(second, UTC).replace(tzinfo=None).isoformat().encode()
            except (ValueError, OverflowError, OSError):
                return b""
            self._second = (second, text)
        return b"%b.%03dZ" % (text, millisecond)


def _subject(event: Event) -> bytes:
    """The id of the trajectory that the event is about; empty if it is about none."""
    match event:
        case Trajectory() | Reward() | Priority() | Feedback():
            return event.trajectory_id.encode()
        case DeadLetter(topic=topic, key=key) if key and topic.rpartition(".")[2] in CO_PARTITIONED:
            try:
                key.decode()
            except UnicodeDecodeError:
                return b""
            return key
        case _:
            return b""
