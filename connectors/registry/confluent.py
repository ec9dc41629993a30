"""A ``SchemaRegistry`` behind Confluent's HTTP API, through ``urllib3``. Made by ``connectors.open_registry``.

Paths and error codes are those of Confluent's "Schema Registry API Reference". Nothing is retried here: callers read
``retriable``. After a failure the registry is left alone for a moment, so that a reader with a thousand records of an
unknown id does not wait a thousand time-outs.
"""

from __future__ import annotations

import json
import threading
from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit
from uuid import UUID

import urllib3
from urllib3.exceptions import HTTPError, LocationParseError, SSLError

from distrl.connectors.registry.cache import AnswerCache, Definition
from distrl.core.contracts.clock import Clock
from distrl.core.errors import (
    ConfigError,
    IncompatibleSchemaError,
    RegistryCredentialsError,
    RegistryError,
    RegistryUnavailableError,
    UnknownSchemaError,
)

MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"
CONNECT_SECONDS = 5.0
"""Longest wait for a connection, if the registry's timeout is not shorter still."""
PAUSE_SECONDS = (1.0, 10.0)
"""After a failure nothing is asked for as long as the failure took, within these bounds."""
LEVELS = ("FULL_TRANSITIVE", "FULL")
"""Levels of compatibility that will do, the best first: all versions read each other, or neighbours do."""
SUBJECT_NOT_FOUND, VERSION_NOT_FOUND, SCHEMA_NOT_FOUND, CONFIG_NOT_FOUND = 40401, 40402, 40403, 40408
INVALID_LEVEL = 42203


