"""What an S3 server or the way to it says, as our errors. Used by ``connectors.s3`` alone.

Messages name the endpoint and the server's code, never an address with a signature, a key or a body.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from ssl import SSLCertVerificationError
from xml.etree.ElementTree import ParseError

from minio import time as minio_time
from minio.error import InvalidResponseError, MinioException, S3Error, ServerError
from urllib3 import BaseHTTPResponse
from urllib3.exceptions import HTTPError, SSLError

from distrl.core.errors import (
    BlobExistsError,
    BlobNotFoundError,
    InvalidKeyError,
    StoreCredentialsError,
    StoreError,
    StoreFullError,
    StoreUnavailableError,
)

_CODES: dict[str, type[StoreError]] = {
    "NoSuchKey": BlobNotFoundError,
    "NoSuchVersion": BlobNotFoundError,
    "PreconditionFailed": BlobExistsError,
    "KeyTooLongError": InvalidKeyError,
    "XMinioInvalidObjectName": InvalidKeyError,
    "XMinioStorageFull": StoreFullError,
    "XMinioAdminBucketQuotaExceeded": StoreFullError,
    "QuotaExceeded": StoreFullError,
    "InsufficientStorage": StoreFullError,
    "BadDigest": StoreUnavailableError,
    "XAmzContentSHA256Mismatch": StoreUnavailableError,
    "IncompleteBody": StoreUnavailableError,
    "RequestTimeout": StoreUnavailableError,
    "SlowDown": StoreUnavailableError,
    "SlowDownRead": StoreUnavailableError,
    "SlowDownWrite": StoreUnavailableError,
    "OperationAborted": StoreUnavailableError,
    "NoSuchUpload": StoreUnavailableError,
    "AccessDenied": StoreCredentialsError,
    "InvalidAccessKeyId": StoreCredentialsError,
    "SignatureDoesNotMatch": StoreCredentialsError,
    "ExpiredToken": StoreCredentialsError,
    "InvalidToken": StoreCredentialsError,
    "RequestTimeTooSkewed": StoreCredentialsError,
    "AuthorizationHeaderMalformed": StoreCredentialsError,
}
"""Damage on the way and an upload that the server has forgotten are gone at the next try."""
SKEW_S = 60.0
"""Clocks that differ by more than this may be why a signature is refused; servers bear up to 15 minutes, less where it is about to expire."""


class NoBucketError(BlobNotFoundError):
    """The bucket itself is missing: a put makes it, a read finds nothing."""


@contextmanager
def s3_errors(store: object, action: str) -> Iterator[None]:
    """Translate what is raised while ``action`` (a verb and its object) is tried on ``store``."""
    try:
        yield
    except S3Error as error:
        raise _of_code(store, action, error) from error
    except ServerError as error:
        raise _of_status(store, action, error.status_code) from error
    except InvalidResponseError as error:
        raise _of_status(store, action, error._code) from error
    except SSLError as error:
        untrusted = _untrusted(error)
        if untrusted is not None:
            raise StoreCredentialsError(
                f"cannot {action}: the certificate of {store} cannot be trusted ({untrusted}); check that store.ca_file is "
                "the authority that signed it and that it was issued for the host of store.endpoint"
            ) from error
        raise StoreError(
            f"cannot {action}: TLS with {store} failed ({error}); see store.secure and store.ca_file"
        ) from error
    except (HTTPError, OSError) as error:
        raise StoreUnavailableError(f"cannot {action}: {store} cannot be reached: {error}") from error
    except (MinioException, ParseError, ValueError) as error:
        raise StoreError(f"cannot {action}: {store} does not answer as an S3 server does: {error}") from error


def _untrusted(error: BaseException | None) -> str | None:
    """Why a certificate does not verify; ``None`` if TLS failed otherwise."""
    while error is not None:
        for candidate in (error, *error.args):
            if isinstance(candidate, SSLCertVerificationError):
                return candidate.verify_message.rstrip(".")
        error = error.__cause__ or error.__context__
    return None


def answer_error(response: BaseHTTPResponse) -> MinioException:
    """What the client would raise for an answer to a presigned request."""
    try:
        return S3Error.fromxml(response)
    except (ParseError, ValueError):
        return InvalidResponseError(response.status, response.headers.get("Content-Type"), None)


def _of_code(store: object, action: str, error: S3Error) -> StoreError:
    code = error.code or "unknown"
    text = f"cannot {action}: {store} says {code}: {(error.message or '')[:200]}"
    if code == "NoSuchBucket":
        return NoBucketError(text)
    kind = _CODES.get(code)
    if kind is StoreCredentialsError and abs(skew := _skew_s(error.response)) > SKEW_S:
        # Not the credentials' fault, whatever the code (an answer to HEAD has room for none): a machine whose clock was set is
        # to wait until it is set right, not to give up.
        return StoreUnavailableError(
            f"{text}; this machine's clock is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the store's: set it right"
        )
    if kind is None:
        return _of_status(store, f"{action} ({code})", error.response.status)
    if kind is StoreCredentialsError:
        text += "; see store.access_key and store.secret_key"
    return kind(text)


def _skew_s(response: BaseHTTPResponse) -> float:
    """By how many seconds the clock that signs is ahead of the server's; 0 if the server tells no time."""
    try:
        then = parsedate_to_datetime(response.headers["Date"])
    except (KeyError, TypeError, ValueError):
        return 0.0
    return (minio_time.utcnow() - then).total_seconds()


def _of_status(store: object, action: str, status: int) -> StoreError:
    text = f"cannot {action}: {store} answers with HTTP status {status}"
    if status == 507:
        return StoreFullError(text)
    if status >= 500 or status in (408, 425, 429):
        return StoreUnavailableError(text)
    if status in (401, 403):
        return StoreCredentialsError(f"{text}; see store.access_key and store.secret_key")
    if status == 400:
        text += "; it may want TLS (store.secure), or be no S3 server"
    return StoreError(text)
