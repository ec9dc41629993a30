"""The topics of a configured run. Used by the supervisor and by ``distrl topics``."""

from __future__ import annotations

from distrl.core.config import Config
from distrl.core.contracts.bus import TopicSpec
from distrl.core.contracts.topic import HOUR_MS, run_topics


def declared_topics(config: Config) -> list[TopicSpec]:
    """What must exist before a node of this run starts."""
    return run_topics(
        config.run.name,
        partitions=config.bus.partitions,
        replication=config.bus.replication,
        retention_ms=round(config.bus.retention_hours * HOUR_MS),
        max_record_bytes=config.bus.max_record_bytes,
    )
