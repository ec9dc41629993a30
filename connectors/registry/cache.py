"""What a registry has answered, in memory and in a file. Used by ``connectors.registry.confluent``.

An id never changes its meaning, so nothing here ever gets old. The file lets a node start again while the registry is away;
it counts for one registry's address only, and one that is not as it should be counts for nothing.
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import structlog
from fastavro import parse_schema
from fastavro.schema import SchemaParseException, UnknownType

log = structlog.get_logger(__name__)
_NO_SCHEMA = (SchemaParseException, UnknownType)
Definition = Mapping[str, Any]
"""A schema as JSON."""


class AnswerCache:
    """Safe for use by several threads, and its file by several processes."""

    def __init__(self, file: Path | None, url: str) -> None:
        self._file = file
        self._url = url
        self._lock = threading.Lock()
        self._schemas: dict[str, Definition] = {}
        self._subjects: dict[str, list[str]] = {}
        self._take(*self._read())

    def schema(self, key: str) -> Definition | None:
        """The schema of an id (or GUID) in text."""
        with self._lock:
            return self._schemas.get(key)

    def id_of(self, subject: str, text: str) -> int | None:
        """The id under which ``subject`` has this very schema."""
        definition = json.loads(text)
        with self._lock:
            for key in self._subjects.get(subject, ()):
                if self._schemas.get(key) == definition:
                    return int(key)
        return None

    def keep(self, key: str, definition: Definition, *, subject: str | None = None) -> None:
        """Remember an answer. Not being able to write the file is no failure: it is read again from the registry."""
        with self._lock:
            self._take({key: definition}, {} if subject is None else {subject: [key]})
            if self._file is None or not self._file.parent.is_dir():
                return
            try:
                with _held(self._file.with_suffix(".lock")):
                    schemas, subjects = self._read()
                    # What this process knows goes over what the file has.
                    mine, my_subjects = dict(self._schemas), dict(self._subjects)
                    self._take(schemas, subjects)
                    self._take(mine, my_subjects)
                    self._write(self._file)
            except OSError as error:
                log.warning("answers of the registry are not kept", file=str(self._file), error=str(error))

    def _take(self, schemas: Mapping[str, Definition], subjects: Mapping[str, list[str]]) -> None:
        self._schemas.update(schemas)
        for subject, keys in subjects.items():
            self._subjects[subject] = list(dict.fromkeys([*self._subjects.get(subject, ()), *keys]))

    def _read(self) -> tuple[dict[str, Definition], dict[str, list[str]]]:
        """What the file holds for this registry; nothing if it is another's, missing, or malformed."""
        if self._file is None:
            return {}, {}
        try:
            content = json.loads(self._file.read_bytes())
            if content["url"] != self._url:
                return {}, {}
            schemas, subjects = content["schemas"], content["subjects"]
            for key, definition in schemas.items():
                if definition != self._schemas.get(key):
                    _require(isinstance(definition, dict))
                    parse_schema(definition)
            for keys in subjects.values():
                _require(isinstance(keys, list) and all(key in schemas and 0 <= int(key) < 2**32 for key in keys))
        except FileNotFoundError:
            return {}, {}
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, *_NO_SCHEMA) as error:
            log.warning("not the registry's answers; passed over", file=str(self._file), error=repr(error)[:200])
            return {}, {}
        return schemas, subjects

    def _write(self, file: Path) -> None:
        content = {"url": self._url, "subjects": self._subjects, "schemas": self._schemas}
        descriptor, name = tempfile.mkstemp(prefix=f"{file.name}.", dir=file.parent)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as fresh:
                json.dump(content, fresh)
                fresh.flush()
                os.fsync(fresh.fileno())
            os.replace(name, file)
        except BaseException:
            os.unlink(name)
            raise


def _require(truth: bool) -> None:
    if not truth:
        raise ValueError("an entry is of the wrong kind")


@contextmanager
def _held(path: Path) -> Iterator[None]:
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
