"""Dead letters: what they tell, how they are cut to fit, and what a record that was sent back carries."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from distrl.core.codec import Codec, event_key
from distrl.core.contracts.bus import Record, RecordPosition
from distrl.core.contracts.events import DeadLetter
from distrl.core.contracts.topic import DEAD_LETTER_BYTES
from distrl.core.errors import InvalidEventError
from distrl.core.runtime.dead_letter import (
    ATTEMPTS,
    REDRIVE_OF,
    REDRIVES,
    headers_to_redrive,
    letter_id,
    make_dead_letter,
    marker_headers,
    read_marker,
)
from distrl.core.runtime.header import EventHeaders
from distrl.testing import make_envelope

CODEC = Codec()
RECORD = Record("distrl.r.trajectories", 2, 57, 1_700_000_000_000, b"key", b"value", (("traceparent", b"00-x"),))


def failure(message: str, cause: Exception | None = None) -> InvalidEventError:
    try:
        try:
            raise cause or KeyError("root")
        except Exception as root:
            try:
                raise ValueError("between") from root
            except ValueError as between:
                raise InvalidEventError(message) from between
    except InvalidEventError as error:
        return error


def letter(record: Record = RECORD, message: str = "no idea", cause: Exception | None = None) -> DeadLetter:
    return make_dead_letter(record, failure(message, cause), make_envelope("id"), role="evaluator", attempt=2)


def test_a_letter_tells_what_failed_and_what_lay_beneath() -> None:
    made = letter()
    assert (made.code, made.message, made.cause) == ("DISTRL-202", "no idea", "KeyError: 'root'")
    assert (made.topic, made.partition, made.offset, made.key, made.value) == (RECORD.topic, 2, 57, b"key", b"value")
    assert (made.attempt, made.record_time_ms, made.headers) == (2, RECORD.timestamp_ms, {"traceparent": b"00-x"})
    assert "ValueError: between" in made.traceback
    assert CODEC.decode(CODEC.encode(made)) == made
    plain = make_dead_letter(RECORD, InvalidEventError("alone"), make_envelope(), role="learner", attempt=1)
    assert plain.cause == ""


def test_the_id_is_that_of_role_and_place() -> None:
    assert letter_id("evaluator", RECORD) == letter_id("evaluator", RECORD._replace(value=b"other"))
    assert letter_id("evaluator", RECORD) != letter_id("learner", RECORD)
    assert letter_id("evaluator", RECORD) != letter_id("evaluator", RECORD._replace(offset=58))


@settings(deadline=None)
@given(text=st.text(st.characters(codec=None), max_size=20), times=st.integers(1, 20_000), key=st.binary(max_size=2000))
def test_whatever_the_texts_a_letter_adds_no_more_than_its_topic_allows(text: str, times: int, key: bytes) -> None:
    """Surrogates too: an exception's text may hold what is no character."""
    record = RECORD._replace(key=key, value=bytes(100_000))
    made = letter(record, text * times, ValueError(text * times))
    headers = EventHeaders(run="r" * 63, role="evaluator", node="n" * 200).of(made)
    size = len(CODEC.encode(made)) + len(event_key(made)) + sum(len(name) + len(value) for name, value in headers)
    original = len(key) + 100_000
    assert size <= original + DEAD_LETTER_BYTES


def test_a_record_that_was_sent_back_counts_its_tries() -> None:
    first = letter()
    headers = headers_to_redrive(first)
    assert dict(headers) == {"traceparent": b"00-x", REDRIVE_OF: b"id", REDRIVES: b"1", ATTEMPTS: b"2"}
    second = letter(RECORD._replace(offset=99, headers=headers))
    assert second.attempt == 4
    again = dict(headers_to_redrive(second))
    assert (again[REDRIVES], again[ATTEMPTS], again["traceparent"]) == (b"2", b"4", b"00-x")


def test_headers_that_anybody_may_have_written_break_nothing() -> None:
    for value in (b"", b"many", b"-3", b"9" * 30, b"9" * 5000, b"\xff"):
        made = letter(RECORD._replace(headers=((ATTEMPTS, value), (REDRIVES, value))))
        assert made.attempt >= 2
        assert CODEC.decode(CODEC.encode(made)) == made
        assert int(dict(headers_to_redrive(made))[REDRIVES]) >= 1


def test_a_marker_says_which_letter_was_sent_back_and_where_to() -> None:
    headers = marker_headers(letter(), RecordPosition(RECORD.topic, 2, 90))
    record = Record("distrl.r.dead-letters", 0, 4, 1_700_000_000_500, b"id", None, headers)
    marker = read_marker(record)
    assert marker is not None
    assert (marker.letter_id, marker.position, marker.time_ms) == (
        "id",
        "distrl.r.trajectories/2/90",
        1_700_000_000_500,
    )
    assert read_marker(record._replace(headers=())) is None
    assert read_marker(record._replace(value=b"")) is None
