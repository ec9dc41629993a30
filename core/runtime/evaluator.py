"""The evaluator's loop: trajectories in, verdicts out. A record is acknowledged once its verdict is on the log."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing

from distrl.core.codec import derived_id
from distrl.core.contracts.events import Event, Reward, Trajectory
from distrl.core.contracts.metric import DUPLICATES
from distrl.core.contracts.role import Evaluator, Verdict
from distrl.core.errors import DistrlError, InvalidEventError
from distrl.core.runtime.batch import outcomes
from distrl.core.runtime.event_reader import EventReader, Received
from distrl.core.runtime.idle import IdleWatch
from distrl.core.runtime.node import Node
from distrl.core.runtime.seen import Seen
from distrl.core.runtime.worker import Worker

SEEN_CAPACITY = 100_000


def run(node: Node) -> None:
    """Judge until the node stops."""
    config = node.config.evaluator
    with ExitStack() as stack:
        worker = stack.enter_context(Worker("evaluator"))
        plugin: Evaluator = worker.call(lambda: node.create("evaluator", config.plugin, config.options))
        judge = Judge(node, plugin, worker)
        consumer = stack.enter_context(
            node.bus.consumer(
                [node.topic("trajectories")],
                group=node.group(config.plugin),
                member=node.node_id,
                assignment="cooperative",  # a verdict needs its trajectory alone
            )
        )
        reader = node.reader(consumer, config)
        idle = stack.enter_context(closing(IdleWatch(node)))
        node.view.state = "running"
        while not node.stop.is_set():
            with node.activity.span("trajectories"):
                received = reader.poll(0.5, config.batch)
            if received:
                idle.fed()
                with node.activity.span("busy"), node.activity.timed("records"):
                    judge.handle(reader, received)
            else:
                idle.idle()
            consumer.commit()


class Judge:
    """Turns batches of trajectories into verdicts on the log. The plugin lives in ``worker``."""

    def __init__(self, node: Node, plugin: Evaluator, worker: Worker) -> None:
        self._node = node
        self._plugin = plugin
        self._worker = worker
        self._seen = Seen(SEEN_CAPACITY)

    def handle(self, reader: EventReader, batch: Sequence[Received[Event]]) -> None:
        """Judge a batch, send the verdicts, then acknowledge. Aborted and repeated trajectories are only acknowledged."""
        due: list[Received[Trajectory]] = []
        for received in batch:
            event = received.event
            if not isinstance(event, Trajectory):
                reader.refuse(received.record, InvalidEventError(f"a {type(event).__name__} where a Trajectory is due"))
            elif event.outcome == "aborted":
                reader.ack([received.record])
            elif event.trajectory_id in self._seen:
                self._node.activity.count(DUPLICATES)
                reader.ack([received.record])
            else:
                self._seen.add(event.trajectory_id)
                due.append(Received(received.record, event))
        judged: set[str] = set()
        try:
            verdicts = outcomes(due, lambda some: reader.attend(self._worker, lambda: self._evaluate(some)))
            results = list(zip(due, verdicts, strict=True))
            rewards = [self._reward(item.event, verdict) for item, verdict in results if isinstance(verdict, Verdict)]
            self._node.writer.send_all(rewards)
            judged.update(reward.trajectory_id for reward in rewards)
        finally:
            # What is not judged must not pass for a repeat when it comes again.
            for item in due:
                if item.event.trajectory_id not in judged:
                    self._seen.discard(item.event.trajectory_id)
        for item, verdict in results:
            if isinstance(verdict, Verdict):
                reader.ack([item.record])
            else:
                reader.not_done(item.record, verdict)
        if rewards:
            reader.succeeded()
            self._node.plugins.observe("distrl_on_rewards", batch=rewards)

    def _evaluate(self, batch: Sequence[Received[Trajectory]]) -> Sequence[Verdict]:
        """Call the plugin. What it raises besides ``DistrlError``, and a verdict that is none, is its fault: ``InvalidEventError``."""
        name = self._plugin.name
        try:
            verdicts = self._plugin.evaluate([item.event for item in batch])
        except DistrlError:
            raise
        except Exception as error:
            raise InvalidEventError(f"evaluator {name!r} raised {type(error).__name__}: {error}") from error
        if len(verdicts) != len(batch):
            raise InvalidEventError(f"evaluator {name!r} gave {len(verdicts)} verdicts for {len(batch)} trajectories")
        for verdict in verdicts:
            if not 0.0 <= verdict.success <= 1.0:
                raise InvalidEventError(
                    f"evaluator {name!r} gave a success of {verdict.success}, which is not from 0 to 1"
                )
        return verdicts

    def _reward(self, event: Trajectory, verdict: Verdict) -> Reward:
        plugin = self._plugin
        identity = derived_id("reward", event.trajectory_id, plugin.name, plugin.version)
        return Reward(
            envelope=self._node.writer.envelope(identity, parent=event.envelope.traceparent),
            trajectory_id=event.trajectory_id,
            evaluator=plugin.name,
            evaluator_version=plugin.version,
            success=verdict.success,
            reason=verdict.reason,
            split=event.split,
        )
