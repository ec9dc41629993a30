"""What both object stores share: keys that stay inside, bytes that are verified, files that appear whole.

Used by ``connectors.folder`` and ``connectors.s3``; ``core.runtime.blob`` uses ``verify`` for what rides inside events.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import re
import shutil
import uuid
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Protocol, Self, cast

from distrl.core.contracts.store import BlobRef
from distrl.core.errors import BlobCorruptError, InvalidKeyError, StoreError, StoreFullError, StoreUnavailableError

KEY_BYTES = 1024
"""Longest key, in UTF-8: the limit of S3."""
PART_BYTES = 255
"""Longest part of a key between two slashes, in UTF-8: the limit of file names."""
CHUNK_BYTES = 1 << 20
"""What streams move at a time."""

_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f\\\ud800-\udfff\ufffe\uffff]")
"""Control characters and non-characters (no XML listing carries them), half surrogates (no UTF-8), the backslash (a separator elsewhere)."""
_FULL = {errno.ENOSPC, errno.EDQUOT}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}
_MISPLACED = {errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP}


def check_key(key: str) -> str:
    """Return ``key`` if it names an object and cannot leave its bucket; raise ``InvalidKeyError`` if not."""
    _check_characters(key)
    _check_parts(key, key.split("/"))
    return key


def check_prefix(prefix: str) -> str:
    """Return ``prefix`` if keys can start with it: empty, whole parts, or whole parts and the start of another."""
    _check_characters(prefix)
    _check_parts(prefix, prefix.split("/")[:-1])
    return prefix


def content_key(prefix: str, sha256: str) -> str:
    """The key of content-addressed bytes; a slash at the end of ``prefix`` is allowed."""
    return check_key(f"{prefix.removesuffix('/')}/{sha256}")


def check_reference(ref: BlobRef, bucket: str) -> BlobRef:
    """Return ``ref`` if it is one of ``bucket``'s objects; raise ``InvalidKeyError`` if not."""
    if ref.bucket != bucket:
        raise InvalidKeyError(f"the reference is to bucket {ref.bucket!r}, this store holds {bucket!r}: {ref.key!r}")
    check_key(ref.key)
    return ref


def reference(bucket: str, key: str, data: bytes, media_type: str) -> BlobRef:
    """The reference to ``data`` at ``key``."""
    return BlobRef(bucket, key, len(data), hashlib.sha256(data).hexdigest(), media_type)


def verify(data: bytes, *, size: int, sha256: str, name: str) -> bytes:
    """Return ``data`` if it is what was promised; raise ``BlobCorruptError`` if not."""
    if len(data) != size:
        raise BlobCorruptError(f"{name}: {len(data)} bytes where {size} were promised")
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise BlobCorruptError(f"{name}: SHA-256 is {found} where {sha256} was promised")
    return data


class Source(Protocol):
    """Where a verified stream reads from; its errors are ``StoreError`` already."""

    def read(self, size: int, /) -> bytes:
        """The next bytes, at most ``size``; none at the end."""

    def close(self) -> None: ...


class VerifiedStream(io.RawIOBase):
    """The bytes of one object. The read that would deliver the last byte raises ``BlobCorruptError`` instead if
    size or SHA-256 are not as promised, so no reader ever holds all of a corrupt object. Once failed, it stays so."""

    def __init__(self, source: Source, ref: BlobRef) -> None:
        super().__init__()
        self._source = source
        self._ref = ref
        self._left = ref.size
        self._digest = hashlib.sha256()
        self._error: StoreError | None = None
        if ref.size == 0:
            self._finish()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def read(self, size: int = -1) -> bytes:
        """As they came from the source: who takes chunks in turn spares a copy of each."""
        if self._error is not None:
            raise self._error
        if size < 0:
            return self.readall()
        size = min(size, self._left)
        try:
            return self._advance(size) if size else b""
        except StoreError as error:
            self._error = error
            raise

    def _advance(self, size: int) -> bytes:
        data = self._source.read(size)
        if not data:
            read = self._ref.size - self._left
            raise BlobCorruptError(f"{self._ref.key}: ends after {read} bytes where {self._ref.size} were promised")
        self._digest.update(data)
        self._left -= len(data)
        if self._left == 0:
            self._finish()
        return data

    def _finish(self) -> None:
        if self._source.read(1):
            raise BlobCorruptError(f"{self._ref.key}: longer than the {self._ref.size} bytes that were promised")
        found = self._digest.hexdigest()
        if found != self._ref.sha256:
            raise BlobCorruptError(f"{self._ref.key}: SHA-256 is {found} where {self._ref.sha256} was promised")

    def close(self) -> None:
        if not self.closed:
            self._source.close()
        super().close()


