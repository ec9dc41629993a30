"""Garbage in the store: objects of a run that no retained event, no node and no kept checkpoint needs. Called by ``distrl store``.

The order is what makes it safe beside a run at work. First the objects are listed with their ages, by the store's own clock. Then
what may still be sent is asked for (signs of life, the outboxes of this machine), then the log is read to its end, then the
checkpoints. What was old when it was listed and was found nowhere goes, each after one more look at its age. Whoever puts an
object, or finds it there already, renews its age before the event that refers to it is sent, so it is found or it is young.
"""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import structlog

from distrl.core.codec import Codec
from distrl.core.config import Config
from distrl.core.contracts.bus import Bus, Consumer, Record
from distrl.core.contracts.clock import Clock
from distrl.core.contracts.events import DeadLetter, Event, NodeStatus, WeightsUpdate
from distrl.core.contracts.metric import OUTBOX_SINCE
from distrl.core.contracts.store import BlobStat, BlobStore
from distrl.core.contracts.topic import HOUR_MS, TopicName
from distrl.core.errors import CodecError, UnknownRunError, UnknownSchemaError, UnknownTopicError
from distrl.core.runtime.blob import stored_blobs
from distrl.core.runtime.checkpoint import MANIFEST, Checkpoints
from distrl.core.runtime.liveness import MISSED
from distrl.core.runtime.outbox import kept_episodes, outbox_path
from distrl.core.runtime.scan import records, scan
from distrl.core.runtime.weights import dispensable

log = structlog.get_logger(__name__)
Kind = Literal["artefacts", "weights", "checkpoints", "other", "unfinished"]
KINDS: tuple[Kind, ...] = ("artefacts", "weights", "checkpoints", "other", "unfinished")
_KINDS: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    ("artefacts", re.compile(r"artefacts/[0-9a-f]{64}")),
    ("weights", re.compile(r"weights/\d{8,}-\d+\.safetensors")),
    ("checkpoints", re.compile(r"checkpoints/\d{14}/.+")),
)
NAMES = re.compile(rb"[0-9a-f]{64}|\d{8,}-\d+\.safetensors")
"""Last parts of keys, as they stand in the bytes of an event that refers to them."""


@dataclass(slots=True)
class Tally:
    """So many objects and bytes."""

    objects: int = 0
    bytes: int = 0

    def add(self, size: int, objects: int = 1) -> None:
        self.objects += objects
        self.bytes += size


@dataclass(slots=True)
class Collected:
    """What a collection found, did or would do, by kind."""

    run: str
    dry_run: bool
    found: dict[Kind, Tally] = field(default_factory=lambda: {kind: Tally() for kind in KINDS})
    young: dict[Kind, Tally] = field(default_factory=lambda: {kind: Tally() for kind in KINDS})
    """Of those found, left because of their age alone."""
    removed: dict[Kind, Tally] = field(default_factory=lambda: {kind: Tally() for kind in KINDS})
    """Or would be, in a dry run."""
    held_by: dict[str, str] = field(default_factory=dict)
    """Collectors whose outboxes cannot be seen from here and may hold episodes, with what is known of them: what is younger than
    their oldest episode stays."""
    unreadable: list[str] = field(default_factory=list)
    """Records that are no event: whatever their bytes name was kept."""

    def document(self) -> dict[str, Any]:
        """As ``--json`` prints it."""
        return asdict(self)


def kind_of(run: str, key: str) -> Kind:
    """What an object of a run is; ``other`` is never garbage."""
    name = key.removeprefix(f"{run}/")
    return next((kind for kind, pattern in _KINDS if pattern.fullmatch(name)), "other")


def usage(store: BlobStore, run: str) -> dict[Kind, Tally]:
    """What a run has in the store, by kind."""
    found = {kind: Tally() for kind in KINDS}
    for stat in store.list(f"{run}/"):
        found[kind_of(run, stat.key)].add(stat.size)
    left = store.leftovers(f"{run}/", store.time_ms(), remove=False)
    found["unfinished"].add(left.size, left.count)
    return found


def collect(
    config: Config,
    bus: Bus,
    store: BlobStore,
    codec: Codec,
    clock: Clock,
    *,
    dry_run: bool = False,
    forget: Collection[str] = (),
    unknown_schemas: bool = False,
    stop: threading.Event | None = None,
) -> Collected:
    """Remove the garbage of ``config.run``; with ``dry_run`` only say what it is.

    ``forget``: ids of collectors that will not come back with what their outboxes held. ``unknown_schemas``: go on although
    records were written with schemas that nobody here knows. ``stop`` ends it early. Whatever cuts it short, what was
    removed by then was garbage and the rest waits for the next time.

    Raises ``UnknownRunError`` if the log does not know the run, ``UnknownSchemaError`` for records of a newer distrl, ``StoreError``
    for an outbox or checkpoint that cannot be read, and what log and store raise.
    """
    return _Collection(config, bus, store, codec, clock, dry_run, forget, unknown_schemas).run(
        stop or threading.Event()
    )


