"""Opens what a configuration names, for commands that look at a run from outside."""

from __future__ import annotations

from distrl.connectors import open_bus, open_registry, open_store
from distrl.core.codec import Codec
from distrl.core.config import Config
from distrl.core.contracts.bus import Bus
from distrl.core.contracts.clock import SystemClock
from distrl.core.contracts.registry import SchemaRegistry
from distrl.core.contracts.store import BlobStore
from distrl.core.runtime.codec import open_codec

CLIENT = "distrl-command-line"
PING_SECONDS = 10.0


def bus_of(config: Config) -> Bus:
    """The run's log, after it has answered; raises ``BusUnavailableError`` if it does not."""
    bus = open_bus(config.bus, clock=SystemClock(), client_id=CLIENT)
    try:
        bus.ping(PING_SECONDS)
    except BaseException:
        bus.close()
        raise
    return bus


def store_of(config: Config) -> BlobStore:
    """The run's store. Nothing is asked of it yet."""
    return open_store(config.store)


def codec_of(config: Config) -> Codec:
    """What reads the run's events. Nothing is asked of the registry yet."""
    return open_codec(config, clock=SystemClock())


def registry_of(config: Config) -> SchemaRegistry | None:
    """The registry that is configured, if any. Nothing is asked of it yet."""
    return open_registry(config.registry, clock=SystemClock())
