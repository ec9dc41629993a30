"""Reads the dead letters of a run and sends records back to where they came from. Called by ``distrl dead-letters``.

A record goes back to its topic and partition with its own key, value and headers, at the end: no group's offset is touched, every role
sees it as a new record and recognises by the event's id whether it has handled it. Then a marker is written behind the letter,
so that it is not sent back twice; should that fail in between, the record may come twice, which does no harm.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

from distrl.core.codec import Codec
from distrl.core.contracts.bus import Bus, Headers, Producer, Record, RecordPosition, Start, TopicPartition
from distrl.core.contracts.events import DeadLetter, Role
from distrl.core.contracts.topic import CO_PARTITIONED, TopicName
from distrl.core.errors import CodecError, ConfigError, DeliveryError
from distrl.core.runtime.dead_letter import Marker, headers_to_redrive, marker_headers, read_marker
from distrl.core.runtime.scan import records

SEND_S = 120.0
"""Longest wait for the log to acknowledge a record that is sent back."""
Origin = tuple[str, int, int]


@dataclass(slots=True)
class Letter:
    """A dead letter on the log. Its original value is left there (``with_value`` fetches it)."""

    event: DeadLetter
    offset: int
    """On the topic ``dead-letters``."""
    value_bytes: int
    """Size of the original value."""
    markers: list[Marker] = field(default_factory=list)
    """When it was sent back."""

    @property
    def letter_id(self) -> str:
        return self.event.envelope.event_id

    @property
    def origin(self) -> Origin:
        return self.event.topic, self.event.partition, self.event.offset

    @property
    def redriven(self) -> bool:
        return bool(self.markers)


def read_letters(bus: Bus, codec: Codec, run: str) -> list[Letter]:
    """All dead letters of a run, in the order in which they were written; one that was written twice is there once."""
    letters: dict[str, Letter] = {}
    for record, event in _scan(bus, codec, run, 0):
        if event is not None:
            letters.setdefault(
                event.envelope.event_id,
                Letter(replace(event, value=None), record.offset, len(event.value or b"")),
            )
        elif (marker := read_marker(record)) is not None and marker.letter_id in letters:
            letters[marker.letter_id].markers.append(marker)
    return list(letters.values())


def with_value(bus: Bus, codec: Codec, run: str, letter: Letter) -> DeadLetter:
    """The whole event, original value and all."""
    for _, event in _scan(bus, codec, run, letter.offset):
        if event is not None and event.envelope.event_id == letter.letter_id:
            return event
    raise ConfigError(f"dead letter {letter.letter_id} has left the log meanwhile")


def find(letters: Sequence[Letter], what: str, run: str) -> Letter:
    """The letter that a person means: by its id or the beginning of it, by where its record came from (``trajectories/2/57``), or by
    where it lies itself (``dead-letters/0/3``). Raises ``ConfigError`` if there is none or more than one."""
    prefix = f"distrl.{run}."
    place = what.removeprefix(prefix)
    if "/" in place:
        found = [letter for letter in letters if place in (_place(letter, prefix), f"dead-letters/0/{letter.offset}")]
    else:
        found = [letter for letter in letters if letter.letter_id.startswith(what.lower())] if what else []
    if len(found) == 1:
        return found[0]
    if not found:
        raise ConfigError(f"no dead letter {what!r}; `distrl dead-letters list` shows all")
    several = ", ".join(f"{letter.letter_id[:12]} of the {letter.event.role}" for letter in found[:5])
    raise ConfigError(f"{what!r} means {len(found)} dead letters ({several}): give more of the id")


def select(
    letters: Sequence[Letter], *, run: str, code: str = "", topic: str = "", role: Role | None = None
) -> list[Letter]:
    """Those of an error code, a topic that their record came from (bare or whole name), a role; empty means any."""
    whole = topic if topic.startswith("distrl.") or not topic else f"distrl.{run}.{topic}"
    return [
        letter
        for letter in letters
        if (not code or letter.event.code == code)
        and (not whole or letter.event.topic == whole)
        and (role is None or letter.event.role == role)
    ]


def refusal(letter: Letter, run: str) -> str:
    """Why a record must not be sent back; empty if it may."""
    name = TopicName(run)
    if letter.event.topic not in {name(topic) for topic in CO_PARTITIONED}:
        return (
            f"a record of {letter.event.topic} is not sent back: no group handles that topic, and on a compacted one it would "
            "hide the newest of its key"
        )
    return ""


@dataclass(frozen=True, slots=True)
class Redriven:
    """A record that was sent back."""

    letter: Letter
    position: str
    """Where it lies now, as ``topic/partition/offset``."""


def redrive(
    bus: Bus, codec: Codec, run: str, chosen: Collection[Letter], letters: Collection[Letter]
) -> Iterator[Redriven]:
    """Send back the records of ``chosen`` letters, each record once, whoever's letters told of it; yields each when it is done.

    ``letters``: all of the run. Those of other roles about the same record are answered by it too, and marked.
    """
    due = {letter.origin: letter for letter in reversed(list(chosen))}
    if not due:
        return
    ids = {letter.letter_id: letter for letter in due.values()}
    start = min(letter.offset for letter in due.values())
    with bus.producer() as producer:
        for _, event in _scan(bus, codec, run, start):
            letter = None if event is None else ids.pop(event.envelope.event_id, None)
            if event is None or letter is None:
                continue
            sent = _send(
                producer,
                event.topic,
                event.value,
                key=event.key,
                headers=headers_to_redrive(event),
                partition=event.partition,
            )
            told = [other for other in letters if other.origin == letter.origin and not other.redriven]
            for other in {item.letter_id: item for item in (letter, *told)}.values():
                _mark(producer, run, other, marker_headers(other.event, sent))
            yield Redriven(letter, f"{sent.topic}/{sent.partition}/{sent.offset}")


def _mark(producer: Producer, run: str, letter: Letter, headers: Headers) -> None:
    _send(producer, TopicName(run)("dead-letters"), None, key=letter.letter_id.encode(), headers=headers)


def _send(
    producer: Producer,
    topic: str,
    value: bytes | None,
    *,
    key: bytes | None,
    headers: Headers,
    partition: int | None = None,
) -> RecordPosition:
    try:
        return producer.send(topic, value, key=key, headers=headers, partition=partition).result(SEND_S)
    except TimeoutError as error:
        raise DeliveryError(f"no word from the log within {SEND_S:.0f} s about a record for {topic}") from error


def _scan(bus: Bus, codec: Codec, run: str, offset: int) -> Iterator[tuple[Record, DeadLetter | None]]:
    """Letters, and other records without an event, from ``offset`` on. What cannot be read is passed over: it is no letter."""
    topic = TopicName(run)("dead-letters")
    start = Start.at_offsets({TopicPartition(topic, 0): offset})
    with bus.consumer([topic], start=start) as consumer:
        for record in records(consumer):
            if record.value is None:
                yield record, None
                continue
            try:
                yield record, codec.decode(record.value, DeadLetter, record.headers)
            except CodecError:
                continue


def _place(letter: Letter, prefix: str) -> str:
    topic, partition, offset = letter.origin
    return f"{topic.removeprefix(prefix)}/{partition}/{offset}"