class _Collection:
    """One collection."""

    def __init__(
        self,
        config: Config,
        bus: Bus,
        store: BlobStore,
        codec: Codec,
        clock: Clock,
        dry_run: bool,
        forget: Collection[str],
        unknown_schemas: bool,
    ) -> None:
        self._config = config
        self._run = config.run.name
        self._bus = bus
        self._store = store
        self._codec = codec
        self._clock = clock
        self._forget = frozenset(forget)
        self._unknown_schemas = unknown_schemas
        self._grace_ms = round(config.store.grace_hours * HOUR_MS)
        self._result = Collected(self._run, dry_run)
        self._candidates: dict[str, BlobStat] = {}
        self._by_name: dict[str, str] = {}
        """Keys of candidates by their last part, which is unique to an artefact and to a version."""
        self._newer: list[str] = []
        """Records whose schema nobody knows."""

    def run(self, stop: threading.Event) -> Collected:
        before_ms = now_ms = self._store.time_ms()
        before_ms -= self._grace_ms
        all_weights = self._list(before_ms)
        if self._candidates:
            before_ms = min(before_ms, self._held_before(now_ms))
            self._leave_young(before_ms)
            self._keep_unsent()
            self._keep_logged(bool(all_weights))
            self._keep_checkpoints()
            self._keep_weights(all_weights)
            self._refuse_unknown()
        self._remove(before_ms, stop)
        if not stop.is_set():
            left = self._store.leftovers(f"{self._run}/", before_ms, remove=not self._result.dry_run)
            self._result.found["unfinished"].add(left.size, left.count)
            self._result.removed["unfinished"].add(left.size, left.count)
        return self._result

    # --- what there is ----------------------------------------------------------------------

    def _list(self, before_ms: int) -> list[BlobStat]:
        """Take down what is old enough; returns all weights there are."""
        weights: list[BlobStat] = []
        for stat in self._store.list(f"{self._run}/"):
            kind = kind_of(self._run, stat.key)
            self._result.found[kind].add(stat.size)
            if kind == "weights":
                weights.append(stat)
            if kind == "other":
                continue
            if stat.modified_ms >= before_ms:
                self._result.young[kind].add(stat.size)
                continue
            self._candidates[stat.key] = stat
            if kind != "checkpoints":
                self._by_name[stat.key.rpartition("/")[2]] = stat.key
        return weights

    def _leave_young(self, before_ms: int) -> None:
        """The bound has moved since they were listed."""
        for key, stat in list(self._candidates.items()):
            if stat.modified_ms >= before_ms:
                del self._candidates[key]
                self._result.young[kind_of(self._run, key)].add(stat.size)

    # --- what may still be sent -------------------------------------------------------------

    def _held_before(self, now_ms: int) -> int:
        """The store's time since which collectors out of sight may have put what their outboxes still hold."""
        bound_ms = now_ms
        for name, (status, seen_ms) in self._signs().items():
            here = status.host == socket.gethostname() and outbox_path(self._nodes / name).exists()
            if status.role != "collector" or here or name in self._forget:
                continue
            silent_ms = max(0, self._clock.time_ms() - seen_ms)
            if silent_ms > self._config.bus.retention_hours * HOUR_MS:
                continue  # the log itself has forgotten its time
            since_ms = status.counters.get(OUTBOX_SINCE, 0)
            if status.state != "stopped" and silent_ms > MISSED * max(status.heartbeat_ms, 200):
                # What it has finished since nobody knows.
                since_ms = min(since_ms or seen_ms, seen_ms)
                self._result.held_by[name] = f"silent for {silent_ms / HOUR_MS:.1f} h"
            elif since_ms:
                self._result.held_by[name] = f"has not sent episodes of {self._hours_ago(since_ms):.1f} h ago"
            else:
                continue
            # The grace age is also the longest that anything may be older than the episode that refers to it.
            bound_ms = min(bound_ms, now_ms - (self._clock.time_ms() - since_ms) - self._grace_ms)
        return bound_ms

    def _signs(self) -> Mapping[str, tuple[NodeStatus, int]]:
        """The last sign of life of each node that has not left, and when it was given (milliseconds since the epoch)."""
        signs: dict[str, tuple[NodeStatus, int]] = {}
        with self._consumer("nodes") as consumer:
            for record in records(consumer):
                node = (record.key or b"").decode("utf-8", "replace")
                signs.pop(node, None)
                if record.value is None:
                    continue
                try:
                    status = self._codec.decode(record.value, NodeStatus, record.headers)
                except CodecError as error:
                    self._note_unreadable(record, error)
                else:
                    signs[node] = status, record.timestamp_ms
        return signs

    def _keep_unsent(self) -> None:
        for path in sorted(self._nodes.glob(f"*/{outbox_path(Path()).name}")):
            for value in kept_episodes(path):
                try:
                    self._keep_event(self._codec.decode(value))
                except CodecError:
                    self._keep_named(value)

    # --- what was sent ----------------------------------------------------------------------

    def _keep_logged(self, has_weights: bool) -> None:
        """Read the log to where it ends now."""
        known = False
        with self._consumer("trajectories", "weights", "weights-latest", "dead-letters") as consumer:
            for _, event in scan(consumer, self._codec, on_unreadable=self._note_unreadable):
                known = known or isinstance(event, WeightsUpdate)
                self._keep_event(event)
        if has_weights and not known:
            raise UnknownRunError(
                f"the store holds weights of run {self._run!r} and its log names none: is [bus] the log of this [store]? "
                "To remove a run that is over: distrl runs delete"
            )

    def _consumer(self, *topics: str) -> Consumer:
        name = TopicName(self._run)
        try:
            return self._bus.consumer([name(topic) for topic in topics])
        except UnknownTopicError as error:
            raise UnknownRunError(
                f"the log has no topics of run {self._run!r}: nothing tells what is garbage. "
                "To remove a run that is over: distrl runs delete"
            ) from error

    def _keep_event(self, event: Event) -> None:
        for blob in stored_blobs(event):
            if blob.bucket == self._store.bucket:
                self._candidates.pop(blob.key, None)
        if isinstance(event, DeadLetter) and event.value is not None:
            # It may be sent back one day: the original says what it needs, readable or not.
            try:
                self._keep_event(self._codec.decode(event.value, headers=tuple(event.headers.items())))
            except CodecError:
                self._keep_named(event.value)

    def _note_unreadable(self, record: Record, error: CodecError) -> None:
        where = f"{record.topic}/{record.partition}/{record.offset}: {error.message}"
        self._result.unreadable.append(where)
        if isinstance(error, UnknownSchemaError):
            self._newer.append(where)
        self._keep_named(record.value or b"")

    def _keep_named(self, value: bytes) -> None:
        """Keep whatever bytes that are no event name: Avro writes texts as they are, so a reference that is whole is found."""
        for name in NAMES.findall(value):
            key = self._by_name.get(name.decode())
            if key is not None:
                self._candidates.pop(key, None)

    def _refuse_unknown(self) -> None:
        if self._newer and not self._unknown_schemas:
            raise UnknownSchemaError(
                f"{len(self._newer)} records have schemas that are not known here, so what they need cannot be told; the first: "
                f"{self._newer[0]}. Collect with the distrl that wrote them, or with --unknown-schemas"
            )

    # --- what nodes start from --------------------------------------------------------------

    def _keep_checkpoints(self) -> None:
        """Keep all from the oldest checkpoint on that is kept, but what was cut short; and what their buffers refer to."""
        kept = Checkpoints(self._store, self._run, kept=self._config.learner.checkpoints_kept).kept()
        for checkpoint in kept:
            for key in checkpoint.covered.artefacts:
                self._candidates.pop(key, None)
        numbers = {int(key.split("/")[2]) for key in self._keys("checkpoints") if f"/{MANIFEST}/" in key}
        oldest = min((checkpoint.number for checkpoint in kept), default=0)
        complete = {checkpoint.number for checkpoint in kept} | {number for number in numbers if number >= oldest}
        for key in self._keys("checkpoints"):
            if int(key.split("/")[2]) in complete:
                self._candidates.pop(key)

    def _keep_weights(self, stats: list[BlobStat]) -> None:
        old = {stat.key for stat in dispensable(stats, kept=self._config.learner.weights_kept)}
        for key in self._keys("weights"):
            if key not in old:
                self._candidates.pop(key)

    # --- what goes --------------------------------------------------------------------------

    def _remove(self, before_ms: int, stop: threading.Event) -> None:
        # A checkpoint's manifest goes first: without it the rest is none, should this be cut short.
        for key in sorted(self._candidates, key=lambda key: (f"/{MANIFEST}/" not in key, key)):
            if stop.is_set():
                return
            kind, size = kind_of(self._run, key), self._candidates[key].size
            if self._result.dry_run or self._store.delete_older(key, before_ms):
                self._result.removed[kind].add(size)
            else:
                self._result.young[kind].add(size)

    def _keys(self, kind: Kind) -> list[str]:
        return [key for key in self._candidates if kind_of(self._run, key) == kind]

    @property
    def _nodes(self) -> Path:
        return self._config.run_directory / "nodes"

    def _hours_ago(self, time_ms: int) -> float:
        return (self._clock.time_ms() - time_ms) / HOUR_MS
