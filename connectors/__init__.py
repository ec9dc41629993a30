"""Everything that touches a vendor: logs, object stores, schema registries, devices. Vendor errors are translated here and nowhere
else.

``open_bus``, ``open_store`` and ``open_registry`` make what a configuration asks for; the client libraries are
imported only then. Called by the node runtime and the command line.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distrl.core.config import BusConfig, RegistryConfig, StoreConfig
    from distrl.core.contracts.bus import Bus
    from distrl.core.contracts.clock import Clock
    from distrl.core.contracts.registry import SchemaRegistry
    from distrl.core.contracts.store import BlobStore


def open_bus(config: BusConfig, *, clock: Clock, client_id: str) -> Bus:
    """The log that ``[bus]`` names. ``client_id`` tells a broker's operator who is connected.

    Opening does not connect: what cannot be reached shows at the first use, or with ``ping``.
    """
    if config.kind == "kafka":
        from distrl.connectors.kafka import KafkaBus

        return KafkaBus(config, clock=clock, client_id=client_id)
    from distrl.connectors.embedded import EmbeddedBus

    return EmbeddedBus(
        config.path,
        synchronous=config.synchronous,
        session_s=config.session_seconds,
        poll_limit_s=config.poll_gap_seconds,
        in_flight_records=config.in_flight_records,
        in_flight_bytes=config.in_flight_bytes,
        send_s=config.send_seconds,
        delivery_s=config.delivery_seconds,
        clock=clock,
    )


def open_store(config: StoreConfig) -> BlobStore:
    """The object store that ``[store]`` names."""
    if config.kind == "s3":
        from distrl.connectors.s3 import S3Store

        return S3Store(
            endpoint=config.endpoint,
            bucket=config.bucket,
            access_key=config.access_key,
            secret_key=config.secret_key.get_secret_value(),
            secure=config.secure,
            ca_file=config.ca_file,
            region=config.region,
            timeout_s=config.timeout_seconds,
        )
    from distrl.connectors.folder import FolderStore

    return FolderStore(config.path)


def open_registry(config: RegistryConfig, *, clock: Clock, cache_file: Path | None = None) -> SchemaRegistry | None:
    """The schema registry that ``[registry]`` names; ``None`` where the committed schemas are all there is.

    ``cache_file`` keeps its answers over restarts, if the folder is there. Opening does not connect.
    """
    if config.kind == "committed":
        return None
    from distrl.connectors.registry import ConfluentRegistry

    return ConfluentRegistry(
        config.url,
        clock=clock,
        username=config.username,
        password=config.password.get_secret_value(),
        ca_file=config.ca_file,
        timeout_s=config.timeout_seconds,
        cache_file=cache_file,
    )
