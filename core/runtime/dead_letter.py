"""Dead letters: made where a role gives a record up, and read back, with what was sent back, by the tools and the run's history.

On the topic ``dead-letters`` lie two kinds of record: letters (a framed ``DeadLetter``), and markers, which say that a letter was sent
back: no value, the letter's id as key, and headers. A marker lies behind its letter on the same topic, so it lives as long.
"""

from __future__ import annotations

import contextlib
import traceback
from dataclasses import dataclass

from distrl.core.contracts.bus import Headers, Record, RecordPosition
from distrl.core.contracts.events import DeadLetter, Envelope, Role
from distrl.core.contracts.identity import derived_id
from distrl.core.errors import DistrlError

MESSAGE_BYTES = 8_000
CAUSE_BYTES = 4_000
TRACEBACK_BYTES = 48_000
"""Together well within what a dead letter may add to its record (``core.contracts.topic.DEAD_LETTER_BYTES``)."""

REDRIVE_OF = "distrl-redrive-of"
"""Header of a record that was sent back: the id of its dead letter."""
REDRIVES = "distrl-redrives"
"""The same, and of a marker: how often the record has been sent back by now."""
ATTEMPTS = "distrl-attempts"
"""Header of a record that was sent back: how often it had been tried before."""
MOST = 1_000_000
"""What such counts are held to: anybody may write a header."""
REDRIVEN = "distrl-redriven"
"""Header of a marker: the id of the letter that was sent back."""
REDRIVEN_TO = "distrl-redriven-to"
"""Header of a marker: where the record lies now, as ``topic/partition/offset``."""


def letter_id(role: Role, record: Record) -> str:
    """The id of a role's letter about a record: the same from each node of the role, so repeats are recognised."""
    return derived_id("dead-letter", role, f"{record.topic}/{record.partition}/{record.offset}")


def make_dead_letter(record: Record, error: DistrlError, envelope: Envelope, *, role: Role, attempt: int) -> DeadLetter:
    """A letter about ``record``, which has failed ``attempt`` times since it was sent, or sent back. Long texts are cut."""
    return DeadLetter(
        envelope=envelope,
        code=error.code,
        message=_head(error.message, MESSAGE_BYTES),
        role=role,
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        key=record.key,
        value=record.value,
        headers=dict(record.headers),
        attempt=attempt + _count(record.headers, ATTEMPTS),
        traceback=_tail("".join(traceback.format_exception(error)), TRACEBACK_BYTES),
        cause=_head(_cause(error), CAUSE_BYTES),
        record_time_ms=record.timestamp_ms,
    )


def headers_to_redrive(letter: DeadLetter) -> Headers:
    """The original headers, and what says that, and how often, the record was sent back."""
    original = tuple(letter.headers.items())
    own = {
        REDRIVE_OF: letter.envelope.event_id.encode(),
        REDRIVES: str(_count(original, REDRIVES) + 1).encode(),
        ATTEMPTS: str(letter.attempt).encode(),
    }
    return (*((name, value) for name, value in original if name not in own), *own.items())


def marker_headers(letter: DeadLetter, position: RecordPosition) -> Headers:
    """Of the record that remembers that ``letter`` was sent back and lies at ``position`` now."""
    return (
        (REDRIVEN, letter.envelope.event_id.encode()),
        (REDRIVEN_TO, f"{position.topic}/{position.partition}/{position.offset}".encode()),
        (REDRIVES, str(_count(tuple(letter.headers.items()), REDRIVES) + 1).encode()),
    )


@dataclass(frozen=True, slots=True)
class Marker:
    """A letter was sent back."""

    letter_id: str
    position: str
    """Where the record lies now, as ``topic/partition/offset``."""
    time_ms: int


def read_marker(record: Record) -> Marker | None:
    """What a record without value on ``dead-letters`` says; ``None`` if it is no marker."""
    headers = dict(record.headers)
    if record.value is not None or REDRIVEN not in headers:
        return None
    return Marker(_text(headers[REDRIVEN]), _text(headers.get(REDRIVEN_TO, b"")), record.timestamp_ms)


def _cause(error: BaseException) -> str:
    root = error
    while root.__cause__ is not None:
        root = root.__cause__
    return "" if root is error else f"{type(root).__name__}: {root}"


def _count(headers: Headers, name: str) -> int:
    """A count in a header; 0 if it is not there or no number."""
    for found, value in headers:
        if found == name:
            with contextlib.suppress(ValueError):
                return min(max(int(value), 0), MOST)
    return 0


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _head(text: str, size: int) -> str:
    """The first ``size`` bytes in UTF-8. What is no character (an exception may carry such) is replaced."""
    return text.encode("utf-8", "replace")[:size].decode("utf-8", "ignore")


def _tail(text: str, size: int) -> str:
    return text.encode("utf-8", "replace")[-size:].decode("utf-8", "ignore")
