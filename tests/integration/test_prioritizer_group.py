"""Prioritizer nodes that come, go and die under traffic, on both logs: each trajectory and each feedback gets its priority, the
right one, whoever gives it.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import tomli_w

from distrl.connectors import open_bus
from distrl.core.codec import Codec, derived_id, event_key, event_topic
from distrl.core.config import load_config
from distrl.core.contracts.bus import Start
from distrl.core.contracts.clock import SystemClock
from distrl.core.contracts.events import Event, NodeStatus, Priority
from distrl.core.contracts.topic import TopicName
from distrl.core.runtime.scan import scan
from distrl.core.runtime.topic import declared_topics
from distrl.testing import make_envelope, make_feedback, make_reward, make_step, make_trajectory

if TYPE_CHECKING:
    from kafka_broker import KafkaServer

pytestmark = pytest.mark.timeout(300)
WAIT_S = 90.0
ROUNDS = 6
BATCH = 20


@pytest.fixture(params=["embedded", pytest.param("kafka", marks=pytest.mark.kafka)])
def bus_table(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, object]:
    """The ``[bus]`` of the run."""
    if request.param == "embedded":
        return {"path": str(tmp_path / "log"), "session_seconds": 3.0}
    server: KafkaServer = request.getfixturevalue("kafka_server")
    return {"kind": "kafka", "bootstrap": [server.bootstrap], "session_seconds": 3.0}


class Nodes:
    """Prioritizer nodes as an operator starts them, and the log from outside."""

    def __init__(self, directory: Path, bus_table: dict[str, object], stack: contextlib.ExitStack) -> None:
        self.run = f"group-{uuid.uuid4().hex[:8]}"
        self.file = directory / "run.toml"
        table = {
            "run": {"name": self.run, "directory": str(directory / "runs"), "heartbeat_seconds": 0.5},
            "bus": bus_table,
            "store": {"path": str(directory / "store")},
        }
        self.file.write_text(tomli_w.dumps(table))
        self.config = load_config(self.file)
        self.topic = TopicName(self.run)
        self.codec = Codec()
        self.output = directory / "nodes.out"
        self._stack = stack
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.bus = stack.enter_context(open_bus(self.config.bus, clock=SystemClock(), client_id="test"))
        self.bus.admin().create(declared_topics(self.config))
        self._producer = stack.enter_context(self.bus.producer())

    def start(self, name: str) -> None:
        command = [sys.executable, "-m", "distrl.core.cli.node", "--role", "prioritizer", "--config", str(self.file)]
        output = self._stack.enter_context(self.output.open("ab"))
        process = subprocess.Popen([*command, "--node-id", name], stdout=output, stderr=output, env=dict(os.environ))
        self._stack.callback(self._end, process)
        self._processes[name] = process
        self._until(lambda: process.pid in self.running(), f"{name} did not come up")

    def running(self) -> set[int]:
        """Processes that have said that they run."""
        return {e.pid for e in self.events("nodes") if isinstance(e, NodeStatus) and e.state == "running"}

    def signal(self, name: str, number: int) -> int:
        process = self._processes.pop(name)
        process.send_signal(number)
        return process.wait(WAIT_S)

    @staticmethod
    def _end(process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()

    def send(self, event: Event) -> None:
        value = self.codec.encode(event)
        self._producer.send(self.topic(event_topic(event)), value, key=event_key(event)).result(WAIT_S)

    def events(self, topic: str) -> list[Event]:
        with self.bus.consumer([self.topic(topic)], start=Start.earliest()) as consumer:
            return [event for _, event in scan(consumer, self.codec)]

    def priorities(self) -> dict[str, set[float]]:
        """By event id, what was said under it."""
        found: dict[str, set[float]] = {}
        for event in self.events("priorities"):
            assert isinstance(event, Priority)
            found.setdefault(event.envelope.event_id, set()).add(event.priority)
        return found

    def until_said(self, wanted: set[str]) -> None:
        self._until(lambda: wanted <= set(self.priorities()), f"priorities are missing of {len(wanted)}")

    def _until(self, condition: Callable[[], bool], otherwise: str) -> None:
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, f"{otherwise}: {self.output.read_text()}"
            for name, process in self._processes.items():
                assert process.poll() is None, f"{name} ended: {self.output.read_text()}"
            time.sleep(0.2)


@pytest.fixture
def nodes(tmp_path: Path, bus_table: dict[str, object]) -> Iterator[Nodes]:
    with contextlib.ExitStack() as stack:
        yield Nodes(tmp_path, bus_table, stack)


def test_priorities_are_right_while_nodes_come_go_and_die(nodes: Nodes) -> None:
    chance = random.Random(3)
    expected: dict[str, float] = {}
    late = []
    nodes.start("prioritizer-0")
    nodes.start("prioritizer-1")
    for number in range(ROUNDS * BATCH):
        value = chance.random()
        success = float(chance.random() < 0.5)
        envelope = make_envelope(f"t-{number}", run=nodes.run)
        trajectory = make_trajectory(f"t-{number}", steps=[make_step(value=value, entropy=1.0)], envelope=envelope)
        reward = make_reward(
            trajectory, success, evaluator="state", envelope=make_envelope(f"r-{number}", run=nodes.run)
        )
        feedback = make_feedback(
            f"t-{number}", mean_abs_td=value, mean_entropy=1.0, envelope=make_envelope(f"f-{number}", run=nodes.run)
        )
        expected[derived_id("priority", f"t-{number}", "dper", "arrived")] = 50 * abs(success - value) + 1 + 0.01
        expected[derived_id("priority", f"t-{number}", "dper", f"f-{number}")] = 50 * value + 1 + 0.01
        # Some verdicts come before their trajectory, some long after it, in another node's time.
        order = [trajectory, reward] if number % 2 else [reward, trajectory]
        if number % 5 == 0:
            order = [trajectory]
            late.append(reward)
        for event in [*order, feedback]:
            nodes.send(event)
        if number % BATCH == BATCH - 1:
            match number // BATCH:
                case 0:
                    nodes.until_said({derived_id("priority", "t-1", "dper", "arrived")})
                case 1:
                    nodes.signal("prioritizer-0", signal.SIGKILL)
                case 2:
                    nodes.start("prioritizer-2")
                case 3:
                    nodes.start("prioritizer-0")
                    nodes.signal("prioritizer-1", signal.SIGKILL)
                case 4:
                    assert nodes.signal("prioritizer-2", signal.SIGTERM) == 0
                    nodes.start("prioritizer-1")
            for reward in late[: len(late) // 2]:
                nodes.send(reward)
            late = late[len(late) // 2 :]
    for reward in late:
        nodes.send(reward)
    nodes.until_said(set(expected))
    said = nodes.priorities()
    assert set(said) == set(expected)
    assert {identity: [pytest.approx(value)] for identity, value in expected.items()} == {
        identity: sorted(values) for identity, values in said.items()
    }
    assert nodes.events("dead-letters") == []
