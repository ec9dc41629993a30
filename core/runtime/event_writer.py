"""Writes events: makes envelopes, frames, keys and sends, and retries what is worth retrying. One a node."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from concurrent.futures import Future

import structlog
from tenacity import RetryCallState, Retrying, retry_if_exception, wait_exponential

from distrl.core.codec import Codec, event_key, event_topic
from distrl.core.contracts.bus import Headers, Producer, Record, RecordPosition
from distrl.core.contracts.clock import Clock
from distrl.core.contracts.events import Envelope, Event, Role
from distrl.core.contracts.metric import DEAD_LETTERS
from distrl.core.contracts.topic import TopicName
from distrl.core.errors import (
    CodecError,
    DeliveryError,
    DistrlError,
    RecordTooLargeError,
    RegistryError,
    is_retriable,
)
from distrl.core.runtime.activity import Activity
from distrl.core.runtime.dead_letter import letter_id, make_dead_letter
from distrl.core.runtime.header import TRACEPARENT, EventHeaders
from distrl.core.runtime.trace import child_traceparent, root_traceparent

log = structlog.get_logger(__name__)


class EventWriter:
    """Sends one node's events. Safe for use by several threads as far as its producer is."""

    def __init__(
        self,
        producer: Producer,
        codec: Codec,
        *,
        run: str,
        node: str,
        role: Role,
        clock: Clock,
        activity: Activity,
        stop: threading.Event,
        patience_s: float,
    ) -> None:
        self._producer = producer
        self._codec = codec
        self._topic = TopicName(run)
        self._run = run
        self._node = node
        self._role = role
        self._headers = EventHeaders(run=run, role=role, node=node)
        self._clock = clock
        self._activity = activity
        self._stop = stop
        self._patience = patience_s
        activity.follow(producer.in_flight)

    def envelope(self, event_id: str, *, parent: str = "", begins_trace: bool = False) -> Envelope:
        """An envelope of this node, now. ``parent``: the ``traceparent`` of the event that this one answers, whose trace it joins as a
        span of its own. Without one it belongs to no trace, unless it begins one."""
        now = self._clock.time_ms()
        # A run's name and its first ids may come again; the time does not.
        own = root_traceparent(event_id, str(now)) if begins_trace else child_traceparent(parent, event_id)
        return Envelope(event_id, self._run, self._node, now, own)

    def frame(self, event: Event) -> bytes:
        """The event's bytes as they go on the log."""
        return self._codec.encode(event)

    def send(self, event: Event, *, topic: str | None = None) -> Future[RecordPosition]:
        """Hand an event over to its topic (or ``topic``); the future resolves when the log has it."""
        value = self._codec.encode(event)
        return self._send(topic or event_topic(event), event_key(event), value, self._headers.of(event))

    def send_framed(self, topic: str, key: bytes | None, value: bytes | None) -> Future[RecordPosition]:
        """The same for bytes framed before, which get the headers of the event that they hold; ``None`` sends a tombstone. Bytes
        that cannot be read here go as they are: who reads them on the log says so in the dead letters."""
        headers: Headers = ()
        if value is not None:
            with contextlib.suppress(CodecError, RegistryError):
                headers = self._headers.of(self._codec.decode(value))
        return self._send(topic, key, value, headers)

    def send_all(self, events: Sequence[Event], *, topic: str | None = None) -> None:
        """Send events, to their topics or to ``topic``, and wait until the log has all of them.

        Retries with back-off what is retriable, at most the node's patience; then the last error is raised. An event
        may then be on the log twice: readers recognise it by its id.
        """
        remaining: list[Event] = list(events)
        for attempt in Retrying(
            retry=retry_if_exception(is_retriable),
            wait=wait_exponential(multiplier=0.2, max=10.0),
            stop=self._give_up,
            sleep=lambda seconds: self._clock.sleep(seconds),
            reraise=True,
        ):
            with attempt:
                former = self._activity.enter("log") if attempt.retry_state.attempt_number > 1 else None
                try:
                    self._send_once(remaining, topic)
                finally:
                    if former is not None:
                        self._activity.enter(former)

    def dead_letter(self, record: Record, error: DistrlError, *, attempt: int = 1) -> None:
        """Keep a record that cannot be handled, with all that is known of why; waits until the log has it, so that the record may be
        acknowledged then. ``attempt``: how often it was tried since it was sent, or sent back."""
        log.error(
            "dead letter",
            code=error.code,
            error=error.message,
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
        )
        self._activity.count(DEAD_LETTERS)
        envelope = self.envelope(letter_id(self._role, record), parent=_parent(record))
        try:
            self.send_all([make_dead_letter(record, error, envelope, role=self._role, attempt=attempt)])
        except RecordTooLargeError as too_large:
            raise RecordTooLargeError(
                f"the dead letter of {record.topic}/{record.partition}/{record.offset} does not fit: {too_large.message}; "
                "give the topic dead-letters the size that is declared (`distrl topics plan`); "
                "the record stays unacknowledged until then"
            ) from error

    def report(self, record: Record, error: DistrlError) -> None:
        """A letter from a reader without a group, which acknowledges nothing: it waits for nobody. Each reader of a role may write
        it; the id makes it one letter."""
        envelope = self.envelope(letter_id(self._role, record), parent=_parent(record))
        self._activity.count(DEAD_LETTERS)
        try:
            self.send(make_dead_letter(record, error, envelope, role=self._role, attempt=1))
        except DistrlError as failure:
            log.warning("a dead letter did not reach the log", about=str(error), error=str(failure))

    def _send(self, topic: str, key: bytes | None, value: bytes | None, headers: Headers) -> Future[RecordPosition]:
        now = self._clock.time_ms()
        return self._producer.send(self._topic(topic), value, key=key, headers=headers, timestamp_ms=now)

    def _send_once(self, events: list[Event], topic: str | None) -> None:
        """One try; leaves in ``events`` what the log has not acknowledged, and raises if that is anything."""
        futures: list[tuple[Event, Future[RecordPosition] | None]] = []
        failure: DistrlError | None = None
        for event in events:
            if failure is not None:
                futures.append((event, None))
                continue
            try:
                futures.append((event, self.send(event, topic=topic)))
            except DistrlError as error:
                failure = error
                futures.append((event, None))
        remaining: list[Event] = []
        for event, future in futures:
            if future is None:
                remaining.append(event)
                continue
            try:
                future.result(timeout=self._patience)
            except DistrlError as error:
                failure = error
                remaining.append(event)
            except TimeoutError as error:
                failure = DeliveryError(f"no word from the log about an event within {self._patience:.0f} s")
                failure.__cause__ = error
                remaining.append(event)
        events[:] = remaining
        if failure is not None:
            raise failure

    def _give_up(self, state: RetryCallState) -> bool:
        """When patience ends; a stopping node tries a few times more, not for its whole patience."""
        elapsed = state.seconds_since_start or 0.0
        return elapsed >= self._patience or (self._stop.is_set() and state.attempt_number >= 5)


def _parent(record: Record) -> str:
    """The trace context in a record's headers; empty if there is none. Bytes come from other machines."""
    return dict(record.headers).get(TRACEPARENT, b"").decode("ascii", "replace")
