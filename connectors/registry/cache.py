"""What a registry has answered, in memory and in a file. Used by ``connectors.registry.confluent``.

An id never changes its meaning, so an answer of this process is never asked for again. The file is for a node that starts while
the registry is away, and counts only then: a registry that was set up anew at the same address hands out other ids. One that is
another address's, or not as it should be, counts for nothing.
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
from fastavro.schema import SchemaParseException, UnknownType, to_parsing_canonical_form

log = structlog.get_logger(__name__)
Definition = Mapping[str, Any]
"""A schema as JSON."""
_MALFORMED = (ValueError, LookupError, TypeError, AttributeError, RecursionError, SchemaParseException, UnknownType)


class Answers:
    """Schemas by id or GUID in text, and the ids that each subject has."""

    def __init__(self) -> None:
        self.schemas: dict[str, Definition] = {}
        self.subjects: dict[str, list[str]] = {}

    def id_of(self, subject: str, text: str) -> int | None:
        """The id under which ``subject`` has this schema, in whatever words: a registry gives it back in its own."""
        meaning = _meaning(json.loads(text))
        keys = self.subjects.get(subject, ())
        return next((int(key) for key in keys if key in self.schemas and _meaning(self.schemas[key]) == meaning), None)

    def take(self, key: str, definition: Definition, subject: str | None = None) -> None:
        self.schemas.setdefault(key, definition)
        if subject is not None and key not in self.subjects.setdefault(subject, []):
            self.subjects[subject].append(key)

    def add(self, other: Answers) -> None:
        """Take what is not known yet; nothing at all if one id means two things: then those are another registry's answers."""
        if any(
            _meaning(other.schemas[key]) != _meaning(self.schemas[key]) for key in other.schemas.keys() & self.schemas
        ):
            return
        self.schemas = {**other.schemas, **self.schemas}
        for subject, keys in other.subjects.items():
            self.subjects[subject] = list(dict.fromkeys([*self.subjects.get(subject, ()), *keys]))


class AnswerCache:
    """Safe for use by several threads, and its file by several processes."""

    def __init__(self, file: Path | None, url: str) -> None:
        self._file = file
        self._url = url
        self._lock = threading.Lock()
        self._heard = Answers()

    def schema(self, key: str) -> Definition | None:
        """The schema of an id (or GUID) in text, if the registry has told this process."""
        with self._lock:
            return self._heard.schemas.get(key)

    def id_of(self, subject: str, text: str) -> int | None:
        """The id under which ``subject`` has this very schema, if the registry has told this process."""
        with self._lock:
            return self._heard.id_of(subject, text)

    def kept(self) -> Answers:
        """What this and former processes have heard: for when the registry does not answer."""
        with self._lock:
            return self._together()

    def keep(self, key: str, definition: Definition, *, subject: str | None = None) -> None:
        """Remember an answer. Not being able to write the file costs no more than asking again after a restart."""
        with self._lock:
            self._heard.take(key, definition, subject)
            if self._file is None or not self._file.parent.is_dir():
                return
            try:
                with _held(self._file.with_suffix(".lock")):
                    self._write(self._file, self._together())
            except OSError as error:
                log.warning("answers of the registry are not kept", file=str(self._file), error=str(error))

    def _together(self) -> Answers:
        together = Answers()
        together.add(self._heard)
        together.add(self._read())
        return together

    def _read(self) -> Answers:
        """What the file holds for this registry; nothing if it is another's, missing, or malformed."""
        answers = Answers()
        if self._file is None:
            return answers
        try:
            content = json.loads(self._file.read_bytes())
            if content["url"] == self._url:
                schemas, subjects = content["schemas"], content["subjects"]
                for definition in schemas.values():
                    _meaning(definition)
                for keys in subjects.values():
                    if not isinstance(keys, list) or any(key not in schemas or int(key) >= 2**32 for key in keys):
                        raise ValueError("an id without a schema")
                answers.schemas, answers.subjects = schemas, subjects
        except FileNotFoundError:
            pass
        except (OSError, *_MALFORMED) as error:
            log.warning("not the registry's answers; passed over", file=str(self._file), error=repr(error)[:200])
        return answers

    def _write(self, file: Path, answers: Answers) -> None:
        content = {"url": self._url, "subjects": answers.subjects, "schemas": answers.schemas}
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


def _meaning(definition: Definition) -> str:
    """The same for one schema in different words. Raises what ``_MALFORMED`` lists for what is none."""
    canonical: str = to_parsing_canonical_form(parse_schema(dict(definition)))
    return canonical


@contextmanager
def _held(path: Path) -> Iterator[None]:
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
