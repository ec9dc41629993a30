"""Objects in a bucket of MinIO or any S3-compatible server, through the ``minio`` client. Made by ``connectors.open_store``.

What the client leaves to its user is done here: content is verified, a put can be conditional, every wait
has an end, and nothing is retried behind the caller's back (``core.runtime.retry`` reads ``retriable``).
"""

from __future__ import annotations

import hashlib
import os
import ssl
import threading
import uuid
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, TypeVar, cast

import urllib3
from minio import Minio
from minio.commonconfig import REPLACE, CopySource
from minio.datatypes import Object
from minio.error import S3Error

from distrl.connectors.blob import (
    BlobReader,
    HashingReader,
    VerifiedStream,
    check_key,
    check_prefix,
    check_reference,
    content_key,
    local_errors,
    reference,
    verified,
)
from distrl.connectors.s3_error import NoBucketError, answer_error, s3_errors
from distrl.core.contracts.store import BlobRef, BlobStat, Leftovers
from distrl.core.errors import (
    BlobExistsError,
    BlobNotFoundError,
    ConfigError,
    InvalidKeyError,
    StoreError,
    StoreUnavailableError,
)

PART_BYTES = 16 << 20
"""Of an upload in parts, which is how anything larger goes; one part is in memory at a time."""
MAX_PARTS = 10_000
SINGLE_PUT_BYTES = 5 << 30
"""Largest object that S3 takes in one request."""
PROBE = "probe-"
"""What the keys of short-lived objects of our own start with, at the bucket's top; older ones are of processes that died."""
CONNECT_SECONDS = 10.0
"""Longest wait for a connection, if the store's timeout is not shorter still."""

Body = bytes | HashingReader
"""What a put sends."""
T = TypeVar("T")


