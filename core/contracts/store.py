"""The store contract: large artefacts by key. Implemented by ``connectors.folder`` and ``connectors.s3``.

The claim check: an object is put first, then the event that refers to it is sent; every read verifies the
size and SHA-256 that the reference promises. A reference is all a reader may trust.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol, Self


@dataclass(frozen=True, slots=True)
class BlobRef:
    """A claim check: where an object lies and what it must be."""

    bucket: str
    key: str
    size: int
    """Bytes."""
    sha256: str
    """64 lower-case hexadecimal digits."""
    media_type: str


@dataclass(frozen=True, slots=True)
class BlobStat:
    """What the store says about an object."""

    key: str
    size: int
    modified_ms: int
    """Milliseconds since the epoch by the store's own clock; a put that finds its object already there renews it."""


@dataclass(frozen=True, slots=True)
class Leftovers:
    """What writers that died have left behind, and no key names: unfinished uploads, temporary files."""

    count: int
    size: int
    """Bytes; 0 where the store does not tell."""


class BlobStore(Protocol):
    """Objects in one bucket (or folder). Safe for use by several threads.

    Keys are relative, ``/``-separated, without ``.`` or ``..`` parts; others raise ``InvalidKeyError``.
    """

    @property
    def bucket(self) -> str: ...

    def put(self, key: str, data: bytes, *, media_type: str, if_absent: bool = False) -> BlobRef:
        """Store ``data``, whole or not at all. With ``if_absent`` an existing key raises ``BlobExistsError``."""

    def put_content(self, prefix: str, data: bytes, *, media_type: str) -> BlobRef:
        """Store ``data`` under ``prefix/<sha256>``: the same bytes are stored once, and a put that finds
        them already there renews their modification time, so a collector of garbage leaves them."""

    def put_file(self, key: str, path: Path, *, media_type: str, if_absent: bool = False) -> BlobRef:
        """Store a file by streaming it; memory use does not grow with its size."""

    def get(self, ref: BlobRef) -> bytes:
        """The object's bytes, verified; raises ``BlobCorruptError`` or ``BlobNotFoundError``."""

    def get_file(self, ref: BlobRef, path: Path) -> None:
        """Stream the object to ``path``; the file appears only once it is verified."""

    def open(self, ref: BlobRef) -> BinaryIO:
        """The object as a stream. The read that reaches the end raises ``BlobCorruptError`` on a mismatch:
        whoever acts on the bytes before the end acts unverified."""

    def stat(self, key: str) -> BlobStat:
        """Raises ``BlobNotFoundError``."""

    def list(self, prefix: str = "") -> Iterator[BlobStat]:
        """Every object whose key starts with ``prefix``, in key order."""

    def delete(self, key: str) -> None:
        """Remove an object; an unknown key is ignored."""

    def delete_older(self, key: str, before_ms: int) -> bool:
        """Remove an object unless it was put or renewed at ``before_ms`` (the store's clock) or later; return whether it was
        removed. On a folder, and in an S3 bucket with versions, no put or renewal can fall between the look and the removal."""

    def leftovers(self, prefix: str, before_ms: int, *, remove: bool) -> Leftovers:
        """What was left unfinished before ``before_ms`` (the store's clock) by puts of keys below ``prefix``, where the store
        can tell whose it is; with ``remove`` it goes."""

    def time_ms(self) -> int:
        """The store's own clock, which ages of objects are told by: no other machine's need agree with it."""

    def ping(self) -> None:
        """Return if the store answers and the bucket is usable; raise a ``StoreError`` if not."""

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc: object) -> None: ...
