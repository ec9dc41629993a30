"""Turns kafka-python's errors into ours. Used wherever this package calls it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kafka import errors

from distrl.core.errors import (
    BusError,
    BusUnavailableError,
    DistrlError,
    FencedError,
    RecordTooLargeError,
    UnknownTopicError,
)

KafkaError: type[Exception] = errors.KafkaError

_FENCED = (
    errors.ProducerFencedError,
    errors.InvalidProducerEpochError,
    errors.FencedInstanceIdError,
    errors.TransactionCoordinatorFencedError,
)
_TOO_LARGE = (errors.MessageSizeTooLargeError, errors.RecordListTooLargeError)
_CREDENTIALS = (
    errors.SaslAuthenticationFailedError,
    errors.UnsupportedSaslMechanismError,
    errors.IllegalSaslStateError,
)
_UNAVAILABLE = (errors.RetriableError, errors.BrokerNotAvailableError, OSError)
_REFUSED = (
    *_TOO_LARGE,
    *_CREDENTIALS,
    errors.AuthorizationError,
    errors.InvalidTopicError,
    errors.InvalidRecordError,
    errors.InvalidTimestampError,
    errors.PolicyViolationError,
    errors.UnsupportedVersionError,
    errors.UnsupportedForMessageFormatError,
)


def refused(error: Exception) -> bool:
    """Whether the broker will refuse the same record again, however often it is sent."""
    return isinstance(error, _REFUSED)


def translate(error: Exception, doing: str, brokers: str) -> DistrlError:
    """Our error for one of kafka-python's. ``doing`` starts the message, ``brokers`` is ``host:port,...``."""
    if isinstance(error, _FENCED):
        return FencedError(f"{doing}: another holder took over; this one must stop")
    if isinstance(error, _TOO_LARGE):
        return RecordTooLargeError(
            f"{doing}: the broker finds the record too large; put large artefacts into the store"
        )
    if isinstance(error, _CREDENTIALS):
        return BusError(
            f"{doing}: {brokers} refused the credentials ({_text(error)}); check bus.sasl_mechanism, bus.username and "
            "the environment variable DISTRL_BUS__PASSWORD"
        )
    if isinstance(error, errors.AuthorizationError):
        return BusError(f"{doing}: the broker does not allow it ({_text(error)}); ask for the right to do so")
    if isinstance(error, errors.UnknownTopicOrPartitionError):
        return UnknownTopicError(f"{doing}: no such topic; make it with `distrl topics apply`")
    if isinstance(error, errors.InvalidSessionTimeoutError):
        return BusError(
            f"{doing}: the broker refuses the length of the session; set bus.session_seconds between its "
            "group.min.session.timeout.ms and group.max.session.timeout.ms"
        )
    if isinstance(error, _UNAVAILABLE):
        return BusUnavailableError(
            f"{doing}: no answer from the Kafka brokers {brokers} ({_text(error)}); check that they run, that bus.bootstrap "
            "names them and that bus.security_protocol is theirs"
        )
    return BusError(f"{doing}: {_text(error)}")


@contextmanager
def translated(doing: str, brokers: str) -> Iterator[None]:
    """Translate what is raised inside."""
    try:
        yield
    except (KafkaError, OSError) as error:
        raise translate(error, doing, brokers) from error


def _text(error: Any) -> str:
    detail = str(error)[:200]  # some quote the whole request
    name = type(error).__name__
    return detail if name in detail else f"{name}: {detail}" if detail else name
