"""What the learner takes in: each judged trajectory once by its id, and the newest priority of each. Used by the learner's loop.

The state that makes effects happen once (ids ingested, newest priorities) is kept with the effect: it goes into the checkpoint
with the buffer, and is bounded. Records are acknowledged when a checkpoint covers them.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import structlog

from distrl.core.contracts.bus import Consumer, Record, RecordPosition, TopicPartition
from distrl.core.contracts.events import Event, Priority, Reward, Trajectory
from distrl.core.contracts.metric import DUPLICATES, UNJUDGED
from distrl.core.contracts.role import Artefacts, Experience, Learner
from distrl.core.errors import DistrlError, InvalidEventError, SplitViolationError, is_retriable
from distrl.core.runtime.activity import Activity
from distrl.core.runtime.batch import AWAY, Untried
from distrl.core.runtime.blob import stored_blobs
from distrl.core.runtime.checkpoint import Covered, Place
from distrl.core.runtime.event_reader import EventReader, Received
from distrl.core.runtime.join import Join, Joined
from distrl.core.runtime.newest import Newest, priority_order
from distrl.core.runtime.restore import verify_artefacts
from distrl.core.runtime.seen import Seen

log = structlog.get_logger(__name__)
PRIORITIES = 100_000
"""Trajectories whose newest priority is remembered: those in the buffer and those that are still to come."""


@dataclass(frozen=True, slots=True)
class Buffered:
    """What the loop knows of a trajectory in the buffer."""

    place: Place
    """Where it is on the log."""
    traceparent: str
    artefacts: tuple[str, ...]
    """Keys of what it refers to in the store."""


class Ingestion:
    """Used from the learner's thread."""

    def __init__(
        self, learner: Learner, join: Join, artefacts: Artefacts, activity: Activity, *, remembered: int
    ) -> None:
        """``remembered``: ids of ingested trajectories that are kept, besides those in the buffer."""
        self._learner = learner
        self._join = join
        self._artefacts = artefacts
        self._activity = activity
        self._remembered = remembered
        self._seen = Seen(remembered)
        self._buffered: dict[str, Buffered] = {}
        self._priorities: Newest[Priority] = Newest(PRIORITIES, priority_order)
        self._done: list[RecordPosition] = []
        """Handled since the last checkpoint; acknowledged with it."""
        self.ingested = 0
        """Distinct trajectories of the policy, since the run began."""

    # --- taking in --------------------------------------------------------------------------------

    def take(self, reader: EventReader, received: Sequence[Received[Event]]) -> list[Trajectory]:
        """Handle what was read; returns the trajectories that are ingested now."""
        joined: dict[str, Joined] = {}
        news: set[str] = set()
        for item in received:
            match item.event:
                case Trajectory() as event:
                    identity = event.trajectory_id
                    if event.outcome == "aborted":
                        self._finish(item.record)
                    elif event.split == "test":
                        reader.refuse(
                            item.record,
                            SplitViolationError(f"trajectory {identity} is of the test split: never trained on"),
                        )
                    elif self._knows(identity) or identity in joined or self._join.repeats(event, item.record):
                        self._activity.count(DUPLICATES)
                        self._finish(item.record)
                    elif (pair := self._join.trajectory(event, item.record)) is not None:
                        joined[identity] = pair
                case Reward() as event:
                    self._finish(item.record)
                    if not self._knows(event.trajectory_id) and (pair := self._join.reward(event)) is not None:
                        joined[event.trajectory_id] = pair
                case Priority() as event:
                    self._finish(item.record)
                    if event.trajectory_id in self._seen and event.trajectory_id not in self._buffered:
                        continue  # it has left the buffer
                    if self._priorities.offer(event):
                        news.add(event.trajectory_id)
                    else:
                        self._activity.count(DUPLICATES)
                case other:
                    reader.refuse(item.record, InvalidEventError(f"a {type(other).__name__} does not belong here"))
        new = self._ingest(reader, list(joined.values()))
        # A priority may have come before its trajectory.
        news.update(trajectory.trajectory_id for trajectory in new)
        priorities = [priority for identity in news if (priority := self._priorities.get(identity)) is not None]
        if priorities:
            self._learner.prioritize(priorities)
        return new

    def _ingest(self, reader: EventReader, batch: Sequence[Joined]) -> list[Trajectory]:
        """Hand new experiences to the learner, one by one, so that what it refuses, or has lost its artefacts, costs itself alone."""
        new: list[Trajectory] = []
        in_a_row = 0
        for pair in batch:
            trajectory, record = pair.experience.trajectory, pair.record
            failure: DistrlError | Untried | None = Untried() if in_a_row >= AWAY else self._try(pair.experience)
            if failure is not None:
                in_a_row += isinstance(failure, DistrlError) and is_retriable(failure)
                reader.not_done(record, failure)
                continue
            in_a_row = 0
            reader.succeeded()
            self._seen.add(trajectory.trajectory_id)
            self._buffered[trajectory.trajectory_id] = _buffered(
                trajectory, (record.topic, record.partition, record.offset)
            )
            self.ingested += trajectory.origin == "policy"
            self._finish(record)
            new.append(trajectory)
        return new

    def _try(self, experience: Experience) -> DistrlError | None:
        """Ingest one; returns why it could not be. What the plugin raises besides ``DistrlError`` is its fault: ``InvalidEventError``."""
        try:
            verify_artefacts(experience.trajectory, self._artefacts)
            self._learner.ingest([experience])
        except DistrlError as error:
            return error
        except Exception as error:
            failure = InvalidEventError(f"learner {self._learner.name!r} raised {type(error).__name__}: {error}")
            failure.__cause__ = error
            return failure
        return None

    def let_go(self) -> None:
        """Give up on trajectories whose verdict does not come."""
        expired = self._join.expired()
        if expired:
            log.warning("no verdict came in time", trajectories=len(expired))
            self._activity.count(UNJUDGED, len(expired))
            for record in expired:
                self._finish(record)

    def _knows(self, trajectory_id: str) -> bool:
        return trajectory_id in self._seen or trajectory_id in self._buffered

    def _finish(self, record: Record) -> None:
        self._done.append(RecordPosition(record.topic, record.partition, record.offset))

    # --- what is in the buffer --------------------------------------------------------------------

    def traceparent(self, trajectory_id: str) -> str:
        """The trace context of a trajectory in the buffer; empty for others."""
        known = self._buffered.get(trajectory_id)
        return "" if known is None else known.traceparent

    def left(self, trajectory_id: str) -> None:
        """A trajectory has left the buffer."""
        self._buffered.pop(trajectory_id, None)
        self._priorities.forget(trajectory_id)

    # --- checkpoints ------------------------------------------------------------------------------

    def covered(self, *, epoch: int, version: int, positions: dict[TopicPartition, int]) -> Covered:
        """What a checkpoint made now covers. ``positions``: see ``positions``."""
        buffered = {
            identity: known
            for identity in self._learner.buffered()
            if (known := self._buffered.get(identity)) is not None
        }
        return Covered(
            epoch=epoch,
            version=version,
            ingested=self.ingested,
            positions=positions,
            buffer={identity: known.place for identity, known in buffered.items()},
            seen=self._seen.ids(),
            artefacts=sorted({key for known in buffered.values() for key in known.artefacts}),
            priorities=self._priorities.events(),
        )

    def positions(self, reader: EventReader, former: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Per partition, the lowest offset that a checkpoint made now does not cover.

        That of the oldest record that waits for its verdict or to be tried again, else where reading goes on. A partition that is
        not assigned now stands where the ``former`` checkpoint left it.
        """
        consumer = reader.consumer
        positions = {**former, **{part: consumer.position(part) for part in consumer.assignment()}}
        for offsets in (self._join.oldest(), reader.unhandled()):
            for partition, offset in offsets.items():
                if partition in positions:
                    positions[partition] = min(positions[partition], offset)
        return positions

    def acknowledge(self, consumer: Consumer) -> None:
        """A checkpoint is durable: what was handled until then is done."""
        for position in self._done:
            consumer.ack(position)
        self._done.clear()

    def restore(self, covered: Covered, experiences: Collection[Experience]) -> None:
        """Go on from a checkpoint whose buffer was read back as ``experiences``."""
        self._seen = Seen(self._remembered, covered.seen)
        self._priorities = Newest(PRIORITIES, priority_order, covered.priorities)
        self.ingested = covered.ingested
        self._buffered = {
            item.trajectory.trajectory_id: _buffered(item.trajectory, covered.buffer[item.trajectory.trajectory_id])
            for item in experiences
        }


def _buffered(trajectory: Trajectory, place: Place) -> Buffered:
    keys = dict.fromkeys(sys.intern(blob.key) for blob in stored_blobs(trajectory))
    return Buffered(place, trajectory.envelope.traceparent, tuple(keys))
