"""Makes the codec that a configuration asks for. Used by nodes, the supervisor and every command that reads a run."""

from __future__ import annotations

from distrl.connectors import open_registry
from distrl.core.codec import Codec
from distrl.core.config import Config
from distrl.core.contracts.clock import Clock

CACHE = "registry.json"
"""In the run's folder: what the registry has answered, so that a node starts again while it is away."""


def open_codec(config: Config, *, clock: Clock) -> Codec:
    """A codec with the ids of ``[registry]``. Asks nothing of the registry yet: see ``Codec.prepare``. Raises ``ConfigError``."""
    registry = open_registry(config.registry, clock=clock, cache_file=config.run_directory / CACHE)
    return Codec(
        registry,
        write_versions=config.registry.write_versions,
        register_missing=config.registry.register_missing,
    )
