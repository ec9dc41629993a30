"""Certificates for servers of this machine and their clients, made on the spot. Used by the tests.

An authority is good for one session: its key is never written.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme
from cryptography.hazmat.primitives import serialization
from server import HOST


@dataclass(frozen=True, slots=True)
class Certificate:
    """Files in PEM: a certificate, its private key (PKCS 8), both of them in one."""

    cert_file: Path
    key_file: Path
    both_file: Path


class Authority:
    """Signs certificates and writes them, and its own, into ``folder``."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._authority = trustme.CA()
        self.ca_file = folder / "ca.pem"
        """What clients are to trust."""
        self._authority.cert_pem.write_to_path(self.ca_file)

    def issue(self, name: str = HOST, *, file: str = "server", expired: bool = False) -> Certificate:
        """A certificate for a host, or for a client of that name. ``file``: what its files are called."""
        yesterday = datetime.now(UTC) - timedelta(days=1)
        leaf = self._authority.issue_cert(
            name,
            common_name=name,
            not_before=yesterday - timedelta(days=1) if expired else None,
            not_after=yesterday if expired else None,
        )
        # Kafka reads keys in this form alone.
        key = serialization.load_pem_private_key(leaf.private_key_pem.bytes(), password=None).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        chain = b"".join(part.bytes() for part in leaf.cert_chain_pems)
        made = Certificate(*(self._folder / f"{file}{ending}" for ending in (".pem", ".key", ".both.pem")))
        made.cert_file.write_bytes(chain)
        for path, content in ((made.key_file, key), (made.both_file, key + chain)):
            path.touch(mode=0o600)
            path.write_bytes(content)
        return made
