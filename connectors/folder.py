"""Objects as files below a folder: the store of one machine, or of several over a shared file system.

An object lies at ``<path>/<bucket>/<key>``. It is written under ``<path>/.tmp`` and moved into place, so a reader sees
all of it or none, whenever the writer dies. It outlives the writer's crash; with ``synchronous`` a power loss too.
Made by ``connectors.open_store``.
"""

from __future__ import annotations

import fcntl
import io
import os
import re
import shutil
import stat
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from distrl.connectors.blob import (
    CHUNK_BYTES,
    BlobReader,
    HashingReader,
    VerifiedStream,
    check_key,
    check_prefix,
    check_reference,
    content_key,
    local_errors,
    reference,
    temporary_file,
    verified,
)
from distrl.core.contracts.store import BlobRef, BlobStat, Leftovers
from distrl.core.errors import BlobExistsError, BlobNotFoundError, InvalidKeyError, StoreUnavailableError

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{2,62}")
_TEMPORARY = ".tmp"
_LOCK = ".lock"
"""No bucket's name starts with a dot."""
_ABANDONED_SECONDS = 3600.0
"""A temporary file that nobody has written to for this long has no writer any more."""
_ATTEMPTS = 100
"""How often a put makes its folder again when deletions keep removing it."""


class FolderStore(BlobReader):
    """A ``BlobStore`` in a folder, which is made at the first put. Safe for threads and for several processes."""

    def __init__(self, path: Path, bucket: str = "distrl", *, synchronous: bool = False) -> None:
        """``synchronous``: force every object to the disk before its put returns. Raises ``InvalidKeyError`` for a
        bucket that is no name of a bucket."""
        if not _BUCKET.fullmatch(bucket):
            raise InvalidKeyError(f"bucket {bucket!r}: use 3 to 63 lower-case letters, digits, '-' and '.'")
        self._bucket = bucket
        self._root = Path(os.path.realpath(path)) / bucket
        self._temporary = self._root.parent / _TEMPORARY
        self._synchronous = synchronous
        self._swept = False
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"FolderStore({str(self._root.parent)!r}, bucket={self._bucket!r})"

    @property
    def bucket(self) -> str:
        return self._bucket

    # --- writing ----------------------------------------------------------------------------------

    def put(self, key: str, data: bytes, *, media_type: str, if_absent: bool = False) -> BlobRef:
        self._write(key, lambda file: file.write(data), if_absent=if_absent)
        return reference(self._bucket, key, data, media_type)

    def put_content(self, prefix: str, data: bytes, *, media_type: str) -> BlobRef:
        ref = reference(self._bucket, "", data, media_type)
        key = content_key(prefix, ref.sha256)
        path = self._path(key)
        with local_errors(f"write {path}"), self._locked(fcntl.LOCK_SH):
            try:
                known = stat.S_ISREG((found := path.lstat()).st_mode) and found.st_size == len(data)
                if known:
                    os.utime(path)
            except (FileNotFoundError, NotADirectoryError):  # new, or removed between the two calls
                known = False
        if not known:
            self._write(key, lambda file: file.write(data), if_absent=False)
        return BlobRef(self._bucket, key, ref.size, ref.sha256, media_type)

    def put_file(self, key: str, path: Path, *, media_type: str, if_absent: bool = False) -> BlobRef:
        with local_errors(f"read {path}"):
            source = path.open("rb")
        with source:
            size = os.fstat(source.fileno()).st_size
            reader = HashingReader(source, size)
            self._write(key, lambda file: shutil.copyfileobj(reader, file, CHUNK_BYTES), if_absent=if_absent)
        return BlobRef(self._bucket, key, size, reader.sha256, media_type)

    def _write(self, key: str, fill: Callable[[BinaryIO], object], *, if_absent: bool) -> None:
        target = self._path(key)
        with local_errors(f"write {target}", misplaced=InvalidKeyError):
            if if_absent and target.exists():
                raise BlobExistsError(f"{key} exists")
            self._temporary.mkdir(parents=True, exist_ok=True)
            with temporary_file(self._temporary / uuid.uuid4().hex) as file:
                self._sweep(os.fstat(file.fileno()).st_mtime)
                fill(file)
                file.flush()
                if self._synchronous:
                    os.fsync(file.fileno())
                file.close()
                self._publish(Path(file.name), target, if_absent=if_absent)

    def _publish(self, temporary: Path, target: Path, *, if_absent: bool) -> None:
        for _ in range(_ATTEMPTS):
            # FileNotFoundError, and FileExistsError of a folder that is gone now: a delete removed it, empty, in this moment.
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
            except FileExistsError as error:
                if os.path.lexists(target.parent) and not target.parent.is_dir():
                    raise InvalidKeyError(f"{target.parent} is an object: it cannot also be a folder") from error
                continue
            except FileNotFoundError:
                continue
            try:
                with self._locked(fcntl.LOCK_SH):
                    if if_absent:
                        os.link(temporary, target)  # unlike a rename it fails if the name is taken, in one step
                    else:
                        os.replace(temporary, target)
            except FileExistsError as error:
                if target.is_dir():
                    raise InvalidKeyError(f"{target} is a folder of objects: it cannot also be one") from error
                raise BlobExistsError(f"{target} exists") from error
            except FileNotFoundError:
                continue
            break
        else:
            raise StoreUnavailableError(f"{target.parent} is removed as often as it is made")
        if self._synchronous:
            descriptor = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def _sweep(self, now: float) -> None:
        """Once, with the file system's own ``now``: remove what writers that died have left behind."""
        with self._lock:
            if self._swept:
                return
            self._swept = True
        for entry in os.scandir(self._temporary):
            with suppress(OSError):
                if now - entry.stat(follow_symlinks=False).st_mtime > _ABANDONED_SECONDS:
                    os.unlink(entry.path)

    # --- reading ----------------------------------------------------------------------------------

    def _stream(self, ref: BlobRef) -> VerifiedStream:
        path = self._path(check_reference(ref, self._bucket).key)
        with local_errors(f"read {path}", misplaced=InvalidKeyError):
            try:
                file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb", buffering=0)
            except (FileNotFoundError, NotADirectoryError) as error:
                raise BlobNotFoundError(f"no object {ref.key} in {self!r}") from error
            except IsADirectoryError as error:
                raise BlobNotFoundError(f"{ref.key} is a folder of objects in {self!r}") from error
        return verified(_File(file, path), ref)

    def stat(self, key: str) -> BlobStat:
        path = self._path(key)
        with local_errors(f"look at {path}"):
            try:
                found = path.lstat()
            except (FileNotFoundError, NotADirectoryError) as error:
                raise BlobNotFoundError(f"no object {key} in {self!r}") from error
        if not stat.S_ISREG(found.st_mode):
            raise BlobNotFoundError(f"{key} is no object in {self!r}")
        return BlobStat(key, found.st_size, found.st_mtime_ns // 1_000_000)

    def list(self, prefix: str = "") -> Iterator[BlobStat]:
        folder, _, _ = check_prefix(prefix).rpartition("/")
        self._inside(self._root / folder)
        yield from self._walk(f"{folder}/" if folder else "", prefix)

    def _walk(self, folder: str, prefix: str) -> Iterator[BlobStat]:
        with local_errors(f"list {folder}"):
            try:
                with os.scandir(self._root / folder) as entries:
                    names = [entry.name + "/" * entry.is_dir(follow_symlinks=False) for entry in entries]
            except (FileNotFoundError, NotADirectoryError):
                return
        for name in sorted(names):  # with the slash of a folder, so that keys come out in order
            key = folder + name
            if not key.startswith(prefix):
                continue
            if name.endswith("/"):
                yield from self._walk(key, prefix)
                continue
            with suppress(BlobNotFoundError, InvalidKeyError):  # removed meanwhile, or not one of ours
                yield self.stat(key)

    # --- the rest ---------------------------------------------------------------------------------

    def delete(self, key: str) -> None:
        path = self._path(key)
        with local_errors(f"remove {path}"):
            if path.is_dir():
                return
            with suppress(FileNotFoundError, NotADirectoryError):
                path.unlink()
        for parent in path.parents:
            if parent == self._root:
                break
            try:
                parent.rmdir()
            except OSError:  # not empty, or gone already
                break

    def delete_older(self, key: str, before_ms: int) -> bool:
        path = self._path(key)
        with local_errors(f"remove {path}"), self._locked(fcntl.LOCK_EX):  # no renewal between the look and the removal
            try:
                if self.stat(key).modified_ms >= before_ms:
                    return False
            except BlobNotFoundError:
                return False
            self.delete(key)
        return True

    def leftovers(self, prefix: str, before_ms: int, *, remove: bool) -> Leftovers:
        """Temporary files have no key: those of every run are told of."""
        count = size = 0
        with local_errors(f"look at {self._temporary}"), suppress(FileNotFoundError):
            for entry in os.scandir(self._temporary):
                with suppress(FileNotFoundError):
                    found = entry.stat(follow_symlinks=False)
                    if found.st_mtime_ns // 1_000_000 < before_ms:
                        if remove:
                            os.unlink(entry.path)
                        count += 1
                        size += found.st_size
        return Leftovers(count, size)

    def time_ms(self) -> int:
        with local_errors(f"write to {self._root.parent}"):
            self._temporary.mkdir(parents=True, exist_ok=True)
            with temporary_file(self._temporary / uuid.uuid4().hex) as file:
                return os.fstat(file.fileno()).st_mtime_ns // 1_000_000

    @contextmanager
    def _locked(self, kind: int) -> Iterator[None]:
        """Hold the store's lock: shared by those who put and renew, alone by who removes what is old. A process that dies lets go."""
        self._root.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._root.parent / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, kind)
            yield
        finally:
            os.close(descriptor)

    def ping(self) -> None:
        with local_errors(f"write to {self._root}"):
            self._root.mkdir(parents=True, exist_ok=True)
            self._temporary.mkdir(parents=True, exist_ok=True)
            with temporary_file(self._temporary / uuid.uuid4().hex) as file:
                file.write(b"ping")

    def _path(self, key: str) -> Path:
        """Where ``key`` lies."""
        path = self._root / check_key(key)
        self._inside(path.parent)
        return path

    def _inside(self, folder: Path) -> None:
        """Raise ``InvalidKeyError`` if a link somewhere below the bucket leads out of it."""
        real = os.path.realpath(folder)
        if real != str(self._root) and not real.startswith(f"{self._root}{os.sep}"):
            raise InvalidKeyError(f"{folder} leads out of {self._root} through a link")


class _File:
    """An open file as the source of a verified stream."""

    def __init__(self, file: io.FileIO, path: Path) -> None:
        self._file = file
        self._path = path

    def read(self, size: int, /) -> bytes:
        with local_errors(f"read {self._path}"):
            return self._file.read(size) or b""

    def close(self) -> None:
        self._file.close()