class ConfluentRegistry:
    """Safe for use by several threads."""

    def __init__(
        self,
        url: str,
        *,
        clock: Clock,
        username: str = "",
        password: str = "",
        ca_file: Path | None = None,
        timeout_s: float = 10.0,
        cache_file: Path | None = None,
    ) -> None:
        """``url``: where the API begins. ``ca_file``: PEM file that TLS certificates are checked with, in place of the machine's own.
        ``timeout_s``: seconds that a request may go without a byte moving. ``cache_file``: keeps answers over restarts.
        Connects to nothing yet. Raises ``ConfigError`` for what cannot be an address or certificate file."""
        if ca_file is not None and not ca_file.is_file():
            raise ConfigError(f"registry.ca_file: there is no file {ca_file}")
        self._url = _checked(url)
        self._clock = clock
        self._cache = AnswerCache(cache_file, self._url)
        self._headers = {"Accept": f"{MEDIA_TYPE}, application/json", "Content-Type": MEDIA_TYPE}
        if username:
            # In UTF-8 (RFC 7617), where urllib3 would have Latin-1.
            self._headers["Authorization"] = f"Basic {b64encode(f'{username}:{password}'.encode()).decode()}"
        self._lock = threading.Lock()
        self._silent_until = 0.0
        self._last_failure = ""
        self._http = urllib3.PoolManager(
            timeout=urllib3.Timeout(connect=min(timeout_s, CONNECT_SECONDS), read=timeout_s),
            retries=False,
            maxsize=4,
            cert_reqs="CERT_REQUIRED",
            ca_certs=None if ca_file is None else str(ca_file),
        )

    def __repr__(self) -> str:
        return f"ConfluentRegistry({self._url!r})"

    # --- ids ----------------------------------------------------------------------------------------

    def schema(self, schema_id: int) -> Mapping[str, Any]:
        return self._schema(str(schema_id), f"/schemas/ids/{schema_id}")

    def schema_by_guid(self, guid: UUID) -> Mapping[str, Any]:
        return self._schema(str(guid), f"/schemas/guids/{guid}")

    def find(self, subject: str, text: str) -> int | None:
        if (known := self._cache.id_of(subject, text)) is not None:
            return known
        try:
            answer = self._ask("POST", f"/subjects/{quote(subject, safe='')}", _body(text))
        except RegistryUnavailableError:
            if (kept := self._cache.kept().id_of(subject, text)) is not None:
                return kept
            raise
        except _NotFoundError as error:
            if error.error_code in (SUBJECT_NOT_FOUND, VERSION_NOT_FOUND, SCHEMA_NOT_FOUND):
                return None
            raise error.told() from error
        return self._keep_id(subject, text, answer)

    def register(self, subject: str, text: str) -> int:
        try:
            answer = self._ask("POST", f"/subjects/{quote(subject, safe='')}/versions", _body(text))
        except _NotFoundError as error:
            raise error.told() from error
        except _ConflictError as error:
            # Somebody may have registered it in this very moment, which Apicurio tells as a conflict too.
            if (found := self.find(subject, text)) is not None:
                return found
            raise IncompatibleSchemaError(error.message) from error
        return self._keep_id(subject, text, answer)

    # --- compatibility --------------------------------------------------------------------------------

    def require_compatibility(self, subject: str) -> str:
        path = f"/config/{quote(subject, safe='')}"
        try:
            if (level := self._level(path)) in LEVELS:
                return level
            for wanted in LEVELS:
                try:
                    self._ask("PUT", path, {"compatibility": wanted})
                    break
                except _ConflictError:
                    break  # another node has just set it: see what it is now
                except _RefusedError as error:
                    if error.error_code != INVALID_LEVEL or wanted == LEVELS[-1]:
                        raise
            level = self._level(path)
        except _NotFoundError as error:
            raise error.told() from error
        if level not in LEVELS:
            raise RegistryError(
                f"{self} holds {subject} to {level or 'no'} compatibility, distrl needs {' or '.join(LEVELS)}: set it there"
            )
        return level

    def is_compatible(self, subject: str, text: str) -> bool:
        path = f"/compatibility/subjects/{quote(subject, safe='')}/versions"
        try:
            answer = self._ask("POST", path, _body(text))
        except _NotFoundError as error:
            if error.error_code in (SUBJECT_NOT_FOUND, VERSION_NOT_FOUND):
                return True
            raise error.told() from error
        verdict = answer.get("is_compatible") if isinstance(answer, dict) else None
        if not isinstance(verdict, bool):
            raise self._odd(answer)
        return verdict

    def _level(self, path: str) -> str:
        """The level of a subject's own; empty if it has none."""
        try:
            answer = self._ask("GET", path)
        except _NotFoundError as error:
            if error.error_code in (SUBJECT_NOT_FOUND, CONFIG_NOT_FOUND):
                return ""
            raise
        return str(answer.get("compatibilityLevel", "")) if isinstance(answer, dict) else ""

    # --- the rest -------------------------------------------------------------------------------------

    def ping(self) -> None:
        try:
            answer = self._ask("GET", "/subjects")
        except _NotFoundError as error:
            raise error.told() from error
        if not isinstance(answer, list):
            raise self._odd(answer)

    def close(self) -> None:
        self._http.clear()

    # --- inside ---------------------------------------------------------------------------------------

    def _schema(self, key: str, path: str) -> Definition:
        if (known := self._cache.schema(key)) is not None:
            return known
        try:
            answer = self._ask("GET", path)
        except RegistryUnavailableError:
            if (kept := self._cache.kept().schemas.get(key)) is not None:
                return kept
            raise
        except _NotFoundError as error:
            raise UnknownSchemaError(f"{self} knows no schema {key}") from error
        text = answer.get("schema") if isinstance(answer, dict) else None
        if not isinstance(text, str):
            raise self._odd(answer)
        if answer.get("schemaType", "AVRO") != "AVRO" or answer.get("references"):
            raise UnknownSchemaError(f"schema {key} of {self} is not an Avro schema that stands alone")
        try:
            definition = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self._odd(text) from error
        if not isinstance(definition, dict):
            raise UnknownSchemaError(f"schema {key} of {self} is not that of a record")
        self._cache.keep(key, definition)
        return definition

    def _keep_id(self, subject: str, text: str, answer: Any) -> int:
        schema_id = answer.get("id") if isinstance(answer, dict) else None
        if not isinstance(schema_id, int) or isinstance(schema_id, bool) or not 0 <= schema_id < 2**32:
            raise self._odd(answer)
        self._cache.keep(str(schema_id), json.loads(text), subject=subject)
        return schema_id

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """One request; returns the answer's JSON."""
        begun = self._clock.monotonic()
        with self._lock:
            if begun < self._silent_until:
                raise RegistryUnavailableError(self._last_failure)
        try:
            response = self._http.request(
                method,
                self._url + path,
                body=None if body is None else json.dumps(body),
                headers=self._headers,
                redirect=False,
            )
            status, data = response.status, response.data
        except SSLError as error:
            raise RegistryCredentialsError(
                f"cannot trust {self}: {_short(error)}; registry.ca_file names the authority that signed it"
            ) from error
        except (HTTPError, OSError) as error:
            raise self._unavailable(f"{self} does not answer: {_short(error)}", begun) from error
        if status >= 500 or status in (408, 425, 429):
            raise self._unavailable(f"{self} answers {method} {path} with HTTP status {status}", begun)
        try:
            answer = json.loads(data)
        except (ValueError, RecursionError):
            answer = None
        if 200 <= status < 300:
            if answer is None:
                raise self._odd(data[:80].decode("utf-8", "replace"))
            return answer
        raise self._refusal(f"{method} {path}", status, answer)

    def _unavailable(self, message: str, begun: float) -> RegistryUnavailableError:
        now = self._clock.monotonic()
        least, most = PAUSE_SECONDS
        with self._lock:
            self._silent_until = now + min(max(now - begun, least), most)
            self._last_failure = message
        return RegistryUnavailableError(message)

    def _refusal(self, asked: str, status: int, answer: Any) -> RegistryError:
        said = answer if isinstance(answer, dict) else {}
        code = said.get("error_code")
        text = f"{self} answers {asked} with HTTP status {status}: {str(said.get('message', ''))[:400] or 'no reason given'}"
        if status in (401, 403):
            return RegistryCredentialsError(f"{text}; see registry.username and DISTRL_REGISTRY__PASSWORD")
        if status == 409:
            return _ConflictError(text, code if isinstance(code, int) else 0)
        if status == 404:
            return _NotFoundError(text, code if isinstance(code, int) else 0)
        return _RefusedError(text, code if isinstance(code, int) else 0)

    def _odd(self, answer: Any) -> RegistryError:
        return RegistryError(
            f"{self} gives an answer that is none: {str(answer)[:80]!r}; is registry.url where its API begins?"
        )


