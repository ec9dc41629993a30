"""The evaluator's loop: trajectories in, verdicts out. A record is acknowledged once its verdict is on the log."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing

from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_exponential

from distrl.core.codec import derived_id
from distrl.core.contracts.events import Event, Reward, Trajectory
from distrl.core.contracts.metric import DUPLICATES
from distrl.core.contracts.role import Evaluator, Verdict
from distrl.core.errors import DistrlError, InvalidEventError
from distrl.core.runtime.event_reader import EventReader, Received
from distrl.core.runtime.event_writer import is_environmental, is_retriable
from distrl.core.runtime.idle import IdleWatch
from distrl.core.runtime.node import Node
from distrl.core.runtime.seen import Seen

SEEN_CAPACITY = 100_000


def run(node: Node) -> None:
    """Judge until the node stops."""
    config = node.config.evaluator
    plugin: Evaluator = node.create("evaluator", config.plugin, config.options)
    judge = Judge(node, plugin)
    with ExitStack() as stack:
        consumer = stack.enter_context(
            node.bus.consumer(
                [node.topic("trajectories")],
                group=node.group(config.plugin),
                member=node.node_id,
                assignment="cooperative",  # a verdict needs its trajectory alone
            )
        )
        reader = EventReader(consumer, node.codec, node.writer, run=node.run, clock=node.clock, activity=node.activity)
        idle = stack.enter_context(closing(IdleWatch(node)))
        node.view.state = "running"
        while not node.stop.is_set():
            with node.activity.span("trajectories"):
                received = reader.poll(0.5, config.batch)
            if not received:
                idle.idle()
                continue
            idle.fed()
            with node.activity.span("busy"), node.activity.timed("records"):
                judge.handle(reader, received)
                consumer.commit()


class Judge:
    """Turns batches of trajectories into verdicts on the log."""

    def __init__(self, node: Node, plugin: Evaluator) -> None:
        self._node = node
        self._plugin = plugin
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
        rewards: list[Reward] = []
        try:
            for item, verdict in zip(due, self._verdicts(reader, due), strict=True):
                if verdict is not None:
                    rewards.append(self._reward(item.event, verdict))
            self._node.writer.send_all(rewards)
        except BaseException:
            for item in due:
                self._seen.discard(item.event.trajectory_id)
            raise
        reader.ack(item.record for item in due)
        if rewards:
            self._node.plugins.observe("distrl_on_rewards", batch=rewards)

    def _verdicts(self, reader: EventReader, due: Sequence[Received[Trajectory]]) -> list[Verdict | None]:
        """A verdict each; ``None`` where there is none and the record went to the dead letters."""
        if not due:
            return []
        try:
            return list(self._evaluate([item.event for item in due]))
        except DistrlError as error:
            if is_environmental(error):
                raise
            if len(due) == 1:
                self._node.writer.dead_letter(due[0].record, error)
                return [None]
        return [verdict for item in due for verdict in self._verdicts(reader, [item])]

    def _evaluate(self, batch: Sequence[Trajectory]) -> Sequence[Verdict]:
        """Call the plugin, again with back-off where that may help. What is not a ``DistrlError`` is the plugin's fault."""
        node = self._node
        for attempt in Retrying(
            retry=retry_if_exception(is_retriable),
            wait=wait_exponential(multiplier=0.2, max=10.0),
            stop=stop_after_delay(node.config.run.watchdog_seconds),
            sleep=node.clock.sleep,
            reraise=True,
        ):
            with attempt:
                try:
                    verdicts = self._plugin.evaluate(batch)
                except DistrlError:
                    raise
                except Exception as error:
                    raise InvalidEventError(
                        f"evaluator {self._plugin.name!r} raised {type(error).__name__}: {error}"
                    ) from error
                if len(verdicts) != len(batch):
                    raise InvalidEventError(
                        f"evaluator {self._plugin.name!r} gave {len(verdicts)} verdicts for {len(batch)} trajectories"
                    )
                for verdict in verdicts:
                    if not 0.0 <= verdict.success <= 1.0:
                        raise InvalidEventError(
                            f"evaluator {self._plugin.name!r} gave a success of {verdict.success}, which is not from 0 to 1"
                        )
                return verdicts
        raise AssertionError("tenacity re-raises")

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
