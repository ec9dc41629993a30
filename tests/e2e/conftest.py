"""Runs under way, as a user starts them, for the end-to-end tests."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import pytest

from distrl.connectors import open_bus
from distrl.core.config import load_config
from distrl.core.contracts.bus import Start
from distrl.core.contracts.clock import SystemClock
from distrl.core.contracts.events import Event, Feedback, NodeStatus, Trajectory
from distrl.core.contracts.topic import TopicName
from distrl.core.errors import UnknownTopicError
from distrl.core.runtime.codec import open_codec
from distrl.core.runtime.scan import scan

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


class SupervisedRun:
    """A run under way in a folder, as a user starts it."""

    def __init__(
        self, directory: Path, bus: str, name: str, arguments: Sequence[str], environment: dict[str, str]
    ) -> None:
        self.directory = directory
        self.file = directory / "run.toml"
        self.file.write_text(CONFIG.format(bus=bus, name=name))
        self.output = directory / "output.txt"
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "distrl.core.cli.main", "run", "--config", str(self.file), "--json", *arguments],
                cwd=directory,
                stdout=subprocess.PIPE,
                stderr=output,
                start_new_session=True,
                env={**os.environ, **environment},
            )
        config = load_config(self.file)
        path = directory / config.bus.path
        self.config = config.model_copy(
            update={
                "bus": config.bus.model_copy(update={"path": path}),
                "run": config.run.model_copy(update={"directory": directory / config.run.directory}),
            }
        )
        self.topic = TopicName(name)
        self.nodes = directory / "runs" / name / "nodes"

    def events(self, topic: str) -> list[Event]:
        """All events of a topic, read from outside the run."""
        with (
            open_bus(self.config.bus, clock=SystemClock(), client_id="test") as bus,
            bus.consumer([self.topic(topic)], start=Start.earliest()) as consumer,
        ):
            return [event for _, event in scan(consumer, open_codec(self.config, clock=SystemClock()))]

    def ids(self, topic: str) -> set[str]:
        """Trajectory ids on a topic, aborted trajectories left out."""
        return {
            event.trajectory_id
            for event in self.events(topic)
            if not (isinstance(event, Trajectory) and event.outcome == "aborted")
            and not (isinstance(event, Feedback) and event.kind != "ingested")
        }

    def pid(self, role: str) -> int:
        """Of a running node of the role, or the one by this id: as its last sign of life says, still running, and one of this
        run."""
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.output.read_text()
            pids = []
            with contextlib.suppress(UnknownTopicError):
                pids = [
                    event.pid
                    for event in self.events("nodes")
                    if isinstance(event, NodeStatus)
                    and role in (event.role, event.envelope.node)
                    and event.plugin != "demonstrator"
                ]
            for pid in reversed(pids):
                with contextlib.suppress(OSError):
                    command = Path(f"/proc/{pid}/cmdline").read_bytes()
                    if b"distrl.core.cli.node" in command and role.encode() in command:
                        return pid
            time.sleep(0.2)
        raise AssertionError(f"no {role} came up: {self.output.read_text()}")

    def wait_for(self, topic: str, count: int) -> None:
        deadline = time.monotonic() + 180
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.output.read_text()
            with contextlib.suppress(UnknownTopicError):
                if len(self.ids(topic)) >= count:
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


class StartRun(Protocol):
    def __call__(self, bus: str, *arguments: str, environment: dict[str, str] | None = None) -> SupervisedRun: ...


@pytest.fixture
def start_run(tmp_path: Path) -> Iterator[StartRun]:
    """Starts a run over a ``[bus]`` given as TOML; ends it with the test."""
    runs: list[SupervisedRun] = []

    def start(bus: str, *arguments: str, environment: dict[str, str] | None = None) -> SupervisedRun:
        run = SupervisedRun(tmp_path, bus, f"run-{uuid.uuid4().hex[:8]}", arguments, environment or {})
        runs.append(run)
        return run

    yield start
    for run in runs:
        run.close()
