"""The learner's loop: judged trajectories and priorities in; weights, feedback and checkpoints out.

What it holds is a view of the log: a checkpoint names the positions it covers and the trajectories in the buffer, which
are read back from the log after a restart. Offsets are committed at a checkpoint. Versions go on from the log's
highest; the epoch grows with every start, and the fence lets only the newest learner write.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import structlog

from distrl.core.codec import derived_id
from distrl.core.contracts.bus import Consumer, TopicPartition
from distrl.core.contracts.events import Event, Feedback
from distrl.core.contracts.metric import LEARNER
from distrl.core.contracts.policy import TrainablePolicy
from distrl.core.contracts.role import Learner, Numbers, UpdateResult, Wanted
from distrl.core.errors import BusUnavailableError, DistrlError, is_retriable
from distrl.core.runtime.checkpoint import Checkpoint, Checkpoints
from distrl.core.runtime.event_reader import EventReader, Received
from distrl.core.runtime.event_writer import EventWriter
from distrl.core.runtime.idle import told
from distrl.core.runtime.ingestion import Ingestion
from distrl.core.runtime.join import Join
from distrl.core.runtime.liveness import LiveNodes
from distrl.core.runtime.node import Node
from distrl.core.runtime.pacer import Pacer
from distrl.core.runtime.restore import read_back
from distrl.core.runtime.watchdog import Missing, Watchdog
from distrl.core.runtime.weights import WeightsPublisher, newest_weights

log = structlog.get_logger(__name__)


def run(node: Node) -> None:
    """Learn until the node stops, then keep a last checkpoint."""
    with node.bus.producer(fence=f"distrl.{node.run}.learner") as producer:
        writer = EventWriter(
            producer,
            node.codec,
            run=node.run,
            node=node.node_id,
            role=node.role,
            clock=node.clock,
            activity=node.activity,
            stop=node.stop,
            patience_s=node.config.run.watchdog_seconds,
        )
        loop = LearnerLoop(node, writer)
        try:
            loop.run()
        finally:
            loop.close()


class LearnerLoop:
    """One learner node's work. ``writer`` holds the fence: what it sends after being replaced is refused."""

    def __init__(self, node: Node, writer: EventWriter) -> None:
        self._node = node
        self._writer = writer
        config = node.config
        self._config = config.learner
        policy: TrainablePolicy = node.create("policy", config.policy.plugin, config.policy.options)
        self._learner: Learner = node.create("learner", config.learner.plugin, config.learner.options, policy)
        staleness = config.staleness(self._learner.batch)
        self._learner.use(staleness)
        self._pacer = Pacer(staleness, node.clock)
        self._join = Join(
            evaluator=config.training_evaluator,
            version_pattern=config.learner.evaluator_version,
            patience_s=config.learner.verdict_seconds,
            clock=node.clock,
        )
        # Nobody has a group on these two topics: the learner, which is one alone, tells of what cannot be read there.
        self._nodes = LiveNodes(node.bus, node.codec, node.run, node.clock, on_unreadable=writer.report)
        self._watchdog = Watchdog(node.clock, bound_s=config.run.watchdog_seconds, board=node.activity)
        self._checkpoints = Checkpoints(node.store, node.run, kept=config.learner.checkpoints_kept)
        self._ingestion = Ingestion(
            self._learner,
            self._join,
            node.artefacts,
            node.activity,
            remembered=config.learner.remembered_trajectories,
        )
        self._positions: dict[TopicPartition, int] = {}
        """Where the restored checkpoint reads on; used at the first assignment of each partition."""
        self._assigned: set[TopicPartition] = set()
        self._updates = 0

        # The fence is held from here on, so no older learner can publish behind this reading of the highest.
        newest = newest_weights(node.bus, node.codec, node.run, on_unreadable=writer.report)
        restored = node.work_dir / "restored"
        checkpoint = self._checkpoints.newest(restored)
        former_epoch = max(newest.epoch if newest else 0, checkpoint.covered.epoch if checkpoint else 0)
        former_version = max(newest.version if newest else -1, checkpoint.covered.version if checkpoint else -1)
        self._version = former_version
        self._publisher = WeightsPublisher(
            node.store,
            writer,
            run=node.run,
            policy=config.policy.plugin,
            epoch=former_epoch + 1,
            options=json.dumps(config.policy.options, sort_keys=True),
            work_dir=node.work_dir,
            patience_s=config.run.watchdog_seconds,
            kept=config.learner.weights_kept,
        )
        self._epoch = former_epoch + 1
        if checkpoint is not None:
            self._restore(checkpoint, restored)

    def run(self) -> None:
        node = self._node
        self._publish()
        node.view.state = "running"
        topics = [node.topic(name) for name in ("trajectories", "rewards", "priorities")]
        with node.bus.consumer(
            topics,
            group=node.group(self._config.plugin),
            member=node.node_id,
            on_assign=self._assigned.update,
        ) as consumer:
            reader = node.reader(consumer, self._config, writer=self._writer)
            self._last_checkpoint = node.clock.monotonic()
            node.activity.checkpointed()
            while not node.stop.is_set():
                wanted = self._learner.wanted()
                self._read(reader, wanted)
                wanted = self._learner.wanted()
                if wanted == Wanted():
                    self._watchdog.fed()
                    self._update(consumer)
                else:
                    self._starve(consumer, wanted)
                if node.clock.monotonic() - self._last_checkpoint >= self._config.checkpoint_seconds:
                    self._checkpoint(reader)
            node.view.state = "draining"
            self._checkpoint(reader)

    def close(self) -> None:
        self._nodes.close()

    # --- reading ----------------------------------------------------------------------------

    def _read(self, reader: EventReader, wanted: Wanted) -> None:
        """Take in what has come; wait for it only while there is nothing to train on."""
        activity = self._node.activity
        cause = "demonstrations" if wanted.demonstrations else "verdicts" if self._join.waiting else "trajectories"
        with activity.span("" if wanted == Wanted() else cause):
            received = reader.poll(0.0 if wanted == Wanted() else 0.2)
        if self._assigned:
            # What the poll brought of the new partitions comes again; of those held before it must be handled now.
            new = self._seek(reader)
            received = [item for item in received if item.record.topic_partition not in new]
        if received:
            with activity.span("busy"), activity.timed("records"):
                self._handle(reader, received)
        if reader.held:
            self._watchdog.fed()  # there is something to train on, and trying it again has a bound of its own
        self._ingestion.let_go()

    def _seek(self, reader: EventReader) -> set[TopicPartition]:
        """Read newly assigned partitions from where the checkpoint says, verdicts from their start; returns them."""
        rewards = self._node.topic("rewards")
        offsets = reader.consumer.beginning_offsets()
        reader.seek(
            {
                partition: max(
                    offsets[partition], 0 if partition.topic == rewards else self._positions.get(partition, 0)
                )
                for partition in self._assigned & reader.consumer.assignment()
            }
        )
        new = set(self._assigned)
        self._assigned.clear()
        return new

    def _handle(self, reader: EventReader, received: Sequence[Received[Event]]) -> None:
        new = self._ingestion.take(reader, received)
        if not new:
            return
        self._pacer.arrived(sum(trajectory.origin == "policy" for trajectory in new))
        self._watchdog.fed()
        ingested = [
            self._feedback(derived_id("ingested", trajectory.trajectory_id), trajectory.trajectory_id, "ingested")
            for trajectory in new
        ]
        self._writer.send_all([*ingested, *self._evictions()])

    # --- learning ---------------------------------------------------------------------------

    def _update(self, consumer: Consumer) -> None:
        node = self._node
        with node.activity.span("busy"), node.activity.timed("update"):
            result = self._learner.update(self._version)
        self._updates += 1
        for name, value in result.metrics.items():
            node.activity.gauge(LEARNER + name, value)
        node.plugins.observe("distrl_on_update", version=self._version, result=result)
        if result.publish:
            self._pacer.consumed()
            self._publish(consumer)
        self._writer.send_all([*self._numbers(result), *self._evictions()])

    def _publish(self, consumer: Consumer | None = None) -> None:
        """Announce the policy's weights as the next version."""
        node = self._node
        live = len(self._collectors())
        allowance = self._pacer.allowance(self._learner.wanted(), live=live, on_the_way=self._on_the_way(consumer))
        with node.activity.timed("publish"):
            update = self._publisher.publish(
                self._learner.policy,
                self._version + 1,
                ingested=self._ingestion.ingested,
                allowance=allowance,
                live_collectors=live,
                max_lag=self._config.max_lag,
            )
        self._pacer.announced(live=live, allowance=allowance)
        self._version = node.view.version = update.version
        node.view.epoch = self._epoch
        node.view.has_weights = True
        log.info("published", version=update.version, epoch=update.epoch, allowance=allowance, collectors=live)
        node.plugins.observe("distrl_on_weights", update=update)

    def _starve(self, consumer: Consumer, wanted: Wanted) -> None:
        """Nothing to train on: renew the collectors' leave where that may help, and do not wait for ever."""
        live = len(self._collectors())
        if self._pacer.must_renew(wanted, live=live):
            allowance = self._pacer.allowance(
                wanted, live=live, on_the_way=self._on_the_way(consumer), patient=not self._pacer.overdue()
            )
            self._publisher.renew(ingested=self._ingestion.ingested, allowance=allowance, live_collectors=live)
            self._pacer.announced(live=live, allowance=allowance)
        self._watchdog.hungry(lambda: self._missing(wanted))

    def _on_the_way(self, consumer: Consumer | None) -> int:
        """Trajectories on the log that are not ingested yet."""
        unread = 0
        if consumer is not None:
            trajectories = self._node.topic("trajectories")
            with contextlib.suppress(BusUnavailableError):  # then unknown: pacing errs towards collecting
                unread = sum(lag for partition, lag in consumer.lag().items() if partition.topic == trajectories)
        return self._join.waiting + unread

    def _collectors(self) -> Sequence[object]:
        """Living collectors that run the policy."""
        self._nodes.poll()
        demonstrator = self._node.config.collector.demonstrator
        return self._nodes.alive("collector", lambda status: status.plugin != demonstrator)

    def _missing(self, wanted: Wanted) -> Missing | None:
        self._nodes.poll()
        demonstrator = self._node.config.collector.demonstrator
        if wanted.demonstrations and not self._nodes.alive("collector", lambda status: status.plugin == demonstrator):
            return Missing(
                "demonstrations",
                f"{wanted.demonstrations} more demonstrations are needed and no collector that records them is alive: "
                f'run one with collector.plugin = "{demonstrator}", or lower learner.options.demonstrations',
            )
        collectors = self._nodes.alive("collector")
        if not wanted.demonstrations and not self._collectors():
            return Missing("collector", "no collector is alive (start one: distrl-node --role collector)")
        if not self._nodes.alive("evaluator"):
            return Missing("evaluator", "no evaluator is alive (start one: distrl-node --role evaluator)")
        if self._watchdog.waited_s < self._watchdog.bound_s:
            return None
        what = f"{wanted.demonstrations} demonstrations" if wanted.demonstrations else f"{wanted.policy} trajectories"
        side = "verdicts" if self._join.waiting else "trajectories"
        return Missing(side, f"{what} more, judged, do not come although evaluators are alive and {told(collectors)}")

    # --- feedback ---------------------------------------------------------------------------

    def _numbers(self, result: UpdateResult) -> Iterable[Feedback]:
        kinds: tuple[tuple[Literal["trained", "rescanned"], Sequence[Numbers]], ...] = (
            ("trained", result.trained),
            ("rescanned", result.rescanned),
        )
        for kind, numbers in ((kind, numbers) for kind, batch in kinds for numbers in batch):
            identity = derived_id(kind, numbers.trajectory_id, str(self._epoch), str(self._updates))
            yield self._feedback(identity, numbers.trajectory_id, kind, numbers=numbers)

    def _evictions(self) -> Iterable[Feedback]:
        for trajectory_id, reason in self._learner.evictions().items():
            identity = derived_id("evicted", trajectory_id, str(self._epoch))
            yield self._feedback(identity, trajectory_id, "evicted", reason=reason)
            self._ingestion.left(trajectory_id)

    def _feedback(
        self,
        identity: str,
        trajectory_id: str,
        kind: Literal["ingested", "trained", "rescanned", "evicted"],
        *,
        numbers: Numbers | None = None,
        reason: str = "",
    ) -> Feedback:
        return Feedback(
            envelope=self._writer.envelope(identity, parent=self._ingestion.traceparent(trajectory_id)),
            trajectory_id=trajectory_id,
            kind=kind,
            epoch=self._epoch,
            version=max(self._version, 0),
            mean_abs_td=numbers.mean_abs_td if numbers else None,
            mean_ratio=numbers.mean_ratio if numbers else None,
            mean_entropy=numbers.mean_entropy if numbers else None,
            reason=reason,
        )

    # --- checkpoints ------------------------------------------------------------------------

    def _checkpoint(self, reader: EventReader) -> None:
        """Make what was learned durable, then acknowledge and commit what it rests on."""
        node = self._node
        self._last_checkpoint = node.clock.monotonic()
        positions = self._ingestion.positions(reader, self._positions)
        covered = self._ingestion.covered(epoch=self._epoch, version=self._version, positions=positions)
        try:
            with node.activity.span("store"), node.activity.timed("checkpoint"):
                number = self._checkpoints.save(covered, self._learner.save, node.work_dir / "checkpoint")
        except DistrlError as error:
            if not is_retriable(error):
                raise
            log.warning("no checkpoint could be kept; it is tried again", error=str(error))
            return
        node.activity.checkpointed()
        # A partition that comes back after a rebalance is read on from here; what was done since is recognised by its id.
        self._positions = covered.positions
        self._ingestion.acknowledge(reader.consumer)
        reader.consumer.commit()
        log.info("checkpoint", number=number, version=self._version, buffer=len(covered.buffer))

    def _restore(self, checkpoint: Checkpoint, directory: Path) -> None:
        node = self._node
        covered = checkpoint.covered
        experiences = read_back(covered, self._join, node.bus, node.codec, node.artefacts, node.topic)
        self._learner.restore(directory, experiences)
        self._positions = dict(covered.positions)
        self._ingestion.restore(covered, experiences)
        log.info(
            "restored",
            checkpoint=checkpoint.number,
            version=covered.version,
            buffer=len(experiences),
            lost=len(covered.buffer) - len(experiences),
        )
