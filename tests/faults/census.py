"""What a run's log says of every episode, followed while faults happen, and what must never be seen in it.

Loss is measured against the simulated phones' own ledgers, which are written outside the log.
"""

from __future__ import annotations

import math
import threading
import time
from collections import defaultdict
from collections.abc import Set
from pathlib import Path

from distrl.connectors import open_bus
from distrl.connectors.ledger import read_ledger
from distrl.core.codec import Codec
from distrl.core.config import Config
from distrl.core.contracts.bus import Consumer, Record, Start, TopicPartition
from distrl.core.contracts.clock import SystemClock
from distrl.core.contracts.events import (
    DeadLetter,
    Event,
    Feedback,
    NodeStatus,
    Priority,
    Reward,
    Trajectory,
    WeightsUpdate,
)
from distrl.core.contracts.topic import TopicName
from distrl.core.errors import CodecError, DistrlError

TOPICS = ("trajectories", "rewards", "priorities", "feedback", "weights", "nodes", "dead-letters")


class Census:
    """Reads a run's topics from a thread of its own, over outages, until it is closed."""

    def __init__(self, config: Config, ledgers: Path, codec: Codec) -> None:
        self._config = config
        self._ledgers = ledgers
        self._codec = codec
        self._topic = TopicName(config.run.name)
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._positions: dict[TopicPartition, int] = {}
        self._trajectories: dict[str, Trajectory] = {}
        self._rewards: defaultdict[str, set[str]] = defaultdict(set)
        self._prioritized: set[str] = set()
        self._ingested: set[str] = set()
        self._dead: dict[str, DeadLetter] = {}
        self._statuses: dict[str, NodeStatus] = {}
        self._heard: dict[str, float] = {}
        self._acting: dict[tuple[str, str], tuple[int, int]] = {}
        self._weights: tuple[int, int] = (0, -1)
        self._counted = 0
        self.violations: list[str] = []
        """What must never happen and did, as it was seen."""
        self.unreadable = 0
        """Records that are no events: poison that a fault put there."""
        self._thread = threading.Thread(target=self._follow, name="census", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join(timeout=30)

    # --- what it says -----------------------------------------------------------------------------

    def ledger(self) -> Set[str]:
        """Episodes that the phones know to be finished, now."""
        return read_ledger(self._ledgers).finished

    def unsettled(self, episodes: Set[str]) -> dict[str, set[str]]:
        """Which of these finished episodes are not yet collected, evaluated, prioritized, ingested; empty when all are."""
        with self._lock:
            missing = {
                "collected": set(episodes - self._trajectories.keys()),
                "evaluated": set(episodes - self._rewards.keys()),
                "prioritized": set(episodes - self._prioritized),
                "ingested": set(episodes - self._ingested),
            }
        return {stage: ids for stage, ids in missing.items() if ids}

    def dead_letters(self) -> list[DeadLetter]:
        with self._lock:
            return list(self._dead.values())

    def progress(self) -> int:
        """Distinct trajectories ingested so far."""
        with self._lock:
            return len(self._ingested)

    def counts(self) -> dict[str, int]:
        """Distinct finished trajectories collected, evaluated, ingested, and what the learner itself counted of the policy's."""
        with self._lock:
            finished = {i for i, t in self._trajectories.items() if t.outcome != "aborted"}
            policy = {i for i in finished if self._trajectories[i].origin == "policy"}
            return {
                "collected": len(finished),
                "evaluated": len(finished & self._rewards.keys()),
                "ingested": len(finished & self._ingested),
                "policy": len(policy),
                "counted": self._counted,
                "aborted": len(self._trajectories) - len(finished),
            }

    def nodes(self, role: str, *, since: float = -math.inf) -> list[NodeStatus]:
        """Nodes of the role that gave a sign of life in the last seconds, and after ``since`` (``time.monotonic``);
        demonstrators left out."""
        since = max(since, time.monotonic() - 3.0)
        with self._lock:
            return [
                status
                for node, status in self._statuses.items()
                if status.role == role and status.plugin != "demonstrator" and self._heard[node] > since
            ]

    # --- reading ----------------------------------------------------------------------------------

    def _follow(self) -> None:
        while not self._closed.is_set():
            try:
                with (
                    open_bus(self._config.bus, clock=SystemClock(), client_id="census") as bus,
                    bus.consumer(
                        [self._topic(topic) for topic in TOPICS], start=Start.at_offsets(self._positions)
                    ) as consumer,
                ):
                    self._read(consumer)
            except DistrlError:
                self._closed.wait(0.5)  # the log is away, or not there yet

    def _read(self, consumer: Consumer) -> None:
        while not self._closed.is_set():
            for record in consumer.poll(0.5):
                self._take(record)  # or, with the registry away, it is read again
                self._positions[record.topic_partition] = record.offset + 1

    def _take(self, record: Record) -> None:
        with self._lock:
            if record.value is None:
                self._statuses.pop((record.key or b"").decode("utf-8", "replace"), None)
                return
            try:
                event = self._codec.decode(record.value, headers=record.headers)
            except CodecError:
                self.unreadable += 1
                return
            if event.envelope.run == self._config.run.name:
                self._look(event, record)

    def _look(self, event: Event, record: Record) -> None:
        match event:
            case Trajectory():
                self._trajectories.setdefault(event.trajectory_id, event)
            case Reward() if event.evaluator == self._config.training_evaluator:
                self._rewards[event.trajectory_id].add(event.envelope.event_id)
                if len(self._rewards[event.trajectory_id]) > 1:
                    self.violations.append(f"{event.trajectory_id} was judged twice, under two ids")
            case Priority():
                self._prioritized.add(event.trajectory_id)
            case Feedback(kind="ingested"):
                self._ingested.add(event.trajectory_id)
            case WeightsUpdate():
                self._look_at_weights(event)
            case DeadLetter():
                self._dead[event.envelope.event_id] = event
            case NodeStatus():
                self._look_at_node(event)
            case _:
                pass

    def _look_at_weights(self, event: WeightsUpdate) -> None:
        version = (event.epoch, event.version)
        if version <= self._weights:
            # A repeat, or what a replaced learner had sent: readers pass it over.
            return
        if event.version <= self._weights[1]:
            self.violations.append(f"weights went back: version {version} after {self._weights}")
        self._weights = version
        self._counted = event.ingested
        policy = sum(item.origin == "policy" and item.outcome != "aborted" for item in self._trajectories.values())
        # The topics are read side by side, so what was just counted may not have been read here yet: look at the end too.
        if event.ingested > policy + 1000:
            self.violations.append(f"the learner counts {event.ingested} episodes, the log holds {policy}")

    def _look_at_node(self, event: NodeStatus) -> None:
        node = event.envelope.node
        self._statuses[node] = event
        self._heard[node] = time.monotonic()
        acting, start = (event.epoch, event.version), (node, event.incarnation)
        if event.role == "collector":
            if acting < self._acting.get(start, (0, 0)):
                self.violations.append(f"{node} acts with {acting} after {self._acting[start]}")
            self._acting[start] = acting