class S3Store(BlobReader):
    """A ``BlobStore`` in one bucket, which is made at the first put if it is missing. Safe for threads."""

    def __init__(
        self,
        endpoint: str,
        *,
        access_key: str,
        secret_key: str,
        bucket: str,
        secure: bool = False,
        ca_file: Path | None = None,
        region: str = "us-east-1",
        timeout_s: float = 30.0,
        part_bytes: int = PART_BYTES,
    ) -> None:
        """``endpoint``: ``host:port``. ``ca_file``: PEM file that TLS certificates are checked with, in place of the machine's own.
        ``timeout_s``: seconds that a request may go without a byte moving; nothing is retried. ``part_bytes``: at least 5 MiB.
        Connects to nothing yet. Raises ``ConfigError`` for what cannot be an endpoint, bucket or certificate file."""
        if ca_file is not None and not ca_file.is_file():
            raise ConfigError(f"store.ca_file: there is no file {ca_file}")
        try:
            if ca_file is not None:
                ssl.create_default_context(cafile=ca_file)
        except OSError as error:
            raise ConfigError(f"store.ca_file: {ca_file} holds no certificate in PEM") from error
        self._endpoint = endpoint
        self._bucket = bucket
        self._region = region
        self._part_bytes = part_bytes
        self._expiry = timedelta(seconds=max(60, round(timeout_s * 4)))
        self._lock = threading.Lock()
        self._conditional = False
        self._http = urllib3.PoolManager(
            timeout=urllib3.Timeout(connect=min(timeout_s, CONNECT_SECONDS), read=timeout_s),
            retries=False,  # also keeps presigned addresses out of the messages of urllib3's errors
            maxsize=16,
            blocksize=1 << 18,
            cert_reqs="CERT_REQUIRED",
            ca_certs=None if ca_file is None else str(ca_file),
        )
        try:
            self._client = Minio(
                endpoint,
                access_key=access_key,
                secret_key=secret_key,
                secure=secure,
                region=region,
                http_client=self._http,
            )
            self._client.get_presigned_url("HEAD", bucket, "key")  # checks the names, sends nothing
        except ValueError as error:
            raise ConfigError(f"store: endpoint {endpoint!r}, bucket {bucket!r}: {error}") from error

    def __repr__(self) -> str:
        return f"S3Store({self._endpoint!r}, bucket={self._bucket!r})"

    @property
    def bucket(self) -> str:
        return self._bucket

    # --- writing ----------------------------------------------------------------------------------

    def put(self, key: str, data: bytes, *, media_type: str, if_absent: bool = False) -> BlobRef:
        check_key(key)
        self._put(key, lambda: data, len(data), media_type, if_absent=if_absent)
        return reference(self._bucket, key, data, media_type)

    def put_content(self, prefix: str, data: bytes, *, media_type: str) -> BlobRef:
        sha256 = hashlib.sha256(data).hexdigest()
        key = content_key(prefix, sha256)
        if not self._renew(key, len(data), media_type):
            self._put(key, lambda: data, len(data), media_type, if_absent=False)
        return BlobRef(self._bucket, key, len(data), sha256, media_type)

    def put_file(self, key: str, path: Path, *, media_type: str, if_absent: bool = False) -> BlobRef:
        check_key(key)
        with local_errors(f"read {path}"):
            file = path.open("rb")
        with file:
            size = os.fstat(file.fileno()).st_size
            reader = HashingReader(file, size)

            def body() -> Body:
                nonlocal reader
                file.seek(0)
                reader = HashingReader(file, size)
                return reader.read() if size <= self._part_bytes else reader

            self._put(key, body, size, media_type, if_absent=if_absent)
        return BlobRef(self._bucket, key, size, reader.sha256, media_type)

    def _put(self, key: str, body: Callable[[], Body], size: int, media_type: str, *, if_absent: bool) -> None:
        """``body`` gives the content anew for each try. Small objects go at once, large ones in parts; there is
        no way to make the latter conditional."""
        if if_absent:
            if size > SINGLE_PUT_BYTES:
                raise StoreError(f"{key}: S3 puts at most {SINGLE_PUT_BYTES} bytes on condition, not {size}")
            self._require_conditional_put()
            if size > self._part_bytes and self._exists(key):  # spares the upload; the server decides all the same
                raise BlobExistsError(f"{key} exists in {self!r}")
        if if_absent or size <= self._part_bytes:
            self._write(key, lambda: self._put_at_once(key, body(), size, media_type, if_absent=if_absent))
        else:
            self._write(key, lambda: self._put_in_parts(key, body(), size, media_type))

    def _put_at_once(self, key: str, data: Body, size: int, media_type: str, *, if_absent: bool) -> None:
        """One presigned PUT, because ``Minio.put_object`` would turn these headers into the object's metadata:
        ``If-None-Match``, and ``Content-MD5``, which servers check where some (SeaweedFS) ignore a signed SHA-256."""
        headers = {"Content-Type": media_type, "Content-Length": str(size)}
        if isinstance(data, bytes):
            headers["Content-MD5"] = b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()
        if if_absent:
            headers["If-None-Match"] = "*"
        address = self._client.get_presigned_url("PUT", self._bucket, key, expires=self._expiry)
        response = self._http.request("PUT", address, body=cast(BinaryIO, data), headers=headers, redirect=False)
        if response.status in (200, 201, 204):
            return
        if response.status == 412:
            raise BlobExistsError(f"{key} exists in {self!r}")
        if response.status == 409 and if_absent:
            raise StoreUnavailableError(f"{key} is being written by somebody else right now; try again")
        raise answer_error(response)

    def _put_in_parts(self, key: str, data: Body, size: int, media_type: str) -> None:
        self._client.put_object(
            self._bucket,
            key,
            cast(BinaryIO, BytesIO(data) if isinstance(data, bytes) else data),
            size,
            content_type=media_type,
            part_size=max(self._part_bytes, -(-size // MAX_PARTS)),
            num_parallel_uploads=1,  # the client's threads would outlive an upload that fails
        )

    def _renew(self, key: str, size: int, media_type: str) -> bool:
        """Whether an object of that size is at ``key``; if so it counts as modified now: it is copied onto itself, which
        leaves its content alone, so that nobody who reads it meanwhile is disturbed."""
        try:
            if self.stat(key).size != size:
                return False
            with s3_errors(self, f"renew {key}"):
                self._client.copy_object(
                    self._bucket,
                    key,
                    CopySource(self._bucket, key),
                    metadata={"Content-Type": media_type},
                    metadata_directive=REPLACE,
                )
        except BlobNotFoundError:
            return False
        return True

    def _require_conditional_put(self) -> None:
        """Find out once that this server does not ignore the condition: then every conditional put would overwrite."""
        with self._lock:
            if self._conditional:
                return
            probe = f"{PROBE}{uuid.uuid4().hex}"

            def put(data: bytes) -> None:
                self._write(probe, lambda: self._put_at_once(probe, data, len(data), "text/plain", if_absent=True))

            put(b"first")
            try:
                put(b"second")
            except BlobExistsError:
                self._conditional = True
            finally:
                self.delete(probe)
            if not self._conditional:
                raise StoreError(
                    f"{self._endpoint} ignores If-None-Match, so it cannot put on condition; use a server that honours it"
                )

    def _write(self, key: str, call: Callable[[], T]) -> T:
        """Make one request that writes; make the bucket if that is all that is missing."""
        action = f"write {key}"
        try:
            with s3_errors(self, action):
                return call()
        except NoBucketError:
            self._make_bucket()
        with s3_errors(self, action):
            return call()

    def _make_bucket(self) -> None:
        with s3_errors(self, f"make bucket {self._bucket}"):
            try:
                self._client.make_bucket(self._bucket, location=self._region)
            except S3Error as error:
                if error.code not in ("BucketAlreadyOwnedByYou", "BucketAlreadyExists"):  # another node was quicker
                    raise

    # --- reading ----------------------------------------------------------------------------------

    def _stream(self, ref: BlobRef) -> VerifiedStream:
        check_reference(ref, self._bucket)
        with s3_errors(self, f"read {ref.key}"):
            response = self._client.get_object(self._bucket, ref.key)
        return verified(_Response(self, ref.key, response), ref)

    def stat(self, key: str) -> BlobStat:
        check_key(key)
        with s3_errors(self, f"look at {key}"):
            return _stat(key, self._client.stat_object(self._bucket, key))

    def _exists(self, key: str) -> bool:
        try:
            self.stat(key)
        except BlobNotFoundError:
            return False
        return True

    def list(self, prefix: str = "") -> Iterator[BlobStat]:
        """In key order, whatever the server's own order: one level of the tree is in memory at a time.
        Objects that somebody else put, under names that are no keys of ours, are left out."""
        yield from self._walk(check_prefix(prefix))

    def _walk(self, prefix: str) -> Iterator[BlobStat]:
        entries: list[tuple[str, BlobStat | None]] = []
        try:
            with s3_errors(self, f"list {prefix}"):
                for found in self._client.list_objects(self._bucket, prefix=prefix):
                    name = found.object_name or ""
                    with suppress(InvalidKeyError):
                        check_key(name.removesuffix("/"))
                        entries.append((name, None if name.endswith("/") else _stat(name, found)))
        except NoBucketError:
            return
        for name, blob in sorted(entries, key=lambda entry: entry[0]):
            if blob is not None:
                yield blob
            elif name != prefix:  # a folder's own marker
                yield from self._walk(name)

    # --- the rest ---------------------------------------------------------------------------------

    def delete(self, key: str) -> None:
        check_key(key)
        try:
            with s3_errors(self, f"remove {key}"):
                self._client.remove_object(self._bucket, key)
        except BlobNotFoundError:
            return

    def delete_older(self, key: str, before_ms: int) -> bool:
        """Without versions in the bucket a renewal can still fall between the two requests, which follow each other at once."""
        check_key(key)
        removed = False
        with suppress(BlobNotFoundError), s3_errors(self, f"remove {key}"):
            while True:
                found = self._client.stat_object(self._bucket, key)
                if _stat(key, found).modified_ms >= before_ms:
                    break
                # Of a version: what was put after the look is another one and stays. An older one may come to light: again.
                self._client.remove_object(self._bucket, key, version_id=found.version_id)
                removed = True
                if found.version_id is None:
                    break
        return removed

    def leftovers(self, prefix: str, before_ms: int, *, remove: bool) -> Leftovers:
        check_prefix(prefix)
        count = size = 0
        for blob in list(self._walk(PROBE)):
            if blob.modified_ms < before_ms:
                count, size = count + 1, size + blob.size
                if remove:
                    self.delete(blob.key)
        for key, upload_id in self._uploads(prefix, before_ms):
            count += 1
            if remove:
                with (
                    suppress(StoreUnavailableError),
                    s3_errors(self, f"abort an upload of {key}"),
                ):  # it ended meanwhile
                    self._client._abort_multipart_upload(self._bucket, key, upload_id)
        return Leftovers(count, size)

    def _uploads(self, prefix: str, before_ms: int) -> Sequence[tuple[str, str]]:
        """Key and id of uploads in parts that were begun before then and have not ended. The client has no public call for it."""
        found: list[tuple[str, str]] = []
        marker: tuple[str | None, str | None] = (None, None)
        try:
            with s3_errors(self, f"list uploads to {prefix}"):
                while True:
                    page = self._client._list_multipart_uploads(
                        self._bucket, prefix=prefix, key_marker=marker[0], upload_id_marker=marker[1]
                    )
                    for upload in page.uploads:
                        begun = upload.initiated_time
                        # Some servers take the prefix for a hint.
                        if upload.object_name.startswith(prefix) and begun and begun.timestamp() * 1000 < before_ms:
                            found.append((upload.object_name, upload.upload_id or ""))
                    following = (page.next_key_marker, page.next_upload_id_marker)
                    if not page.is_truncated or following == marker:
                        return found
                    marker = following
        except NoBucketError:
            return found

    def time_ms(self) -> int:
        probe = f"{PROBE}{uuid.uuid4().hex}"
        self.put(probe, b"", media_type="text/plain")
        try:
            return self.stat(probe).modified_ms
        finally:
            self.delete(probe)

    def ping(self) -> None:
        with s3_errors(self, "ask"):
            exists = self._client.bucket_exists(self._bucket)
        if not exists:
            self._make_bucket()

    def close(self) -> None:
        self._http.clear()


def _stat(key: str, found: Object) -> BlobStat:
    modified = found.last_modified
    return BlobStat(key, found.size or 0, 0 if modified is None else round(modified.timestamp() * 1000))


class _Response:
    """A response's body as the source of a verified stream."""

    def __init__(self, store: S3Store, key: str, response: urllib3.BaseHTTPResponse) -> None:
        self._store = store
        self._key = key
        self._response = response

    def read(self, size: int, /) -> bytes:
        with s3_errors(self._store, f"read {self._key}"):
            return self._response.read(size, decode_content=False)

    def close(self) -> None:
        # Read to its end, the connection serves again; else what is left of the body goes with it.
        if self._response.closed:
            self._response.release_conn()
        else:
            self._response.close()
