"""The contract of a schema registry: which schema an id means. Implemented by ``connectors.registry``; asked by ``core.codec``.

A subject is a record's full name (``distrl.Trajectory``): topics belong to a run, schemas do not. Ids never change their
meaning, so an answer may be kept for good.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol
from uuid import UUID


class SchemaRegistry(Protocol):
    """Safe for use by several threads.

    Every call may raise ``RegistryUnavailableError`` (retriable) when the registry does not answer, ``RegistryCredentialsError`` when it
    does not let us, and ``RegistryError`` for what else it refuses.
    """

    def schema(self, schema_id: int) -> Mapping[str, Any]:
        """The schema of an id as JSON. Raises ``UnknownSchemaError`` for an id that nobody registered."""

    def schema_by_guid(self, guid: UUID) -> Mapping[str, Any]:
        """The same by the id that is unique over registries. Raises ``UnknownSchemaError``, also where the server has no such ids."""

    def find(self, subject: str, text: str) -> int | None:
        """The id under which ``subject`` has this very schema; ``None`` if it has not."""

    def register(self, subject: str, text: str) -> int:
        """Add a schema to ``subject`` and return its id; that of before if it is there already.

        Raises ``IncompatibleSchemaError`` when it does not fit the versions that are there.
        """

    def require_compatibility(self, subject: str) -> str:
        """Make the registry accept for ``subject`` only versions that read each other; returns the level that now holds.

        Raises ``RegistryError`` when the registry holds to another level.
        """

    def is_compatible(self, subject: str, text: str) -> bool:
        """Whether a schema fits every version that ``subject`` has, by its level; true where there is none."""

    def ping(self) -> None:
        """Return if the registry answers and knows us; raise if not."""

    def close(self) -> None:
        """Release all connections. Idempotent."""
