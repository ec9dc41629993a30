"""``kill -9`` of any role during a run, on both logs: the run goes on, and what the phones finished is what was learned from.

Loss is measured against the simulated phones' own ledgers, which they write outside the log.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from distrl.connectors import open_bus
from distrl.connectors.simulated_phone.ledger import read_ledger
from distrl.core.codec import Codec
from distrl.core.config import load_config
from distrl.core.contracts.bus import Start
from distrl.core.contracts.clock import SystemClock
from distrl.core.contracts.events import ROLES, Feedback, NodeStatus, Reward, Trajectory
from distrl.core.contracts.topic import TopicName
from distrl.core.runtime.scan import scan

if TYPE_CHECKING:
    from kafka_broker import KafkaServer

pytestmark = [pytest.mark.torch, pytest.mark.timeout(420)]

CONFIG = """
[run]
name = "{name}"
heartbeat_seconds = 0.5
watchdog_seconds = 90
[bus]
session_seconds = 3
{bus}
[tasks]
options.kinds = ["open", "toggle"]
[collector]
nodes = 2
devices = 4
demonstrations = 6
[learner]
max_lag = 4
checkpoint_seconds = 5
options.demonstrations = 6
options.clone_updates = 5
[budget]
episodes = 250
evaluation_tasks = 0
drain_seconds = 120
"""


class Run:
    """A run under way in a folder, as a user starts it."""

    def __init__(self, directory: Path, bus: str, name: str) -> None:
        self.directory = directory
        self.file = directory / "run.toml"
        self.file.write_text(CONFIG.format(bus=bus, name=name))
        self.output = directory / "output.txt"
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "distrl.core.cli.main", "run", "--config", str(self.file), "--json"],
                cwd=directory,
                stdout=subprocess.PIPE,
                stderr=output,
                start_new_session=True,
            )
        config = load_config(self.file)
        path = directory / config.bus.path
        self.config = config.model_copy(update={"bus": config.bus.model_copy(update={"path": path})})
        self.topic = TopicName(name)
        self.nodes = directory / "runs" / name / "nodes"

    def ids(self, topic: str, kind: type) -> set[str]:
        """Trajectory ids on a topic, aborted trajectories left out."""
        found = set()
        with (
            open_bus(self.config.bus, clock=SystemClock(), client_id="test") as bus,
            bus.consumer([self.topic(topic)], start=Start.earliest()) as consumer,
        ):
            for _, event in scan(consumer, Codec()):
                if not isinstance(event, kind):
                    continue
                if isinstance(event, Trajectory) and event.outcome == "aborted":
                    continue
                if isinstance(event, Feedback) and event.kind != "ingested":
                    continue
                found.add(event.trajectory_id)
        return found

    def pid(self, role: str) -> int:
        """Of a running node of the role: as its last sign of life says, still running, and one of this run."""
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.output.read_text()
            pids = []
            with (
                open_bus(self.config.bus, clock=SystemClock(), client_id="test") as bus,
                bus.consumer([self.topic("nodes")], start=Start.earliest()) as consumer,
            ):
                for _, event in scan(consumer, Codec()):
                    if isinstance(event, NodeStatus) and event.role == role and event.plugin != "demonstrator":
                        pids.append(event.pid)
            for pid in reversed(pids):
                with contextlib.suppress(OSError):
                    command = Path(f"/proc/{pid}/cmdline").read_bytes()
                    if b"distrl.core.cli.node" in command and role.encode() in command:
                        return pid
            time.sleep(0.2)
        raise AssertionError(f"no {role} came up: {self.output.read_text()}")

    def wait_for(self, topic: str, kind: type, count: int) -> None:
        deadline = time.monotonic() + 180
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.output.read_text()
            with contextlib.suppress(Exception):
                if len(self.ids(topic, kind)) >= count:
                    return
            time.sleep(0.3)
        raise AssertionError(f"fewer than {count} {topic}: {self.output.read_text()}")

    def finish(self) -> dict[str, object]:
        out, _ = self.process.communicate(timeout=300)
        assert self.process.returncode == 0, self.output.read_text()
        summary: dict[str, object] = json.loads(out)
        return summary

    def close(self) -> None:
        """Ends what is left by its own pid; nodes notice that their supervisor is gone."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.communicate(timeout=60)
            except subprocess.TimeoutExpired:
                self.process.kill()
        if self.process.stdout is not None:
            self.process.stdout.close()


@pytest.fixture(params=["embedded", pytest.param("kafka", marks=pytest.mark.kafka)])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Run]:
    bus = 'kind = "embedded"'
    if request.param == "kafka":
        server: KafkaServer = request.getfixturevalue("kafka_server")
        bus = f'kind = "kafka"\nbootstrap = ["{server.bootstrap}"]'
    current = Run(tmp_path, bus, f"killed-{uuid.uuid4().hex[:8]}")
    yield current
    current.close()


@pytest.mark.parametrize("role", ROLES)
def test_a_killed_role_loses_nothing(run: Run, role: str) -> None:
    run.wait_for("trajectories", Trajectory, 60)
    victim = run.pid(role)
    os.kill(victim, signal.SIGKILL)
    summary = run.finish()

    ledger = read_ledger(run.nodes)
    collected = run.ids("trajectories", Trajectory)
    assert ledger.finished == collected
    assert run.ids("rewards", Reward) == collected
    assert run.ids("feedback", Feedback) == collected
    assert summary["collected"] == summary["evaluated"] == summary["ingested"] == len(collected)
    assert summary["dead_letters"] == 0
    starts = [int(path.read_text()) for path in run.nodes.glob("*/starts") if path.parent.name.startswith(role)]
    assert max(starts) >= 2, "the killed node was started again"