class HashingReader:
    """Reads ``size`` bytes of an open file for an upload, hashing them on the way: the file's state at that moment counts."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._left = size
        self._digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        with local_errors(f"read {self._file.name}"):
            data = self._file.read(self._left if size < 0 else min(size, self._left))
        if not data and self._left and size:
            raise StoreError(f"{self._file.name} shrank while it was being stored")
        self._left -= len(data)
        self._digest.update(data)
        return data

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()


class BlobReader:
    """All reads of an object; base of both stores."""

    @abstractmethod
    def _stream(self, ref: BlobRef) -> VerifiedStream:
        """The object's bytes, from a ``verified`` source."""

    def open(self, ref: BlobRef) -> BinaryIO:
        return cast(BinaryIO, io.BufferedReader(self._stream(ref), CHUNK_BYTES))

    def get(self, ref: BlobRef) -> bytes:
        with self._stream(ref) as stream, io.BytesIO() as data:
            shutil.copyfileobj(stream, data, CHUNK_BYTES)  # not by its size: an event may claim one beyond all memory
            return data.getvalue()

    def get_file(self, ref: BlobRef, path: Path) -> None:
        with self._stream(ref) as stream, local_errors(f"write {path}"):
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_name(f".{uuid.uuid4().hex}.part")
            with temporary_file(temporary) as file:
                shutil.copyfileobj(stream, file, CHUNK_BYTES)
                file.close()
                os.replace(temporary, path)

    def close(self) -> None:
        """Nothing to release unless a store says otherwise."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


@contextmanager
def temporary_file(path: Path) -> Iterator[BinaryIO]:
    """A new file to fill, close and move to its place inside the block; gone after it, whatever happened."""
    try:
        with path.open("xb") as file:
            yield file
    finally:
        with suppress(FileNotFoundError):
            path.unlink()


def verified(source: Source, ref: BlobRef) -> VerifiedStream:
    """``source`` as a stream that verifies; takes the source over, also when this raises."""
    try:
        return VerifiedStream(source, ref)
    except BaseException:
        source.close()
        raise


@contextmanager
def local_errors(action: str, *, misplaced: type[StoreError] = StoreError) -> Iterator[None]:
    """Translate what the file system says while ``action`` (a verb and its object) is tried; ``misplaced`` is for a
    file where a folder is needed or the reverse, a link, a name too long."""
    try:
        yield
    except OSError as error:
        text = f"cannot {action}: {error.strerror or error}"
        if error.errno in _FULL:
            raise StoreFullError(f"{text}; make space on the disk") from error
        if error.errno in _DENIED:
            raise StoreError(f"{text}; check the owner and permissions") from error
        if error.errno in _MISPLACED:
            raise misplaced(text) from error
        if error.errno == errno.ENOENT:
            raise StoreError(text) from error
        raise StoreUnavailableError(text) from error


def _check_characters(key: str) -> None:
    if _FORBIDDEN.search(key):
        raise InvalidKeyError(f"key {key[:80]!r} holds a backslash or a control character")
    if len(key.encode()) > KEY_BYTES:
        raise InvalidKeyError(f"key {key[:40]!r}… is longer than {KEY_BYTES} bytes")


def _check_parts(key: str, parts: list[str]) -> None:
    for part in parts:
        if part in ("", ".", ".."):
            raise InvalidKeyError(f"key {key[:80]!r}: a key is relative, with no empty, '.' or '..' part")
        if len(part.encode()) > PART_BYTES:
            raise InvalidKeyError(f"key {key[:40]!r}… has a part of more than {PART_BYTES} bytes")
