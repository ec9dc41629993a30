"""``RunTail`` and the commands that look at a run, on a real embedded log and a real folder store."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from distrl.connectors import open_bus, open_store
from distrl.core.cli import exit
from distrl.core.cli.main import command
from distrl.core.codec import Codec
from distrl.core.config import Config, load_config
from distrl.core.contracts.bus import Bus
from distrl.core.contracts.clock import SystemClock
from distrl.core.contracts.events import Blob, Envelope, Event, NodeStatus, Reward, Trajectory, WeightsUpdate
from distrl.core.contracts.topic import TopicName
from distrl.core.runtime.tail import STATUS_TOPICS, RunTail
from distrl.core.runtime.topic import declared_topics

CODEC = Codec()
WEIGHTS = b"not really safetensors, but bytes with a hash"


@dataclass
class Place:
    """A configuration file and the log it names."""

    file: Path
    config: Config
    bus: Bus

    def send(self, topic: str, key: str, event: Event | None, *, raw: bytes | None = None) -> None:
        value = raw if event is None else CODEC.encode(event)
        with self.bus.producer() as producer:
            producer.send(TopicName(self.config.run.name)(topic), value, key=key.encode()).result(timeout=10)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    file = tmp_path / "config.toml"
    file.write_text(
        f'[run]\nname = "r"\ndirectory = "{tmp_path}/runs"\n[bus]\npath = "{tmp_path}/log"\npartitions = 2\n'
        f'[store]\npath = "{tmp_path}/store"\n'
    )
    config = load_config(file, environment={})
    with open_bus(config.bus, clock=SystemClock(), client_id="test") as bus:
        yield Place(file, config, bus)


@pytest.fixture
def made(place: Place) -> Place:
    place.bus.admin().create(declared_topics(place.config))
    return place


def envelope(event_id: str) -> Envelope:
    return Envelope(event_id, "r", "node", SystemClock().time_ms())


def trajectory(number: int) -> Trajectory:
    return Trajectory(
        envelope=envelope(f"t{number}"),
        trajectory_id=f"id{number}",
        origin="policy",
        task_id="t",
        task_kind="open",
        split="train",
        goal="g",
        checks="[]",
        seed=0,
        horizon=1,
        device="d",
        policy="p",
        epoch=1,
        version=0,
        base_model="",
        sampling="{}",
        outcome="finished",
        started_ms=number,
        ended_ms=number,
    )


def status(node: str, waiting_for: str = "") -> NodeStatus:
    now = SystemClock().time_ms()
    return NodeStatus(
        Envelope(node, "r", node, now),
        "collector",
        "episodes",
        "running",
        "i",
        "h",
        1,
        now,
        600_000,
        waiting_for=waiting_for,
    )


def weights(version: int, config: Config) -> WeightsUpdate:
    with open_store(config.store) as store:
        ref = store.put(f"r/weights/{version}", WEIGHTS, media_type="application/octet-stream")
    blob = Blob(ref.media_type, ref.size, ref.sha256, ref.bucket, ref.key)
    return WeightsUpdate(envelope(f"w{version}"), "p", 1, version, 0, blob)


def run(place: Place, *arguments: str) -> int:
    return exit.run(command, [*arguments, "--config", str(place.file)])


def test_a_tail_follows_a_run_and_counts_what_it_cannot_read(made: Place) -> None:
    with RunTail(made.bus, CODEC, "r", evaluator="state") as tail:
        assert tail.catch_up() == 0
        for number in range(20):
            made.send("trajectories", f"id{number}", trajectory(number))
            made.send(
                "rewards", f"id{number}", Reward(envelope(f"r{number}"), f"id{number}", "state", "1", number / 19)
            )
        made.send("rewards", "x", None, raw=b"no event")
        made.send("nodes", "c0", status("c0"))
        assert tail.catch_up() == 42
        assert not tail.behind()
        assert tail.history.total.evaluated == 20
        assert [row.success for row in tail.history.judged()] == [number / 19 for number in range(20)]
        assert tail.history.undecodable == 1
        assert not tail.history.nodes["c0"].left
        made.send("nodes", "c0", None)
        assert tail.poll(5.0) == 1
        assert tail.history.nodes["c0"].left


def test_a_tail_of_some_topics_reads_no_others(made: Place) -> None:
    made.send("trajectories", "id1", trajectory(1))
    made.send("nodes", "c0", status("c0"))
    with RunTail(made.bus, CODEC, "r", topics=STATUS_TOPICS) as tail:
        assert tail.catch_up() == 1
        assert tail.history.episodes == 0


def test_weights_are_listed_and_pulled_verified(
    made: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(made, "weights", "list") == 0
    assert "no weights yet" in capsys.readouterr().out
    for version in (0, 1):
        made.send("weights", "p", weights(version, made.config))
    assert run(made, "weights", "list", "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["version"] for row in rows] == [0, 1]
    out = tmp_path / "out.safetensors"
    assert run(made, "weights", "pull", "--out", str(out), "--json") == 0
    assert out.read_bytes() == WEIGHTS
    pulled = json.loads(capsys.readouterr().out)
    assert (pulled["version"], pulled["sha256"]) == (1, hashlib.sha256(WEIGHTS).hexdigest())
    assert run(made, "weights", "pull", "7", "--out", str(out)) == 4
    assert "[DISTRL-601]" in capsys.readouterr().err


def test_tampered_weights_are_not_written(made: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made.send("weights", "p", weights(0, made.config))
    [stored] = [path for path in (tmp_path / "store").rglob("*") if path.is_file() and path.read_bytes() == WEIGHTS]
    stored.chmod(0o644)
    stored.write_bytes(WEIGHTS[::-1])
    out = tmp_path / "out"
    assert run(made, "weights", "pull", "--out", str(out)) == 4
    assert "[DISTRL-403]" in capsys.readouterr().err
    assert not out.exists()


def test_status_looks_on(made: Place, capsys: pytest.CaptureFixture[str]) -> None:
    made.send("nodes", "c0", status("c0", waiting_for="allowance"))
    made.send("weights", "p", weights(0, made.config))
    assert run(made, "status", "--json") == 0
    state = json.loads(capsys.readouterr().out)
    assert state["waits"] == [{"role": "collector", "waits_for": "allowance", "nodes": 1}]
    assert state["newest_weights"]["version"] == 0
    assert run(made, "status") == 0
    assert "collector for allowance (1)" in capsys.readouterr().out


def test_a_run_that_is_not_there_is_said(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(place, "status") == 4
    assert "[DISTRL-305]" in capsys.readouterr().err


def test_doctor_says_what_is_there_and_what_is_not(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(place, "doctor", "--json") == 0
    findings = {row["check"]: row for row in json.loads(capsys.readouterr().out)}
    assert {findings[check]["state"] for check in ("python", "log", "store", "learner a-ride")} == {"ok"}
    broken = ("--set", "learner.plugin=a-rid", "--set", "bus.kind=kafka", "--set", 'bus.bootstrap=["127.0.0.1:1"]')
    assert run(place, "doctor", "--json", *broken) == 3
    findings = {row["check"]: row for row in json.loads(capsys.readouterr().out)}
    assert findings["learner a-rid"]["state"] == "missing"
    assert "a-ride" in findings["learner a-rid"]["found"]
    assert findings["log"]["state"] == "missing"
    assert "make stack-up" in findings["log"]["do"]
    assert findings["store"]["state"] == "ok"


def test_doctor_of_devices_behind_appium(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    options = ('device.options.servers=["http://127.0.0.1:1"]', 'device.options.browser="/nowhere/chromium"')
    settings = [word for option in ("device.plugin=appium", *options) for word in ("--set", option)]
    assert run(place, "doctor", "--json", *settings) == 3
    findings = {row["check"]: row for row in json.loads(capsys.readouterr().out)}
    assert findings["appium"]["state"] == "missing"
    assert findings["/nowhere/chromium"]["state"] == "missing"
    assert "chromium" in findings["/nowhere/chromium"]["do"]
