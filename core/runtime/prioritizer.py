"""The prioritizer's loop: judged trajectories and the learner's feedback in, priorities out.

Its state is a view of the log. A trajectory is acknowledged once its priority is on the log; verdicts are read again
from the start of a partition whenever the node is assigned it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from functools import partial
from typing import TypeVar

import structlog

from distrl.core.codec import derived_id
from distrl.core.contracts.bus import Record, TopicPartition
from distrl.core.contracts.events import Event, Feedback, Priority, Reward, Trajectory
from distrl.core.contracts.metric import DUPLICATES, UNJUDGED
from distrl.core.contracts.role import Prioritizer
from distrl.core.errors import DistrlError, InvalidEventError
from distrl.core.runtime.batch import Untried, outcomes
from distrl.core.runtime.event_reader import EventReader, Received
from distrl.core.runtime.idle import IdleWatch
from distrl.core.runtime.join import Join, Joined
from distrl.core.runtime.newest import Newest, arrival_id, feedback_order
from distrl.core.runtime.node import Node
from distrl.core.runtime.seen import Seen
from distrl.core.runtime.worker import Worker

log = structlog.get_logger(__name__)
SEEN_CAPACITY = 200_000
"""Ids of trajectories and of feedback together. What comes again later than that is answered again, with the same id."""
T = TypeVar("T")


def run(node: Node) -> None:
    """Prioritize until the node stops."""
    with Worker("prioritizer") as worker:
        loop = PrioritizerLoop(node, worker)
        with closing(loop.idle):
            loop.run()


class PrioritizerLoop:
    """One prioritizer node's work. The plugin lives in ``worker``."""

    def __init__(self, node: Node, worker: Worker) -> None:
        self._node = node
        self._worker = worker
        config = node.config
        self._plugin: Prioritizer = worker.call(
            lambda: node.create("prioritizer", config.prioritizer.plugin, config.prioritizer.options)
        )
        self._join = Join(
            evaluator=config.training_evaluator,
            version_pattern=config.learner.evaluator_version,
            patience_s=config.prioritizer.verdict_seconds,
            clock=node.clock,
        )
        self._seen = Seen(SEEN_CAPACITY)
        """Trajectories whose arrival was answered, and feedback that was."""
        self._feedback: Newest[Feedback] = Newest(SEEN_CAPACITY, feedback_order)
        self._rewind: set[TopicPartition] = set()
        self.idle = IdleWatch(node)

    def run(self) -> None:
        node = self._node
        topics = [node.topic(name) for name in ("trajectories", "rewards", "feedback")]
        with node.bus.consumer(
            topics,
            group=node.group(node.config.prioritizer.plugin),
            member=node.node_id,
            on_assign=self._on_assign,
            on_revoke=self._on_revoke,
        ) as consumer:
            reader = node.reader(consumer, node.config.prioritizer)
            node.view.state = "running"
            while not node.stop.is_set():
                with node.activity.span("verdicts" if self._join.waiting else "trajectories"):
                    received = reader.poll(0.5)
                rewind_verdicts(reader, self._rewind)
                if received:
                    self.idle.fed()
                    with node.activity.span("busy"), node.activity.timed("records"):
                        self._handle(reader, received)
                else:
                    self.idle.idle(unjudged=self._join.waiting)
                self._let_go(reader)
                consumer.commit()

    def _handle(self, reader: EventReader, batch: Sequence[Received[Event]]) -> None:
        arrived: dict[str, Joined] = {}
        feedback: dict[str, Received[Feedback]] = {}
        done: list[Record] = []
        for item in batch:
            match item.event:
                case Trajectory() as event:
                    identity = event.trajectory_id
                    if event.outcome == "aborted":
                        done.append(item.record)
                    elif identity in self._seen or identity in arrived or self._join.repeats(event, item.record):
                        self._node.activity.count(DUPLICATES)
                        done.append(item.record)
                    elif (joined := self._join.trajectory(event, item.record)) is not None:
                        arrived[identity] = joined
                case Reward() as event:
                    done.append(item.record)
                    if (joined := self._join.reward(event)) is not None:
                        arrived[event.trajectory_id] = joined
                case Feedback() as event:
                    identity = event.envelope.event_id
                    if event.kind not in ("trained", "rescanned"):
                        done.append(item.record)
                    elif identity in self._seen or identity in feedback or self._is_old(event):
                        self._node.activity.count(DUPLICATES)
                        done.append(item.record)
                    else:
                        feedback[identity] = Received(item.record, event)
                case other:
                    reader.refuse(item.record, InvalidEventError(f"a {type(other).__name__} does not belong here"))
        self._answer(reader, list(arrived.values()), list(feedback.values()), done)

    def _answer(
        self,
        reader: EventReader,
        arrived: Sequence[Joined],
        feedback: list[Received[Feedback]],
        done: list[Record],
    ) -> None:
        """Ask the plugin, send the priorities, then acknowledge, with ``done``, what they answer."""
        priorities: list[Priority] = []
        answered: list[str] = []
        not_done: list[tuple[Record, DistrlError | Untried]] = []
        for joined, value in zip(arrived, outcomes(arrived, partial(self._ask_arrived, reader)), strict=True):
            trajectory = joined.experience.trajectory
            if isinstance(value, DistrlError | Untried):
                not_done.append((joined.record, value))
                continue
            identity = arrival_id(trajectory.trajectory_id, self._plugin.name)
            trace = trajectory.envelope.traceparent
            priorities.append(self._priority(identity, trajectory.trajectory_id, value, trajectory.version, trace))
            answered.append(trajectory.trajectory_id)
            done.append(joined.record)
        # Of several words on one trajectory the newest counts, whatever order they came in.
        feedback.sort(key=lambda item: feedback_order(item.event))
        newest: dict[str, Priority] = {}
        for item, number in zip(feedback, outcomes(feedback, partial(self._ask_refreshed, reader)), strict=True):
            event = item.event
            if isinstance(number, DistrlError | Untried):
                not_done.append((item.record, number))
                continue
            if number is not None:
                identity = derived_id("priority", event.trajectory_id, self._plugin.name, event.envelope.event_id)
                trace = event.envelope.traceparent
                newest[event.trajectory_id] = self._priority(
                    identity, event.trajectory_id, number, event.version, trace
                )
            self._feedback.offer(event)
            answered.append(event.envelope.event_id)
            done.append(item.record)
        priorities += newest.values()
        self._node.writer.send_all(priorities)
        for identity in answered:
            self._seen.add(identity)
        reader.ack(done)
        for record, why in not_done:
            reader.not_done(record, why)
        if answered:
            reader.succeeded()
        if priorities:
            self._node.plugins.observe(
                "distrl_on_priorities", priorities={event.trajectory_id: event.priority for event in priorities}
            )

    def _is_old(self, event: Feedback) -> bool:
        """Whether newer feedback on its trajectory was answered already."""
        known = self._feedback.get(event.trajectory_id)
        return known is not None and feedback_order(event) < feedback_order(known)

    def _ask_arrived(self, reader: EventReader, batch: Sequence[Joined]) -> Sequence[float]:
        pairs = [(joined.experience.trajectory, joined.experience.reward) for joined in batch]
        return self._asked(reader, lambda: self._plugin.arrived(pairs), len(pairs))

    def _ask_refreshed(self, reader: EventReader, batch: Sequence[Received[Feedback]]) -> Sequence[float | None]:
        events = [item.event for item in batch]
        return self._asked(reader, lambda: self._plugin.refreshed(events), len(events))

    def _asked(self, reader: EventReader, ask: Callable[[], Sequence[T]], count: int) -> Sequence[T]:
        """The plugin's answer, one value an event. What it raises besides ``DistrlError`` is its fault: ``InvalidEventError``."""
        name = self._plugin.name
        try:
            values = reader.attend(self._worker, ask)
        except DistrlError:
            raise
        except Exception as error:
            raise InvalidEventError(f"prioritizer {name!r} raised {type(error).__name__}: {error}") from error
        if len(values) != count:
            raise InvalidEventError(f"prioritizer {name!r} gave {len(values)} values for {count} events")
        return values

    def _priority(self, identity: str, trajectory_id: str, value: float, version: int, parent: str) -> Priority:
        name = self._plugin.name
        if not (math.isfinite(value) and value >= 0):
            # One odd number must not stop the role: the learner's rescan will ask again.
            log.warning("a priority is not a finite number above 0", prioritizer=name, value=value)
            value = 0.0
        return Priority(
            envelope=self._node.writer.envelope(identity, parent=parent),
            trajectory_id=trajectory_id,
            prioritizer=name,
            priority=value,
            version=version,
        )

    def _let_go(self, reader: EventReader) -> None:
        records = self._join.expired()
        if records:
            log.warning("no verdict came in time", trajectories=len(records))
            self._node.activity.count(UNJUDGED, len(records))
            reader.ack(records)

    def _on_assign(self, partitions: Collection[TopicPartition]) -> None:
        rewards = self._node.topic("rewards")
        self._rewind.update(partition for partition in partitions if partition.topic == rewards)

    def _on_revoke(self, partitions: Collection[TopicPartition]) -> None:
        self._join.forget(partitions)


def rewind_verdicts(reader: EventReader, partitions: set[TopicPartition]) -> None:
    """Read the verdicts of newly assigned partitions from their start; empties ``partitions``."""
    if not partitions:
        return
    beginnings = reader.consumer.beginning_offsets()
    reader.seek({partition: beginnings[partition] for partition in partitions & reader.consumer.assignment()})
    partitions.clear()
