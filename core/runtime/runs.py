"""The runs that a log and a store know, and removing one. Called by ``distrl runs`` and by ``distrl run --fresh``."""

from __future__ import annotations

from dataclasses import dataclass, field

import structlog

from distrl.core.codec import Codec
from distrl.core.contracts.bus import Bus
from distrl.core.contracts.clock import Clock
from distrl.core.contracts.events import ROLES
from distrl.core.contracts.store import BlobStore
from distrl.core.contracts.topic import HOUR_MS, RUN_PATTERN, TopicName
from distrl.core.errors import BusAuthorizationError, BusError, UnknownTopicError
from distrl.core.runtime.liveness import LiveNodes

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class KnownRun:
    """One run, as log and store know it."""

    run: str
    topics: int = 0
    records: int = 0
    """Ever written to its topics: the sum of their end offsets."""
    log_bytes: int = 0
    groups: int = 0
    objects: int = 0
    store_bytes: int = 0
    last_activity_ms: int = 0
    """The newest sign of life or object, milliseconds since the epoch; 0 if there is none."""
    alive: list[str] = field(default_factory=list)
    """Ids of living nodes."""


@dataclass(slots=True)
class Removed:
    """What was removed, and what would not go."""

    topics: int = 0
    objects: int = 0
    bytes: int = 0
    groups: int = 0
    groups_in_use: list[str] = field(default_factory=list)
    """Groups with members: they go once those are gone."""


def known_runs(bus: Bus, store: BlobStore, codec: Codec, clock: Clock, *, only: str | None = None) -> list[KnownRun]:
    """Every run that has a topic, a group or an object, by name; or ``only`` that one, if it is known."""
    found: dict[str, KnownRun] = {}
    prefix = "distrl." if only is None else TopicName.prefix(only)

    def run_of(name: str) -> KnownRun | None:
        return found.setdefault(name, KnownRun(name)) if RUN_PATTERN.fullmatch(name) else None

    admin = bus.admin()
    topics = [name for name in admin.topics() if name.startswith(prefix)]
    try:
        sizes = admin.sizes(prefix)
    except BusAuthorizationError as error:
        log.warning("sizes on the log are not known", error=str(error))
        sizes = {}
    for name in topics:
        if (run := run_of(_run_name(name))) is not None:
            run.topics += 1
            run.log_bytes += sizes.get(name, 0)
    for partition, end in admin.end_offsets(topics).items():
        if (run := run_of(_run_name(partition.topic))) is not None:
            run.records += end
    for name in admin.groups(prefix):
        if (run := run_of(_run_name(name))) is not None:
            run.groups += 1
    for stat in store.list("" if only is None else f"{only}/"):
        name, separator, _ = stat.key.partition("/")
        if separator and (run := run_of(name)) is not None:
            run.objects += 1
            run.store_bytes += stat.size
            run.last_activity_ms = max(run.last_activity_ms, stat.modified_ms)
    for run in found.values():
        _look_at_nodes(run, bus, codec, clock)
    return [found[name] for name in sorted(found)]


def remove_run(bus: Bus, store: BlobStore, run: str) -> Removed:
    """Remove all that log and store hold of ``run``. Cut short, it is done again from the start: what is gone is passed over.

    A name ends where its prefix ends (``distrl.a.`` and ``a/``), so removing ``a`` never touches ``a-b``.
    """
    prefix = TopicName.prefix(TopicName(run).run)
    removed = Removed()
    for stat in list(store.list(f"{run}/")):
        store.delete(stat.key)
        removed.objects += 1
        removed.bytes += stat.size
    # Somebody else may be writing right now: a folder cannot tell whose an unfinished file is.
    store.leftovers(f"{run}/", store.time_ms() - HOUR_MS, remove=True)
    admin = bus.admin()
    groups = admin.groups(prefix)
    topics = [name for name in admin.topics() if name.startswith(prefix)]
    admin.delete(topics)  # with an embedded log, what groups have committed there goes too
    removed.topics = len(topics)
    try:
        admin.delete_groups(groups)
    except BusError as error:
        removed.groups_in_use = admin.groups(prefix)
        if not removed.groups_in_use:
            raise
        log.warning("groups stay until their members are gone", error=str(error))
    removed.groups = len(groups) - len(removed.groups_in_use)
    return removed


def _run_name(name: str) -> str:
    """Of a topic or group: ``distrl.<run>.…``."""
    return name.split(".")[1] if name.count(".") >= 2 else ""


def _look_at_nodes(run: KnownRun, bus: Bus, codec: Codec, clock: Clock) -> None:
    try:
        nodes = LiveNodes(bus, codec, run.run, clock)
    except UnknownTopicError:
        return
    try:
        nodes.catch_up()
        run.last_activity_ms = max(run.last_activity_ms, nodes.newest_ms)
        run.alive = sorted(status.envelope.node for role in ROLES for status in nodes.alive(role))
    finally:
        nodes.close()
