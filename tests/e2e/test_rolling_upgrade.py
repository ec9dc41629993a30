"""A run under way is upgraded node by node: a really older package and this one work together, and nothing is lost on the way.

The older package is the wheel in ``tests/data/former``: the state of 0.1.0 in which all schemas were at version 1, without registry,
headers and pins. Its nodes run from the unpacked wheel, so both its code and its schemas are old; it shares this environment's
libraries.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from distrl.connectors import open_bus
from distrl.connectors.ledger import read_ledger
from distrl.core.codec import HEADER, Codec
from distrl.core.config import load_config
from distrl.core.contracts.bus import Record
from distrl.core.contracts.clock import SystemClock
from distrl.core.contracts.events import Event, Feedback, Trajectory
from distrl.core.contracts.topic import TopicName
from distrl.core.runtime.node import SUPERVISOR_PID
from distrl.core.runtime.scan import records
from distrl.core.runtime.topic import declared_topics
from distrl.schemas import load_schema

if TYPE_CHECKING:
    from kafka_broker import KafkaServer

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]
WHEEL = Path(__file__).parents[1] / "data" / "former" / "distrl-0.1.0-py3-none-any.whl"
CONFIG = """
[run]
name = "{name}"
heartbeat_seconds = 0.5
watchdog_seconds = 120
[bus]
session_seconds = 15
partitions = 2
{bus}
[tasks]
options.kinds = ["open", "toggle"]
[collector]
devices = 2
[learner]
checkpoint_seconds = 2
options.batch = 2
options.samples = 2
"""
PINNED = ("--set", "registry.write_versions.trajectory=1", "--set", "registry.write_versions.node=1")
SECONDS = 180.0


class Fleet:
    """Nodes of one run, some of them old."""

    def __init__(self, folder: Path, bus: str) -> None:
        self.folder = folder
        self.name = f"upgrade-{uuid.uuid4().hex[:8]}"
        self.file = folder / "run.toml"
        self.file.write_text(CONFIG.format(name=self.name, bus=bus))
        self.former = folder / "former"
        with zipfile.ZipFile(WHEEL) as wheel:
            wheel.extractall(self.former)
        config = load_config(self.file, environment={})
        path = folder / config.bus.path
        self.config = config.model_copy(update={"bus": config.bus.model_copy(update={"path": path})})
        self.topic = TopicName(self.name)
        self.bus = open_bus(self.config.bus, clock=SystemClock(), client_id="test")
        self.bus.admin().create(declared_topics(self.config))
        self.codec = Codec()
        self.nodes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, node: str, *options: str, old: bool = False) -> None:
        """A node is named by its role and a number; ``old``: from the former wheel."""
        environment = (
            os.environ | {SUPERVISOR_PID: str(os.getpid())} | ({"PYTHONPATH": str(self.former)} if old else {})
        )
        role = node.partition("-")[0]
        command = [
            sys.executable,
            "-m",
            "distrl.core.cli.node",
            "--role",
            role,
            "--node-id",
            node,
            "--config",
            str(self.file),
        ]
        with (self.folder / f"{node}.txt").open("ab") as output:
            self.nodes[node] = subprocess.Popen(
                [*command, *options],
                cwd=self.folder,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
            )

    def stop(self, *nodes: str) -> None:
        """In good order: what is in hand is finished or handed back."""
        for node in nodes:
            self.nodes[node].send_signal(signal.SIGTERM)
        for node in nodes:
            assert self.nodes[node].wait(90) == 0, self.output(node)
            del self.nodes[node]

    def replace(self, node: str, *options: str) -> None:
        """Restart a node with this version."""
        self.stop(node)
        self.start(node, *options)

    def output(self, node: str) -> str:
        return (self.folder / f"{node}.txt").read_text()[-3000:]

    def records(self, topic: str) -> list[Record]:
        with self.bus.consumer([self.topic(topic)]) as consumer:
            return list(records(consumer))

    def events(self, topic: str) -> list[Event]:
        return [self.codec.decode(record.value) for record in self.records(topic) if record.value is not None]

    def ids(self, topic: str) -> set[str]:
        """Trajectories that a topic tells of: ended ones, and of feedback only that they were ingested."""
        return {
            event.trajectory_id  # type: ignore[union-attr]  # of the keyed topics only
            for event in self.events(topic)
            if not (isinstance(event, Trajectory) and event.outcome == "aborted")
            and not (isinstance(event, Feedback) and event.kind != "ingested")
        }

    def written(self, node: str) -> list[int]:
        """Schema versions of a collector's trajectories, in the order of writing."""
        versions = {load_schema("trajectory", version).schema_id: version for version in (1, 2)}
        mine = [
            (event.ended_ms, versions[HEADER.unpack_from(record.value)[1]])
            for record in self.records("trajectories")
            if record.value is not None
            and isinstance(event := self.codec.decode(record.value), Trajectory)
            and event.envelope.node == node
        ]
        return [version for _, version in sorted(mine)]

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + SECONDS
        while not condition():
            for node, process in self.nodes.items():
                assert process.poll() is None, f"{node} ended: {self.output(node)}"
            assert time.monotonic() < deadline, f"{what} did not come: {[self.output(node) for node in self.nodes]}"
            time.sleep(0.3)

    def more(self, topic: str, count: int) -> None:
        """Wait for so many more trajectories on a topic."""
        wanted = len(self.ids(topic)) + count
        self.wait(lambda: len(self.ids(topic)) >= wanted, f"{count} more {topic}")

    def end(self) -> None:
        """Stop the collectors, let the others finish, stop them, and hold the run to its promise."""
        collectors = [node for node in self.nodes if node.startswith("collector")]
        self.stop(*collectors)
        collected = self.ids("trajectories")
        self.wait(lambda: self.ids("feedback") == collected, "the last ingestion")
        self.stop(*self.nodes)
        assert read_ledger(self.folder / "runs").finished == collected
        assert self.ids("rewards") == self.ids("feedback") == collected
        assert self.records("dead-letters") == []

    def close(self) -> None:
        for process in self.nodes.values():
            process.kill()
            process.wait()
        self.bus.close()


