"""Runs are listed and deleted whole, and never a neighbour; on the embedded log and a folder, and on Kafka and S3."""

from __future__ import annotations

import io
import json
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from distrl.connectors import open_bus, open_store
from distrl.core.cli import exit
from distrl.core.cli.main import command
from distrl.core.codec import Codec
from distrl.core.config import Config, load_config
from distrl.core.contracts.bus import Bus
from distrl.core.contracts.clock import SystemClock
from distrl.core.contracts.events import Envelope, NodeStatus
from distrl.core.contracts.store import BlobStore
from distrl.core.contracts.topic import TopicName, run_topics
from distrl.core.errors import RunInUseError, StoreUnavailableError
from distrl.core.runtime.runs import known_runs, remove_run

if TYPE_CHECKING:
    from kafka_broker import KafkaServer
    from seaweedfs import S3Server

CLOCK = SystemClock()


@dataclass
class Place:
    """A log, a store, and the configuration that names them."""

    file: Path
    config: Config
    bus: Bus
    store: BlobStore

    def make(self, run: str, *, group: bool = True) -> None:
        """A run with a few records, a committed group and two objects."""
        self.bus.admin().create(
            run_topics(run, partitions=1, replication=1, retention_ms=None, max_record_bytes=100_000)
        )
        topic = TopicName(run)("metrics")
        with self.bus.producer() as producer:
            for _ in range(3):
                producer.send(topic, b"1").result(timeout=30)
        if group:
            with self.bus.consumer([topic], group=f"distrl.{run}.evaluator.state") as consumer:
                seen = 0
                while seen < 3:
                    for record in consumer.poll(1.0):
                        consumer.ack(record)
                        seen += 1
                consumer.commit()
        for name in ("artefacts/a", "weights/b"):
            self.store.put(f"{run}/{name}", b"12345", media_type="x/y")
        (self.config.run.directory / run / "logs").mkdir(parents=True)

    def sign(self, run: str) -> None:
        status = NodeStatus(
            Envelope(uuid.uuid4().hex, run, "collector-0", 1),
            "collector",
            "episodes",
            "running",
            "i",
            "h",
            1,
            1,
            60_000,
        )
        with self.bus.producer() as producer:
            name = TopicName(run)("nodes")
            producer.send(name, Codec().encode(status), key=b"collector-0", timestamp_ms=CLOCK.time_ms()).result(
                timeout=30
            )

    def known(self) -> dict[str, Any]:
        return {run.run: run for run in known_runs(self.bus, self.store, Codec(), CLOCK)}

    def call(self, *arguments: str) -> int:
        return exit.run(command, ["runs", *arguments, "--config", str(self.file)])


@pytest.fixture
def embedded(tmp_path: Path) -> str:
    return f'[bus]\npath = "{tmp_path}/log"\n[store]\npath = "{tmp_path}/store"\n'


@pytest.fixture
def place(tmp_path: Path, embedded: str) -> Iterator[Place]:
    yield from opened(tmp_path, embedded)


def opened(folder: Path, sections: str) -> Iterator[Place]:
    file = folder / "config.toml"
    file.write_text(f'[run]\ndirectory = "{folder}/runs"\n{sections}')
    config = load_config(file, environment={})
    with open_bus(config.bus, clock=CLOCK, client_id="test") as bus, open_store(config.store) as store:
        yield Place(file, config, bus, store)


