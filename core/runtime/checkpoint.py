"""The learner's checkpoints in the store: its plugin's files, and a manifest that says what they cover.

Layout: ``<run>/checkpoints/<number>/<file>`` and, last of all, ``<run>/checkpoints/<number>/manifest/<its SHA-256>``, so that
the manifest too is verified when it is read; a checkpoint without one does not exist. Files are streamed, never whole in
memory. Nothing is pickled.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import structlog

from distrl.core.contracts.bus import TopicPartition
from distrl.core.contracts.events import Envelope, Priority
from distrl.core.contracts.store import BlobRef, BlobStore
from distrl.core.errors import CheckpointError, StoreError
from distrl.core.runtime.disk import writing

log = structlog.get_logger(__name__)
FORMAT = 1
FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
MANIFEST = "manifest"
PER_EPOCH = 1_000_000
"""Numbers that one epoch's checkpoints may take."""
Place = tuple[str, int, int]
"""Topic, partition and offset of a record."""


@dataclass(frozen=True, slots=True)
class Covered:
    """What a checkpoint covers of the log."""

    epoch: int
    version: int
    """The newest version published when it was made."""
    ingested: int
    """Distinct trajectories of the policy that were ingested."""
    positions: dict[TopicPartition, int]
    """Per partition, the offset to read on from."""
    buffer: dict[str, Place]
    """Where the trajectories in the buffer are on the log, by id."""
    seen: Sequence[str] = ()
    """Ids ingested lately: those that may be delivered again."""
    artefacts: Sequence[str] = ()
    """Keys of what the trajectories in the buffer refer to, so that it stays when retention has taken their events."""
    priorities: Sequence[Priority] = ()
    """The newest of each trajectory that is in the buffer or still to come: an older one that comes again is recognised by it."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint, as found in the store."""

    number: int
    covered: Covered
    files: Mapping[str, BlobRef] = field(default_factory=dict)


