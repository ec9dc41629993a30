"""Writes ``lock.json``: run ``python -m distrl.schemas.lock`` after a version was added. Tests call ``entries``."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from fastavro.schema import parse_schema, to_parsing_canonical_form

FOLDER = Path(__file__).parent


def schema_id(definition: dict[str, Any]) -> int:
    """The first 31 bits of the SHA-256 of the parsing canonical form (Avro 1.12, "Parsing Canonical Form").

    31 and not 32, because the Confluent frame's id is a signed integer in most readers.
    """
    canonical: str = to_parsing_canonical_form(parse_schema(definition))
    return int.from_bytes(hashlib.sha256(canonical.encode()).digest()[:4]) >> 1


def entries(folder: Path = FOLDER) -> dict[str, dict[str, str | int]]:
    """What the lock must hold: by file, its SHA-256 and its schema id."""
    return {
        path.relative_to(folder).as_posix(): {
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            "id": schema_id(json.loads(path.read_bytes())),
        }
        for path in sorted(folder.glob("*/v*.avsc"))
    }


def main(folder: Path = FOLDER) -> None:
    """Add new files to the lock. An edited or deleted file is an error: released versions stay as they are."""
    path = folder / "lock.json"
    old = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    new = entries(folder)
    changed = [name for name, entry in old.items() if new.get(name) != entry]
    if changed:
        raise SystemExit(f"released schemas must not change: {', '.join(changed)}; add a new version instead")
    path.write_text(json.dumps(new, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
