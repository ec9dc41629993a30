"""Dead letters from a failing plugin to a mended one, retries through an outage, and handlers that take long: on both logs."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import tomli_w

from distrl.connectors import open_bus
from distrl.core.cli import exit
from distrl.core.cli.main import command
from distrl.core.codec import Codec, event_key, event_topic
from distrl.core.config import Config, parse_config
from distrl.core.contracts.bus import Record, Start
from distrl.core.contracts.clock import SystemClock
from distrl.core.contracts.events import DeadLetter, Event, Feedback, NodeStatus, Reward, Role
from distrl.core.contracts.topic import TopicName
from distrl.core.errors import RecordTooLargeError, StoreUnavailableError
from distrl.core.runtime.dead_letter import ATTEMPTS, REDRIVE_OF, REDRIVES
from distrl.core.runtime.node import run_node
from distrl.core.runtime.redrive import read_letters
from distrl.core.runtime.scan import records, scan
from distrl.core.runtime.tail import RunTail
from distrl.core.runtime.topic import declared_topics
from distrl.testing import make_envelope, make_trajectory

if TYPE_CHECKING:
    from kafka_broker import KafkaServer

PLUGINS = '''
import time
from pathlib import Path

import distrl
from distrl.core.errors import StoreUnavailableError

HERE = Path(__file__).parent


class Moody:
    """Judges by what lies in its folder: names of trajectories that it cannot judge, cannot judge now, or only slowly."""

    name, version = "moody", "1"

    def __init__(self, options, context):
        pass

    def evaluate(self, batch):
        names = {item.trajectory_id for item in batch}
        if names & set((HERE / "slow").read_text().split()):
            time.sleep(float((HERE / "seconds").read_text()))
        if (HERE / "away").exists() or names & set((HERE / "retriable").read_text().split()):
            raise StoreUnavailableError("the judge's model is away")
        for name in sorted(names & set((HERE / "bad").read_text().split())):
            try:
                {}[name]
            except KeyError as error:
                raise ValueError(f"no idea how to judge {name}") from error
        with (HERE / "judged").open("a") as file:
            file.write("".join(f"{item.trajectory_id}\\n" for item in batch))
        return [distrl.Verdict(1.0) for _ in batch]


class Weights:
    name, base_model, sampling = "plain", "", {}

    def __init__(self, options, context):
        pass

    def act(self, batch):
        raise NotImplementedError

    def load(self, path):
        pass

    def save(self, path):
        path.write_bytes(b"weights")


class Counting:
    """A learner that only takes in."""

    name, batch = "counting", 1

    def __init__(self, options, context, policy):
        self.policy = policy
        self.kept = {}

    def use(self, staleness):
        pass

    def ingest(self, batch):
        for item in batch:
            if item.trajectory.trajectory_id in (HERE / "refused").read_text().split():
                raise StoreUnavailableError("its artefacts are out of reach")
            assert item.trajectory.trajectory_id not in self.kept
            self.kept[item.trajectory.trajectory_id] = 1.0

    def prioritize(self, batch):
        for priority in batch:
            if priority.trajectory_id in self.kept:
                self.kept[priority.trajectory_id] = priority.priority

    def evictions(self):
        return {}

    def buffered(self):
        return list(self.kept)

    def wanted(self):
        return distrl.core.contracts.role.Wanted(policy=1)

    def update(self, version):
        raise NotImplementedError

    def save(self, directory):
        (directory / "state.json").write_text("{}")

    def restore(self, directory, buffered):
        self.kept = {item.trajectory.trajectory_id: 1.0 for item in buffered}


@distrl.hookimpl
def distrl_evaluators():
    return [distrl.Registration("moody", Moody)]


@distrl.hookimpl
def distrl_policies():
    return [distrl.Registration("plain", Weights)]


@distrl.hookimpl
def distrl_learners():
    return [distrl.Registration("counting", Counting)]
'''


class World:
    """A run of plain plugins, looked at and written to from outside its nodes."""

    def __init__(self, directory: Path, bus: dict[str, Any], **sections: dict[str, Any]) -> None:
        self.directory = directory
        (directory / "plugins.py").write_text(PLUGINS)
        self.say(bad="", retriable="", refused="", slow="", seconds="0")
        self.run = f"r{uuid.uuid4().hex[:10]}"
        table: dict[str, Any] = {
            "run": {
                "name": self.run,
                "directory": str(directory / "runs"),
                "heartbeat_seconds": 0.5,
                "watchdog_seconds": 60,
                "plugins": [str(directory / "plugins.py")],
            },
            "bus": {"path": str(directory / "log"), "session_seconds": 3, "partitions": 2, **bus},
            "store": {"path": str(directory / "store")},
            "evaluator": {"plugin": "moody"},
            "prioritizer": {"plugin": "uniform"},
            "policy": {"plugin": "plain"},
            "learner": {"plugin": "counting", "checkpoint_seconds": 1.0},
        }
        for name, section in sections.items():
            table[name] = {**table.get(name, {}), **section}
        self.config: Config = parse_config(table)
        self.file = directory / "config.toml"
        self.file.write_text(tomli_w.dumps(table))
        self.codec = Codec()
        self.topic = TopicName(self.run)
        self.bus = open_bus(self.config.bus, clock=SystemClock(), client_id="test")
        self.bus.admin().create(declared_topics(self.config))

    def say(self, **files: str) -> None:
        """What the evaluator finds in its folder."""
        for name, text in files.items():
            (self.directory / name).write_text(text)

    def send(self, *names: str) -> None:
        with self.bus.producer() as producer:
            for name in names:
                event = make_trajectory(name)
                event = replace(event, envelope=replace(make_envelope(name), run=self.run))
                topic = self.topic(event_topic(event))
                producer.send(topic, self.codec.encode(event), key=event_key(event)).result(30.0)

    def events(self, topic: str) -> list[Event]:
        with self.bus.consumer([self.topic(topic)], start=Start.earliest()) as consumer:
            return [event for _, event in scan(consumer, self.codec)]

    def records(self, topic: str) -> list[Record]:
        with self.bus.consumer([self.topic(topic)], start=Start.earliest()) as consumer:
            return list(records(consumer))

    def letters(self) -> list[DeadLetter]:
        return [event for event in self.events("dead-letters") if isinstance(event, DeadLetter)]

    def rewarded(self) -> list[str]:
        return sorted(event.trajectory_id for event in self.events("rewards") if isinstance(event, Reward))

    def ingested(self) -> list[str]:
        feedback = (event for event in self.events("feedback") if isinstance(event, Feedback))
        return sorted(event.trajectory_id for event in feedback if event.kind == "ingested")

    def cli(self, capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
        capsys.readouterr()
        assert exit.run(command, [*arguments, "--config", str(self.file), "--json"]) == code
        out, err = capsys.readouterr()
        return json.loads(out) if code == 0 else err

    @contextmanager
    def nodes(self, *roles: Role | tuple[Role, str]) -> Iterator[None]:
        """Nodes in threads, stopped in good order at the end; what one raises is raised here."""
        stop = threading.Event()
        failures: list[BaseException] = []

        def work(role: Role, name: str) -> None:
            try:
                run_node(self.config, role, node_id=name, stop=stop)
            except BaseException as error:
                failures.append(error)

        named: list[tuple[Role, str]] = [(role, f"{role}-0") if isinstance(role, str) else role for role in roles]
        threads = [threading.Thread(target=work, args=node) for node in named]
        for thread, (_, name) in zip(threads, named, strict=True):
            # One after the other: nodes are processes of their own, and loading plugins is not made for threads.
            started = self.directory / "runs" / self.run / "nodes" / name / "starts"
            before = started.read_text() if started.exists() else ""
            thread.start()
            until(lambda: not thread.is_alive() or (started.exists() and started.read_text() != before))  # noqa: B023
        try:
            yield
        finally:
            stop.set()
            for thread in threads:
                thread.join(60.0)
            if failures:
                raise failures[0]
        assert not any(thread.is_alive() for thread in threads)


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.1)


@pytest.fixture(params=["embedded", pytest.param("kafka", marks=pytest.mark.kafka)])
def bus(request: pytest.FixtureRequest) -> dict[str, Any]:
    if request.param == "embedded":
        return {"kind": "embedded"}
    server: KafkaServer = request.getfixturevalue("kafka_server")
    return {"kind": "kafka", "bootstrap": [server.bootstrap]}


def test_from_a_failing_plugin_to_a_mended_one(
    bus: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World(tmp_path, bus)
    names = [f"t{number}" for number in range(6)]
    world.say(bad="t1 t4")
    world.send(*names)
    with world.nodes("evaluator", "prioritizer", "learner"):
        until(lambda: len(world.letters()) == 2 and len(world.ingested()) == 4)
        rows = world.cli(capsys, "dead-letters", "list")
        assert {(row["key"], row["role"], row["code"], row["state"]) for row in rows} == {
            ("t1", "evaluator", "DISTRL-202", "open"),
            ("t4", "evaluator", "DISTRL-202", "open"),
        }
        assert world.cli(capsys, "status")["dead_letters"] == 2
        [row] = [row for row in rows if row["key"] == "t1"]

        # One letter in full, by its id, by where its record came from and by where it lies.
        shown = world.cli(capsys, "dead-letters", "show", row["id"][:12], "--value", str(tmp_path / "value"))
        for place in (row["record"], row["position"]):
            assert world.cli(capsys, "dead-letters", "show", place)["id"] == row["id"]
        assert (shown["event"], shown["value"]["trajectory_id"]) == ("Trajectory", "t1")
        assert shown["cause"] == "KeyError: 't1'"
        assert "no idea how to judge t1" in shown["traceback"]
        assert shown["record_time"]
        [original] = [record for record in world.records("trajectories") if record.key == b"t1"]
        assert (tmp_path / "value").read_bytes() == original.value

        # Sent back too early it fails again: a letter of its own, which counts the tries.
        [done] = world.cli(capsys, "dead-letters", "redrive", row["id"], "--yes")
        until(lambda: len(world.letters()) == 3)
        second = world.letters()[-1]
        assert (second.key, second.attempt) == (b"t1", 2)
        assert f"{second.topic}/{second.partition}/{second.offset}" == done["sent_to"]
        assert second.partition == original.partition
        assert second.envelope.event_id != row["id"]
        assert (second.headers[REDRIVE_OF], second.headers[REDRIVES], second.headers[ATTEMPTS]) == (
            row["id"].encode(),
            b"1",
            b"1",
        )
        assert second.value == original.value
        assert {name: second.headers[name] for name, _ in original.headers} == dict(original.headers)
        assert world.cli(capsys, "status")["dead_letters"] == 2

        # The same letter is not sent back twice by mistake.
        error = world.cli(capsys, "dead-letters", "redrive", row["id"], "--yes", code=2)
        assert "--again" in error
        assert len(world.cli(capsys, "dead-letters", "redrive", "--all", "--dry-run")) == 2
        before = len(world.records("trajectories"))

    offsets = world.bus.admin().group_offsets(f"distrl.{world.run}.evaluator.moody")
    world.say(bad="")
    with world.nodes("evaluator", "prioritizer", "learner"):
        until(lambda: world.cli(capsys, "status")["dead_letters"] == 2)
        assert len(world.cli(capsys, "dead-letters", "redrive", "--code", "DISTRL-202", "--yes")) == 2
        until(lambda: world.ingested() == names and world.rewarded() == names)
        assert world.cli(capsys, "dead-letters", "redrive", "--all", "--yes") == []
        assert {row["state"].split()[0] for row in world.cli(capsys, "dead-letters", "list")} == {"sent"}
        # Sent back once more although it was handled: a duplicate for everybody.
        world.cli(capsys, "dead-letters", "redrive", second.envelope.event_id, "--again", "--yes")
        until(lambda: duplicates(world) >= {"evaluator", "prioritizer", "learner"})
    assert len(world.records("trajectories")) == before + 3
    assert world.ingested() == world.rewarded() == names
    with RunTail(world.bus, world.codec, world.run, evaluator="moody") as tail:
        tail.catch_up()
        total = tail.history.total
        assert (total.collected, total.evaluated, total.ingested) == (6, 6, 6)
        assert tail.history.dead_letters == 0
        assert tail.history.given_up == 0
    after = world.bus.admin().group_offsets(f"distrl.{world.run}.evaluator.moody")
    assert all(after[partition] >= offset for partition, offset in offsets.items())
    world.bus.close()


def duplicates(world: World) -> set[str]:
    """Roles that have dropped a duplicate."""
    return {
        event.role
        for event in world.events("nodes")
        if isinstance(event, NodeStatus) and event.counters.get("duplicates", 0)
    }


def test_a_record_that_alone_fails_is_tried_again_then_given_up_and_holds_up_nobody(
    bus: dict[str, Any], tmp_path: Path
) -> None:
    world = World(tmp_path, bus, evaluator={"retry_attempts": 3, "retry_seconds": 1.0, "batch": 4})
    world.say(retriable="t1")
    world.send("t0", "t1", "t2", "t3")
    with world.nodes("evaluator"):
        until(lambda: world.rewarded() == ["t0", "t2", "t3"])
        # Only what succeeds meanwhile shows that it is the record's own fault.
        number = 4
        while not world.letters():
            world.send(f"t{number}")
            number += 1
            time.sleep(0.3)
            assert number < 200
    [letter] = world.letters()
    assert (letter.key, letter.code) == (b"t1", StoreUnavailableError.code)
    assert letter.attempt >= 3
    assert world.rewarded() == sorted(f"t{index}" for index in range(number) if index != 1)
    world.bus.close()


def test_an_outage_blames_no_record_and_work_goes_on_by_itself(bus: dict[str, Any], tmp_path: Path) -> None:
    """The patience with a single record is as short as can be: only that nobody else succeeds protects it."""
    world = World(tmp_path, bus, evaluator={"retry_attempts": 2, "retry_seconds": 0.0, "batch": 4})
    names = sorted(f"t{number}" for number in range(30))
    world.say(away="")
    with world.nodes("evaluator"):
        world.send(*names[:20])
        until(lambda: held(world) > 0)
        time.sleep(3.0)
        world.send(*names[20:])
        assert world.rewarded() == []
        (tmp_path / "away").unlink()
        until(lambda: world.rewarded() == names)
    assert world.letters() == []
    world.bus.close()


def held(world: World) -> float:
    return max(
        (event.values.get("held_records", 0.0) for event in world.events("metrics") if hasattr(event, "values")),
        default=0.0,
    )


def test_an_outage_without_an_end_ends_the_node_and_loses_nothing(tmp_path: Path) -> None:
    world = World(tmp_path, {"kind": "embedded"}, run={"watchdog_seconds": 3})
    world.say(away="")
    world.send("t0", "t1", "t2")
    with pytest.raises(StoreUnavailableError), world.nodes("evaluator"):
        time.sleep(8.0)
    assert world.letters() == []
    (tmp_path / "away").unlink()
    with world.nodes("evaluator"):
        until(lambda: world.rewarded() == ["t0", "t1", "t2"])
    world.bus.close()


def test_a_checkpoint_does_not_pass_what_the_learner_still_tries(tmp_path: Path) -> None:
    world = World(tmp_path, {"kind": "embedded", "partitions": 1})
    world.say(refused="t1")
    world.send("t0", "t1", "t2", "t3")
    with world.nodes("evaluator", "prioritizer", "learner"):
        until(lambda: world.ingested() == ["t0", "t2", "t3"])
    assert world.letters() == []
    world.say(refused="")
    with world.nodes("learner"):
        until(lambda: world.ingested() == ["t0", "t1", "t2", "t3"])
    world.bus.close()


@pytest.mark.timeout(180)
def test_a_handler_may_take_longer_than_the_poll_gap(bus: dict[str, Any], tmp_path: Path) -> None:
    """Two evaluators, one of them busy for three times the gap: it keeps its partition, so the trajectory is judged once."""
    world = World(tmp_path, {**bus, "poll_gap_seconds": 3.0})
    world.say(slow="slow", seconds="9")
    with world.nodes(("evaluator", "evaluator-a"), ("evaluator", "evaluator-b")):
        until(lambda: len(partitions(world)) == 2)
        world.send("slow")
        until(lambda: world.rewarded() == ["slow"])
        world.send("t0", "t1", "t2", "t3")
        until(lambda: len(world.rewarded()) == 5)
    assert (tmp_path / "judged").read_text().split().count("slow") == 1
    assert world.rewarded() == ["slow", "t0", "t1", "t2", "t3"]
    world.bus.close()


def partitions(world: World) -> set[str]:
    return {
        event.envelope.node
        for event in world.events("nodes")
        if isinstance(event, NodeStatus) and event.state == "running"
    }


def test_a_partition_that_leaves_a_busy_evaluator_is_judged_twice_and_counts_once(
    bus: dict[str, Any], tmp_path: Path
) -> None:
    world = World(tmp_path, bus)
    world.say(slow="t0 t1 t2 t3 t4 t5", seconds="6")
    names = ["t0", "t1", "t2", "t3", "t4", "t5"]
    world.send(*names)
    with world.nodes(("evaluator", "evaluator-a")):
        time.sleep(3.0)  # it has all partitions and works
        with world.nodes(("evaluator", "evaluator-b"), "prioritizer", "learner"):
            until(lambda: world.ingested() == names)
            until(lambda: set(world.rewarded()) == set(names))
    # Who lost a partition sent its verdicts all the same, and the other one judged again: the ids are the same.
    verdicts = [event for event in world.events("rewards") if isinstance(event, Reward)]
    assert len({event.envelope.event_id for event in verdicts}) == len(names)
    assert world.ingested() == names
    assert world.letters() == []
    world.bus.close()


def test_a_schema_that_only_an_absent_registry_knows_waits_for_it(tmp_path: Path) -> None:
    from server import free_port

    registry = {"kind": "confluent", "url": f"http://127.0.0.1:{free_port()}", "timeout_seconds": 1.0}
    world = World(tmp_path, {"kind": "embedded"})
    world.config = world.config.model_copy(update={"registry": parse_config({"registry": registry}).registry})
    known = world.codec.encode(replace(make_trajectory("t0"), envelope=replace(make_envelope("t0"), run=world.run)))
    with world.bus.producer() as producer:
        producer.send(world.topic("trajectories"), b"\0\0\0\0\x07" + known[5:], key=b"t0").result(30.0)
    # A node does not even start without its registry, so the reader is asked alone.
    reader = lonely_reader(world)
    until(lambda: not reader.poll(0.2) and reader.held == 1)
    assert reader.unhandled() == dict.fromkeys(reader.unhandled(), 0)
    assert world.letters() == []
    reader.consumer.commit()
    assert all(offset == 0 for offset in map(reader.consumer.committed, reader.consumer.assignment()) if offset)
    reader.consumer.close()
    world.bus.close()


def lonely_reader(world: World) -> Any:
    from distrl.core.runtime.activity import Activity
    from distrl.core.runtime.codec import open_codec
    from distrl.core.runtime.event_reader import EventReader
    from distrl.core.runtime.event_writer import EventWriter
    from distrl.core.runtime.retry import Retries

    clock = SystemClock()
    activity = Activity(clock)
    writer = EventWriter(
        world.bus.producer(),
        world.codec,
        run=world.run,
        node="n",
        role="evaluator",
        clock=clock,
        activity=activity,
        stop=threading.Event(),
        patience_s=5.0,
    )
    consumer = world.bus.consumer([world.topic("trajectories")], group="lonely")
    codec = open_codec(world.config, clock=clock)
    return EventReader(
        consumer,
        codec,
        writer,
        run=world.run,
        clock=clock,
        activity=activity,
        retries=Retries(clock, attempts=1, patience_s=0.0, outage_s=60.0),
    )


def test_a_letter_that_does_not_fit_its_topic_leaves_the_record_unacknowledged(tmp_path: Path) -> None:
    world = World(tmp_path, {"kind": "embedded"})
    admin = world.bus.admin()
    specs = {spec.name: spec for spec in declared_topics(world.config)}
    admin.delete([world.topic("dead-letters")])
    admin.create([replace(specs[world.topic("dead-letters")], max_record_bytes=100)])
    world.say(bad="t0")
    world.send("t0")
    refused = pytest.raises(RecordTooLargeError, match=r"dead letter of .*trajectories.* does not fit.*topics plan")
    with refused, world.nodes("evaluator"):
        time.sleep(5.0)
    group = f"distrl.{world.run}.evaluator.moody"
    assert all(offset == 0 for offset in admin.group_offsets(group).values())
    admin.delete([world.topic("dead-letters")])
    admin.create([specs[world.topic("dead-letters")]])
    with world.nodes("evaluator"):
        until(lambda: len(world.letters()) == 1)
    world.bus.close()


def test_what_is_no_event_on_a_topic_without_a_group_is_one_letter_however_many_read_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World(tmp_path, {"kind": "embedded"})
    with world.bus.producer() as producer:
        for topic in ("nodes", "weights", "weights-latest"):
            producer.send(world.topic(topic), b"no event", key=topic.encode()).result(30.0)
    for _ in range(2):
        with world.nodes("learner"):
            until(lambda: len(world.letters()) >= 3)
    rows = world.cli(capsys, "dead-letters", "list")
    assert sorted(row["record"] for row in rows) == ["nodes/0/0", "weights-latest/0/0", "weights/0/0"]
    assert {row["role"] for row in rows} == {"learner"}
    assert len(world.letters()) > 3
    world.bus.close()


def test_what_no_group_handles_is_not_sent_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = World(tmp_path, {"kind": "embedded"})
    assert world.cli(capsys, "dead-letters", "list") == []
    envelope = replace(make_envelope("letter-1"), run=world.run)
    letter = DeadLetter(
        envelope, "DISTRL-200", "no event", "collector", world.topic("weights-latest"), 0, 7, b"\xff\x00", b"\x01\x02"
    )
    with world.bus.producer() as producer:
        producer.send(world.topic("dead-letters"), world.codec.encode(letter), key=b"k").result(30.0)
    assert "hide the newest" in world.cli(capsys, "dead-letters", "redrive", "letter-1", "--yes", code=2)
    assert world.cli(capsys, "dead-letters", "redrive", "--all", "--yes") == []
    assert "no dead letter 'x'" in world.cli(capsys, "dead-letters", "show", "x", code=2)
    assert "or choose by" in world.cli(capsys, "dead-letters", "redrive", code=2)
    shown = world.cli(capsys, "dead-letters", "show", "letter-1")
    assert (shown["event"], shown["value"], shown["key"]) == ("", "0102", "ff00")
    [found] = read_letters(world.bus, world.codec, world.run)
    assert found.event.value is None
    assert found.value_bytes == 2
    world.bus.close()