def test_a_run_is_listed_with_what_it_holds(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    assert place.call("list") == 0
    assert "knows a run" in capsys.readouterr().out
    place.make("a")
    place.sign("a")
    place.store.put("left-over/artefacts/a", b"1", media_type="x/y")
    assert place.call("list", "--json") == 0
    first, second = json.loads(capsys.readouterr().out)
    assert (first["run"], first["topics"], first["records"], first["groups"], first["objects"]) == ("a", 9, 4, 1, 2)
    assert (first["store_bytes"], first["alive"]) == (10, ["collector-0"])
    assert first["log_bytes"] > 0
    assert first["last_activity"].startswith("20")
    assert (second["run"], second["topics"], second["objects"]) == ("left-over", 0, 1)


def test_one_goes_and_its_neighbours_stay(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    for run in ("a", "a-b", "ab", "a_"):
        place.make(run)
    before = place.known()
    assert place.call("delete", "a", "--yes", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["topics"], said["objects"], said["bytes"], said["groups"]) == (9, 2, 10, 1)
    after = place.known()
    assert after == {run: known for run, known in before.items() if run != "a"}
    assert (place.config.run.directory / "a").is_dir()
    assert place.call("delete", "ab", "--yes", "--local") == 0
    assert not (place.config.run.directory / "ab").exists()
    assert (place.config.run.directory / "a-b").is_dir()


def test_an_unknown_one_is_said(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.make("a-b")
    assert place.call("delete", "a", "--yes") == 2
    assert "DISTRL-520" in capsys.readouterr().err
    assert set(place.known()) == {"a-b"}


def test_it_asks_first(place: Place, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    place.make("a")
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    assert place.call("delete", "a") == 130
    assert "9 topics with 3 records, 1 groups and 2 objects (10 bytes) of run 'a'?" in capsys.readouterr().err
    assert place.known()["a"].objects == 2


def test_one_in_use_is_refused_unless_forced(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.make("a")
    place.sign("a")
    assert place.call("delete", "a", "--yes") == 2
    error = capsys.readouterr().err
    assert "DISTRL-521" in error
    assert "collector-0" in error
    assert place.known()["a"].objects == 2
    assert place.call("delete", "a", "--yes", "--force") == 0
    assert place.known() == {}


def test_a_group_with_members_stays_until_they_are_gone(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.make("a")
    group = "distrl.a.evaluator.state"
    with place.bus.consumer([TopicName("a")("metrics")], group=group) as consumer:
        consumer.poll(1.0)
        assert place.call("delete", "a", "--yes") == 0
        assert group in capsys.readouterr().out
        known = place.known()["a"]
        assert (known.topics, known.objects, known.groups) == (0, 0, 1)
    assert place.call("delete", "a", "--yes") in (0, 2)  # the group may have gone with its last member
    assert place.known() == {}


def test_cut_in_the_middle_it_is_done_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.make("a")
    calls = threading.Semaphore(1)
    delete = place.store.delete

    def away(key: str) -> None:
        if not calls.acquire(blocking=False):
            raise StoreUnavailableError("the store is away")
        delete(key)

    with monkeypatch.context() as patch:
        patch.setattr(place.store, "delete", away)
        with pytest.raises(StoreUnavailableError):
            remove_run(place.bus, place.store, "a")
    assert place.known()["a"].objects == 1
    assert place.call("delete", "a", "--yes") == 0
    assert place.known() == {}


@pytest.mark.kafka
@pytest.mark.timeout(300)
@pytest.mark.s3
def test_on_kafka_and_s3(
    tmp_path: Path, kafka_server: KafkaServer, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISTRL_STORE__ACCESS_KEY", s3_server.access_key)
    monkeypatch.setenv("DISTRL_STORE__SECRET_KEY", s3_server.secret_key)
    run = f"r{uuid.uuid4().hex[:8]}"
    sections = (
        f'[bus]\nkind = "kafka"\nbootstrap = ["{kafka_server.bootstrap}"]\n'
        f'[store]\nkind = "s3"\nendpoint = "{s3_server.endpoint}"\nbucket = "runs"\naccess_key = "{s3_server.access_key}"\n'
    )
    file = tmp_path / "config.toml"
    file.write_text(f'[run]\ndirectory = "{tmp_path}/runs"\n{sections}')
    config = load_config(file)
    with open_bus(config.bus, clock=CLOCK, client_id="test") as bus, open_store(config.store) as store:
        place = Place(file, config, bus, store)
        for name in (run, f"{run}-b"):
            place.make(name)
        known = place.known()
        assert (known[run].topics, known[run].records, known[run].groups, known[run].objects) == (9, 3, 1, 2)
        assert known[run].log_bytes > 0
        place.sign(run)
        assert place.known()[run].alive == ["collector-0"]
        assert place.call("delete", run, "--yes") == RunInUseError.exit_code
        assert place.call("delete", run, "--yes", "--force") == 0
        deadline = threading.Event()
        for _ in range(100):
            known = place.known()
            if run not in known:  # a broker removes in the background
                break
            deadline.wait(0.1)
        assert run not in known
        assert (known[f"{run}-b"].topics, known[f"{run}-b"].groups, known[f"{run}-b"].objects) == (9, 1, 2)