class Checkpoints:
    """The checkpoints of one run. Used by one learner at a time."""

    def __init__(self, store: BlobStore, run: str, *, kept: int) -> None:
        self._store = store
        self._run = run
        self._prefix = f"{run}/checkpoints/"
        self._kept = kept

    def newest(self, directory: Path | None = None) -> Checkpoint | None:
        """The newest complete checkpoint, or ``None``. One whose manifest, or a file of which, cannot be read is passed over
        with a warning. With ``directory`` its files are brought there, verified."""
        for number in sorted(self._numbers(), reverse=True):
            try:
                checkpoint = self._read(number)
                if directory is not None:
                    self.fetch(checkpoint, directory)
                return checkpoint
            except (CheckpointError, StoreError) as error:
                if error.retriable:
                    raise
                log.warning("passed over a checkpoint", number=number, error=str(error))
        return None

    def save(self, covered: Covered, write: Callable[[Path], None], directory: Path) -> int:
        """Let ``write`` fill ``directory`` (made empty), then store its files and the manifest; returns the number.

        Older checkpoints beyond those kept are removed afterwards.
        """
        directory.mkdir(parents=True, exist_ok=True)
        for old in directory.iterdir():
            old.unlink()
        with writing("a checkpoint", directory):
            write(directory)
        numbers = self._numbers(complete=False)
        # The epoch leads: what a replaced learner still writes never ranks above its successor's.
        lowest = covered.epoch * PER_EPOCH
        number = max((other for other in numbers if other < lowest + PER_EPOCH), default=0)
        number = max(number, lowest) + 1
        lower = {other for other in numbers if other < number}
        files: dict[str, Any] = {}
        for path in sorted(directory.iterdir()):
            ref = self._store.put_file(self._key(number, path.name), path, media_type="application/octet-stream")
            files[path.name] = asdict(ref)
        manifest = {
            "format": FORMAT,
            "run": self._run,
            "epoch": covered.epoch,
            "version": covered.version,
            "ingested": covered.ingested,
            "positions": [[*partition, offset] for partition, offset in sorted(covered.positions.items())],
            "buffer": covered.buffer,
            "seen": list(covered.seen),
            "artefacts": sorted(set(covered.artefacts)),
            "priorities": [
                [
                    priority.trajectory_id,
                    priority.prioritizer,
                    priority.priority,
                    priority.version,
                    priority.envelope.time_ms,
                    priority.envelope.event_id,
                ]
                for priority in covered.priorities
            ],
            "files": files,
        }
        self._store.put_content(
            self._key(number, MANIFEST), json.dumps(manifest).encode(), media_type="application/json"
        )
        # What was cut short is none of those kept.
        older = sorted(lower & self._numbers(), reverse=True)
        self._remove(sorted(lower - set(older[: self._kept - 1])))
        return number

    def kept(self) -> list[Checkpoint]:
        """The newest complete checkpoints that can be read, as many as are kept, newest first. Raises what is retriable."""
        found: list[Checkpoint] = []
        for number in sorted(self._numbers(), reverse=True):
            try:
                found.append(self._read(number))
            except (CheckpointError, StoreError) as error:
                if error.retriable:
                    raise
            if len(found) == self._kept:
                break
        return found

    def fetch(self, checkpoint: Checkpoint, directory: Path) -> None:
        """Bring the files of a checkpoint, verified, into ``directory``."""
        directory.mkdir(parents=True, exist_ok=True)
        for left in directory.glob(".*.part"):  # of a fetch that a kill cut short
            left.unlink()
        for name, ref in checkpoint.files.items():
            self._store.get_file(ref, directory / name)

    def _key(self, number: int, name: str) -> str:
        return f"{self._prefix}{number:014d}/{name}"

    def _numbers(self, *, complete: bool = True) -> set[int]:
        numbers: set[int] = set()
        for stat in self._store.list(self._prefix):
            number, _, name = stat.key.removeprefix(self._prefix).partition("/")
            if number.isdecimal() and (not complete or name.startswith(f"{MANIFEST}/")):
                numbers.add(int(number))
        return numbers

    def _read(self, number: int) -> Checkpoint:
        found = list(self._store.list(f"{self._key(number, MANIFEST)}/"))
        if len(found) != 1:
            raise CheckpointError(f"checkpoint {number} has {len(found)} manifests, not one")
        digest = found[0].key.rpartition("/")[2]
        data = self._store.get(BlobRef(self._store.bucket, found[0].key, found[0].size, digest, "application/json"))
        try:
            manifest = json.loads(data)
            if manifest["format"] != FORMAT or manifest["run"] != self._run:
                raise CheckpointError(f"checkpoint {number} is of format {manifest['format']}, run {manifest['run']!r}")
            files = {str(name): BlobRef(**ref) for name, ref in manifest["files"].items()}
            covered = Covered(
                epoch=int(manifest["epoch"]),
                version=int(manifest["version"]),
                ingested=int(manifest["ingested"]),
                positions={
                    TopicPartition(str(topic), int(partition)): int(offset)
                    for topic, partition, offset in manifest["positions"]
                },
                buffer={
                    str(identity): (str(where[0]), int(where[1]), int(where[2]))
                    for identity, where in manifest["buffer"].items()
                },
                seen=[str(identity) for identity in manifest["seen"]],
                artefacts=[str(key) for key in manifest.get("artefacts", ())],
                priorities=[
                    Priority(
                        Envelope(str(event_id), self._run, "", int(time_ms)),
                        str(identity),
                        str(prioritizer),
                        float(priority),
                        int(version),
                    )
                    for identity, prioritizer, priority, version, time_ms, event_id in manifest.get("priorities", ())
                ],
            )
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError) as error:
            raise CheckpointError(f"checkpoint {number} has a manifest that cannot be read: {error}") from error
        for name, ref in files.items():
            if not FILE_NAME.fullmatch(name) or ref.key != self._key(number, name):
                raise CheckpointError(f"checkpoint {number} names a file {name[:50]!r}")
        return Checkpoint(number, covered, files)

    def _remove(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            # The manifest goes first: without it the rest is no checkpoint, should this be cut short.
            stats = list(self._store.list(f"{self._prefix}{number:014d}/"))
            for stat in sorted(stats, key=lambda stat: f"/{MANIFEST}/" not in stat.key):
                self._store.delete(stat.key)
