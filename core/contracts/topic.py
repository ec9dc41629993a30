"""Every topic of a run, declared in this one place. Topics are made from here, never by use.

``run_topics`` gives the declarations; ``TopicName`` the names. The four keyed topics share key and number of partitions, so
one stateful node owns equal partition numbers of all of them and can join by trajectory id.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from distrl.core.contracts.bus import TopicSpec
from distrl.core.errors import ConfigError

RUN_PATTERN = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
"""What a run may be called: it is part of topic names, object keys and folder names."""

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
DEAD_LETTER_BYTES = 131_072
"""What a dead letter may add to the record that it holds."""

CO_PARTITIONED = ("trajectories", "rewards", "priorities", "feedback")
ALL = (*CO_PARTITIONED, "weights", "weights-latest", "nodes", "metrics", "dead-letters")


@dataclass(frozen=True, slots=True)
class TopicName:
    """The names of one run's topics: ``distrl.<run>.<topic>``."""

    run: str

    def __post_init__(self) -> None:
        if not RUN_PATTERN.fullmatch(self.run):
            raise ConfigError(
                f"run name {self.run!r}: use lower-case letters, digits, '-' and '_', at most 63, starting with a letter or digit"
            )

    @staticmethod
    def prefix(run: str) -> str:
        """What the names of a run's topics, and of its groups, begin with."""
        return f"distrl.{run}."

    def __call__(self, topic: str) -> str:
        if topic not in ALL:
            raise ConfigError(f"no topic {topic!r} is declared; there are {', '.join(ALL)}")
        return self.prefix(self.run) + topic


def run_topics(
    run: str,
    *,
    partitions: int,
    replication: int,
    retention_ms: int | None,
    retention_bytes: int | None = None,
    max_record_bytes: int,
) -> list[TopicSpec]:
    """The declarations of all topics of ``run``.

    ``partitions`` is that of the four keyed topics; the others have one. ``retention_ms`` must cover the
    learner's buffer: what has left the log can no longer be read back after a restart. ``retention_bytes`` bounds each
    partition of the topics that are not compacted. Neither takes anything from ``weights``: it is small, and says where the first
    version lies however long the run is.
    """
    name = TopicName(run)

    def spec(
        topic: str, *, compact: bool = False, keep: bool = False, retention: int | None = retention_ms
    ) -> TopicSpec:
        return TopicSpec(
            name(topic),
            partitions=partitions if topic in CO_PARTITIONED else 1,
            replication=replication,
            cleanup="compact" if compact else "delete",
            retention_ms=None if compact or keep else retention,
            retention_bytes=None if compact or keep else retention_bytes,
            max_record_bytes=max_record_bytes + (DEAD_LETTER_BYTES if topic == "dead-letters" else 0),
        )

    return [
        spec("trajectories"),
        spec("rewards"),
        spec("priorities"),
        spec("feedback"),
        spec("weights", keep=True),
        spec("weights-latest", compact=True),
        spec("nodes", compact=True),
        spec("metrics"),
        spec("dead-letters", retention=None if retention_ms is None else max(retention_ms, 7 * DAY_MS)),
    ]