def open_fleet(tmp_path: Path, bus: str) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path, bus)
    yield fleet
    fleet.close()


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[Fleet]:
    yield from open_fleet(tmp_path, 'kind = "embedded"')


@pytest.fixture(params=["embedded", pytest.param("kafka", marks=pytest.mark.kafka)])
def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fleet]:
    if request.param == "embedded":
        yield from open_fleet(tmp_path, 'kind = "embedded"')
    else:
        server: KafkaServer = request.getfixturevalue("kafka_server")
        yield from open_fleet(tmp_path, f'kind = "kafka"\nbootstrap = ["{server.bootstrap}"]')


def test_readers_first_then_collectors_one_by_one(fleet: Fleet) -> None:
    """Old collectors feed new readers, and are replaced under traffic. One episode of each kind is followed to its end."""
    for node in ("learner-0", "evaluator-0", "prioritizer-0"):
        fleet.start(node)
    for node in ("collector-0", "collector-1"):
        fleet.start(node, old=True)
    fleet.more("feedback", 6)
    for node in ("collector-0", "collector-1"):
        fleet.replace(node)
        fleet.wait(lambda node=node: fleet.written(node).count(2) >= 2, f"{node}'s new episodes")  # type: ignore[misc]
    fleet.end()
    for node in ("collector-0", "collector-1"):
        versions = fleet.written(node)
        assert versions == sorted(versions), "old first, then new"
        assert set(versions) == {1, 2}
    follow_one_of_each(fleet)


def follow_one_of_each(fleet: Fleet) -> None:
    """``distrl trace`` on an episode that an old collector wrote and on one of a new one, by its id and by its trace's."""
    by_headers = {bool(record.headers): record for record in fleet.records("trajectories")}
    for record in by_headers.values():
        assert record.key is not None
        shown = trace(fleet, record.key.decode(), "--json")
        told = json.loads(shown)
        assert told["episode"] == record.key.decode()
        whats = [moment["what"] for moment in told["moments"]]
        assert {"started", "ended", "logged", "evaluated", "prioritized", "ingested"} <= set(whats)
        assert whats.index("logged") < whats.index("evaluated") < whats.index("ingested")
        (logged,) = (moment for moment in told["moments"] if moment["what"] == "logged")
        assert (logged["topic"], logged["partition"], logged["offset"]) == (
            "trajectories",
            record.partition,
            record.offset,
        )
        assert json.loads(trace(fleet, told["trace"], "--json")) == told
        text = trace(fleet, record.key.decode())
        assert max(map(len, text.splitlines())) <= 80
        for name in ("collector-", "evaluator-0", "prioritizer-0", "learner-0", "rewards/"):
            assert name in text
    assert set(by_headers) == {False, True}


def trace(fleet: Fleet, *arguments: str) -> str:
    command = [sys.executable, "-m", "distrl.core.cli.main", "trace", *arguments, "--config", str(fleet.file)]
    environment = os.environ | {"COLUMNS": "80"}
    done = subprocess.run(
        command, cwd=fleet.folder, env=environment, capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_collectors_first_with_pins_then_readers(embedded: Fleet) -> None:
    """New collectors that write what old readers know; the readers are replaced under traffic, then the pins are taken out."""
    for node in ("learner-0", "evaluator-0", "prioritizer-0"):
        embedded.start(node, old=True)
    for node in ("collector-0", "collector-1"):
        embedded.start(node, *PINNED)
    embedded.more("feedback", 6)
    for node in ("evaluator-0", "prioritizer-0", "learner-0"):
        embedded.replace(node, *PINNED)
    embedded.more("feedback", 4)
    for node in ("collector-0", "collector-1"):
        assert set(embedded.written(node)) <= {1}
        embedded.replace(node)
        embedded.wait(lambda node=node: 2 in embedded.written(node), f"{node}'s new episodes")  # type: ignore[misc]
    embedded.end()


FORMER_READER = """
import json, sys
from pathlib import Path
from distrl.core.codec import Codec
from distrl.core.contracts.events import Trajectory
from distrl.core.errors import UnknownSchemaError

data = Path(sys.argv[1]).read_bytes()
schema = json.loads(Path(sys.argv[2]).read_text())

class Registry:
    def schema(self, schema_id):
        return schema

try:
    Codec().decode(data, Trajectory)
    alone = "read"
except UnknownSchemaError:
    alone = "unknown"
event = Codec(Registry()).decode(data, Trajectory)
print(json.dumps([alone, event.trajectory_id, hasattr(event, "incarnation")]))
"""


def test_an_old_reader_needs_the_readers_first_or_a_registry(tmp_path: Path) -> None:
    """What a new writer writes without pins: unknown to an old reader with the committed schemas alone, which is why the order
    matters; read by one that can ask a registry for the schema, which is why it does not matter then. The former package could
    ask, it only had no connector to a server: its codec stands for such a reader."""
    with zipfile.ZipFile(WHEEL) as wheel:
        wheel.extractall(tmp_path / "former")
    golden = Path(__file__).parents[1] / "unit" / "golden" / "trajectory_v2.bin"
    schema = tmp_path / "v2.avsc"
    schema.write_text(load_schema("trajectory", 2).text)
    done = subprocess.run(
        [sys.executable, "-c", FORMER_READER, str(golden), str(schema)],
        env=os.environ | {"PYTHONPATH": str(tmp_path / "former")},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["unknown", "t-1", False]
