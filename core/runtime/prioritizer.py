"""The prioritizer's loop: judged trajectories and the learner's feedback in, priorities out.

Its state is a view of the log. A trajectory is acknowledged once its priority is on the log; verdicts are read again
from the start of a partition whenever the node is assigned it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from typing import TypeVar

import structlog

from distrl.core.codec import derived_id
from distrl.core.contracts.bus import Record, TopicPartition
from distrl.core.contracts.events import Event, Feedback, Priority, Reward, Trajectory
from distrl.core.contracts.metric import DUPLICATES, UNJUDGED
from distrl.core.contracts.role import Prioritizer
from distrl.core.errors import DistrlError, InvalidEventError
from distrl.core.runtime.event_reader import EventReader, Received
from distrl.core.runtime.event_writer import is_environmental
from distrl.core.runtime.idle import IdleWatch
from distrl.core.runtime.join import Join, Joined
from distrl.core.runtime.node import Node
from distrl.core.runtime.seen import Seen

log = structlog.get_logger(__name__)
T = TypeVar("T")


def run(node: Node) -> None:
    """Prioritize until the node stops."""
    loop = PrioritizerLoop(node)
    with closing(loop.idle):
        loop.run()


class PrioritizerLoop:
    """One prioritizer node's work."""

    def __init__(self, node: Node) -> None:
        self._node = node
        config = node.config
        self._plugin: Prioritizer = node.create("prioritizer", config.prioritizer.plugin, config.prioritizer.options)
        self._join = Join(
            evaluator=config.training_evaluator,
            version_pattern=config.learner.evaluator_version,
            patience_s=config.prioritizer.verdict_seconds,
            clock=node.clock,
        )
        self._seen = Seen(100_000)
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
            reader = EventReader(
                consumer, node.codec, node.writer, run=node.run, clock=node.clock, activity=node.activity
            )
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
        arrived: list[Joined] = []
        feedback: list[Feedback] = []
        done: list[Record] = []
        for item in batch:
            match item.event:
                case Trajectory() as event:
                    if event.outcome == "aborted":
                        done.append(item.record)
                    elif event.trajectory_id in self._seen or self._join.repeats(event, item.record):
                        self._node.activity.count(DUPLICATES)
                        done.append(item.record)
                    elif (joined := self._join.trajectory(event, item.record)) is not None:
                        arrived.append(joined)
                case Reward() as event:
                    done.append(item.record)
                    if (joined := self._join.reward(event)) is not None:
                        arrived.append(joined)
                case Feedback() as event:
                    done.append(item.record)
                    if event.kind in ("trained", "rescanned"):
                        feedback.append(event)
                case other:
                    reader.refuse(item.record, InvalidEventError(f"a {type(other).__name__} does not belong here"))
        priorities = [*self._arrived(reader, arrived), *self._refreshed(feedback)]
        self._node.writer.send_all(priorities)
        for joined in arrived:
            self._seen.add(joined.experience.trajectory.trajectory_id)
            done.append(joined.record)
        reader.ack(done)
        if priorities:
            self._node.plugins.observe(
                "distrl_on_priorities", priorities={event.trajectory_id: event.priority for event in priorities}
            )

    def _arrived(self, reader: EventReader, batch: Sequence[Joined]) -> list[Priority]:
        """Priorities of new trajectories. One that the plugin cannot judge goes to the dead letters alone."""
        if not batch:
            return []
        pairs = [(joined.experience.trajectory, joined.experience.reward) for joined in batch]
        try:
            values = self._asked(lambda: self._plugin.arrived(pairs), len(pairs))
        except DistrlError as error:
            if is_environmental(error):
                raise
            if len(batch) == 1:
                self._node.writer.dead_letter(batch[0].record, error)
                return []
            return [priority for joined in batch for priority in self._arrived(reader, [joined])]
        return [
            self._priority(
                trajectory.trajectory_id, value, trajectory.version, "arrived", trajectory.envelope.traceparent
            )
            for (trajectory, _), value in zip(pairs, values, strict=True)
        ]

    def _refreshed(self, batch: Sequence[Feedback]) -> list[Priority]:
        """Priorities after feedback. Where the plugin fails the former ones stand; the next feedback asks again."""
        if not batch:
            return []
        try:
            values = self._asked(lambda: self._plugin.refreshed(batch), len(batch))
        except InvalidEventError as error:
            log.error("priorities could not be refreshed", error=str(error))
            return []
        return [
            self._priority(
                event.trajectory_id, value, event.version, event.envelope.event_id, event.envelope.traceparent
            )
            for event, value in zip(batch, values, strict=True)
            if value is not None
        ]

    def _asked(self, ask: Callable[[], Sequence[T]], count: int) -> Sequence[T]:
        """The plugin's answer, one value an event. What it raises besides ``DistrlError`` is its fault: ``InvalidEventError``."""
        try:
            values = ask()
        except DistrlError:
            raise
        except Exception as error:
            raise InvalidEventError(
                f"prioritizer {self._plugin.name!r} raised {type(error).__name__}: {error}"
            ) from error
        if len(values) != count:
            raise InvalidEventError(f"prioritizer {self._plugin.name!r} gave {len(values)} values for {count} events")
        return values

    def _priority(self, trajectory_id: str, value: float, version: int, cause: str, parent: str) -> Priority:
        name = self._plugin.name
        if not (math.isfinite(value) and value >= 0):
            # One odd number must not stop the role: the learner's rescan will ask again.
            log.warning("a priority is not a finite number above 0", prioritizer=name, value=value)
            value = 0.0
        identity = derived_id("priority", trajectory_id, name, cause)
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
