"""Turns kafka-python's errors into ours. Used wherever this package calls it."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from kafka import errors

from distrl.core.errors import (
    BusAuthorizationError,
    BusCredentialsError,
    BusError,
    BusUnavailableError,
    DistrlError,
    FencedError,
    MissingPackageError,
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


def most_telling(failures: Sequence[Exception]) -> Exception:
    """Of why each broker could not be used, what a person must hear: a refusal rather than silence, else the last."""
    telling = [error for error in failures if isinstance(error, _CREDENTIALS) or _tls(error) is not None]
    return (telling or failures)[-1]


def refused(error: Exception) -> bool:
    """Whether the broker will refuse the same record again, however often it is sent."""
    return isinstance(error, _REFUSED)


def translate(error: Exception, doing: str, brokers: str) -> DistrlError:
    """Our error for one of kafka-python's. ``doing`` starts the message, ``brokers`` is ``host:port,...``."""
    tls = _tls(error)
    if tls is not None:
        return _translate_tls(tls, doing, brokers)
    if isinstance(error, _FENCED):
        return FencedError(f"{doing}: another holder took over; this one must stop")
    if isinstance(error, errors.UnsupportedCodecError):
        return MissingPackageError(
            f"{doing}: a batch is compressed with what cannot be read here ({_text(error)}); pip install distrl[lz4] for lz4, "
            "python-snappy for snappy"
        )
    if isinstance(error, _TOO_LARGE):
        return RecordTooLargeError(
            f"{doing}: the broker finds the record too large; put large artefacts into the store"
        )
    if isinstance(error, _CREDENTIALS):
        return BusCredentialsError(
            f"{doing}: the Kafka brokers {brokers} refused the login ({_said(error)}); check bus.sasl_mechanism, "
            "bus.username and the environment variable DISTRL_BUS__PASSWORD"
        )
    if isinstance(error, errors.AuthorizationError):
        return BusAuthorizationError(
            f"{doing}: the brokers do not allow it ({type(error).__name__}{_named(error)}); `distrl topics acls` prints "
            "the rights that each role needs"
        )
    if isinstance(error, errors.UnknownTopicOrPartitionError):
        return UnknownTopicError(f"{doing}: no such topic; make it with `distrl topics apply`")
    if isinstance(error, errors.InvalidSessionTimeoutError):
        return BusError(
            f"{doing}: the broker refuses the length of the session; set bus.session_seconds between its "
            "group.min.session.timeout.ms and group.max.session.timeout.ms"
        )
    if isinstance(error, errors.InvalidReceiveError):
        return BusUnavailableError(
            f"{doing}: the Kafka brokers {brokers} answer in another protocol, TLS perhaps; check bus.bootstrap and "
            "bus.security_protocol"
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


def _tls(error: BaseException | None) -> ssl.SSLError | None:
    """The error of TLS behind one of kafka-python's, which says so in a sentence alone."""
    while error is not None:
        for candidate in (error, *error.args):
            if isinstance(candidate, ssl.SSLError):
                return candidate
        error = error.__cause__ or error.__context__
    return None


def _translate_tls(error: ssl.SSLError, doing: str, brokers: str) -> DistrlError:
    if isinstance(error, ssl.SSLCertVerificationError):
        return BusCredentialsError(
            f"{doing}: the certificate of the Kafka brokers {brokers} cannot be trusted ({error.verify_message.rstrip('.')}); "
            "check that bus.ca_file is the authority that signed it and that it was issued for the hosts of bus.bootstrap"
        )
    reason = error.reason or str(error)
    if "ALERT" in reason:
        return BusCredentialsError(
            f"{doing}: the Kafka brokers {brokers} refused the certificate of this client, or that it has none ({reason}); "
            "check bus.cert_file and bus.key_file"
        )
    return BusUnavailableError(
        f"{doing}: the Kafka brokers {brokers} do not speak TLS, or stopped ({reason}); check bus.bootstrap and "
        "bus.security_protocol"
    )


def _named(error: Exception) -> str:
    """Of which topics kafka-python says it, if it does."""
    names = error.args[0] if error.args else None
    return f": {', '.join(sorted(map(str, names)))}" if isinstance(names, set | frozenset | list | tuple) else ""


def _said(error: Exception) -> str:
    """A broker's own words, or what kafka-python calls the error."""
    return str(error.args[0]).rpartition("Error: ")[2][:200] if error.args else type(error).__name__


def _text(error: Any) -> str:
    detail = str(error)[:200]  # some quote the whole request
    name = type(error).__name__
    return detail if name in detail else f"{name}: {detail}" if detail else name