class _RefusedError(RegistryError):
    """Refused, with Confluent's own code for why; 0 if it gave none."""

    def __init__(self, text: str, error_code: int) -> None:
        super().__init__(text)
        self.error_code = error_code


class _ConflictError(_RefusedError):
    """It does not go together with what is there."""


class _NotFoundError(_RefusedError):
    """What was asked for is not there; without a code, perhaps the API is not."""

    def told(self) -> RegistryError:
        """As a caller outside this module gets it."""
        return RegistryError(f"{self.message}; is registry.url where its API begins (Apicurio: .../apis/ccompat/v7)?")


def _body(text: str) -> Mapping[str, Any]:
    """A schema as it is sent. Apicurio (3.3.3) takes a default of ``"{}"`` for a badly written map, puts ``{}`` in its place, and then
    refuses the field as no Avro; written with an escape it is the same text to every JSON reader."""
    return {"schema": text.replace('"{}"', '"\\u007b}"')}


def _checked(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"registry.url: {parts.scheme}://{parts.hostname or ''} is no http address")
    if "@" in parts.netloc:
        raise ConfigError("registry.url holds a user: put it into registry.username and DISTRL_REGISTRY__PASSWORD")
    try:
        urllib3.util.parse_url(url)
    except LocationParseError as error:
        raise ConfigError(f"registry.url: {url!r} is no http address") from error
    return url.rstrip("/")


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:200]
