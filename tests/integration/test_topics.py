"""``distrl topics`` on both logs: what differs is shown, made and altered, or refused; and no topic is ever made by use."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from distrl.connectors import open_bus
from distrl.core.cli import exit
from distrl.core.cli.main import command
from distrl.core.config import Config, load_config
from distrl.core.contracts.bus import Bus, TopicSpec
from distrl.core.contracts.clock import SystemClock
from distrl.core.errors import UnknownTopicError
from distrl.core.runtime.topic import declared_topics

if TYPE_CHECKING:
    from kafka_broker import KafkaServer

Call = Callable[..., tuple[int, str, str]]
Rows = list[dict[str, Any]]
HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    """A broker that would make topics by use, as many do."""
    from kafka_broker import start_kafka

    state = tmp_path_factory.mktemp("kafka") / "state"
    with start_kafka(state, settings={"auto.create.topics.enable": "true"}) as server:
        yield server


@pytest.fixture(params=["embedded", pytest.param("kafka", marks=pytest.mark.kafka)])
def config_file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A run of its own on a log that knows nothing of it."""
    lines = ["[run]", f'name = "{tmp_path.name.lower()[:60]}"', "[bus]", "partitions = 2"]
    if request.param == "kafka":
        broker: KafkaServer = request.getfixturevalue("broker")
        lines += ['kind = "kafka"', f'bootstrap = ["{broker.bootstrap}"]']
    else:
        lines += [f'path = "{tmp_path}/log"']
    file = tmp_path / "config.toml"
    file.write_text("\n".join(lines))
    return file


@pytest.fixture
def config(config_file: Path) -> Config:
    return load_config(config_file, environment={})


@pytest.fixture
def bus(config: Config) -> Iterator[Bus]:
    with open_bus(config.bus, clock=SystemClock(), client_id="test") as bus:
        yield bus
        names = [name for name in bus.admin().topics() if name.startswith(f"distrl.{config.run.name}.")]
        bus.admin().delete(names)


@pytest.fixture
def call(config_file: Path, capsys: pytest.CaptureFixture[str]) -> Call:
    """Calls ``distrl topics``; gives the exit code and what it printed."""

    def run(*arguments: str) -> tuple[int, str, str]:
        code = exit.run(command, ["topics", *arguments, "--config", str(config_file)])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def rows(call: Call, *arguments: str, code: int = 0) -> Rows:
    got, out, err = call(*arguments, "--json")
    assert got == code, err
    found: Rows = json.loads(out)
    return found


def test_topics_are_planned_then_made_then_there(call: Call, bus: Bus, config: Config) -> None:
    names = [spec.name for spec in declared_topics(config)]
    planned = rows(call, "plan", "--exit-code", code=4)
    assert [(row["topic"], row["state"], row["action"]) for row in planned] == [(n, "missing", "create") for n in names]
    assert bus.admin().topics(names) == {}
    assert {row["state"] for row in rows(call, "apply")} == {"made"}
    assert bus.admin().topics(names) == {spec.name: spec for spec in declared_topics(config)}
    assert {(row["state"], row["action"]) for row in rows(call, "plan", "--exit-code")} == {("as declared", "")}
    assert {row["state"] for row in rows(call, "apply")} == {"as declared"}


def test_settings_that_differ_are_shown_and_altered(call: Call, bus: Bus, config: Config) -> None:
    rows(call, "apply")
    settings = ("--set", "bus.retention_hours=2", "--set", "bus.retention_bytes=70000000")
    code, out, _ = call("plan", *settings)
    shown = " ".join(out.split())
    assert code == 0
    assert f"retention_ms {168 * HOUR_MS} -> {2 * HOUR_MS}, retention_bytes unbounded -> 70000000" in shown
    changed = {row["topic"].rpartition(".")[2]: row["state"] for row in rows(call, "apply", *settings)}
    assert {changed.pop(topic) for topic in ("nodes", "weights", "weights-latest")} == {"as declared"}
    assert set(changed.values()) == {"changed"}
    found = bus.admin().topics()[f"distrl.{config.run.name}.rewards"]
    assert (found.retention_ms, found.retention_bytes, found.partitions) == (2 * HOUR_MS, 70_000_000, 2)
    assert {row["state"] for row in rows(call, "plan", *settings)} == {"as declared"}


@pytest.mark.parametrize(("partitions", "why"), [(3, "keys would move"), (1, "a log never gives up partitions")])
def test_other_partitions_are_refused_and_nothing_else_is_done(
    call: Call, bus: Bus, config: Config, partitions: int, why: str
) -> None:
    rows(call, "apply")
    before = bus.admin().topics()
    settings = ("--set", f"bus.partitions={partitions}", "--set", "bus.retention_hours=2")
    planned = {row["topic"].rpartition(".")[2]: row for row in rows(call, "plan", *settings, "--exit-code", code=4)}
    assert (planned["rewards"]["action"], planned["metrics"]["action"]) == ("refuse", "alter")
    code, _, err = call("apply", *settings)
    assert code == 2
    assert err.startswith("error [DISTRL-307]: nothing was changed:")
    assert f"distrl.{config.run.name}.rewards: partitions 2 -> {partitions}: {why}" in err
    assert "set bus.partitions=2" in err
    assert err.count("\n") == 1
    assert bus.admin().topics() == before


def test_what_is_not_declared_any_more_is_shown_and_left(call: Call, bus: Bus, config: Config) -> None:
    rows(call, "apply")
    old, other = f"distrl.{config.run.name}.old", f"distrl.{config.run.name}x.rewards"
    bus.admin().create([TopicSpec(old), TopicSpec(other)])
    try:
        planned = rows(call, "plan", "--exit-code")
        assert [(row["topic"], row["state"]) for row in planned if row["state"] != "as declared"] == [
            (old, "undeclared")
        ]
        rows(call, "apply")
        assert old in bus.admin().topics()
    finally:
        bus.admin().delete([other])


def test_a_log_without_an_administrator_has_no_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f'[bus]\npath = "{tmp_path}/log"\n')
    assert exit.run(command, ["topics", "plan", "--commands", "--config", str(file)]) == 2
    assert "`distrl topics apply` makes its topics" in capsys.readouterr().err


# --- Kafka alone ----------------------------------------------------------------------------------------

on_kafka = pytest.mark.parametrize(
    "config_file", [pytest.param("kafka", marks=pytest.mark.kafka)], indirect=True, ids=["kafka"]
)


@on_kafka
def test_more_copies_than_brokers_alive_are_refused(call: Call, bus: Bus, config: Config) -> None:
    code, _, err = call("apply", "--set", "bus.replication=3")
    assert code == 2
    assert "bus.replication: 3 copies are declared and 1 broker is alive, too few for topic" in err
    assert not [name for name in bus.admin().topics() if name.startswith(f"distrl.{config.run.name}.")]


@on_kafka
def test_another_number_of_copies_is_refused(call: Call, bus: Bus) -> None:
    rows(call, "apply")
    code, _, err = call("apply", "--set", "bus.replication=2")
    assert code == 2
    assert "replication 1 -> 2: set bus.replication=1, or have the brokers' administrator move its replicas" in err


@on_kafka
@pytest.mark.timeout(180)
def test_an_administrators_commands_do_what_apply_does(
    call: Call, bus: Bus, config: Config, broker: KafkaServer, tmp_path: Path
) -> None:
    """The printed lines, run by a shell with Kafka's own tools."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, main_class in (
        ("kafka-topics.sh", "org.apache.kafka.tools.TopicCommand"),
        ("kafka-configs.sh", "kafka.admin.ConfigCommand"),
    ):
        *java, main = broker.tool(main_class)
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec {" ".join(repr(part) for part in java)} {main} "$@"\n')
        program.chmod(0o755)

    def run(line: str) -> None:
        environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
        done = subprocess.run(["/bin/sh", "-c", line], env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr

    def lines(*settings: str) -> dict[str, str]:
        code, out, _ = call("plan", "--commands", *settings)
        assert code == 0
        return {line.partition(f"distrl.{config.run.name}.")[2].split()[0]: line for line in out.splitlines()}

    chosen = ("rewards", "nodes")
    made = lines()
    assert len(made) == 9
    for topic in chosen:
        run(made[topic])
    specs = {spec.name.rpartition(".")[2]: spec for spec in declared_topics(config)}
    assert bus.admin().topics([specs[topic].name for topic in chosen]) == {
        specs[topic].name: specs[topic] for topic in chosen
    }
    run(lines("--set", "bus.retention_bytes=70000000")["rewards"])
    assert bus.admin().topics([specs["rewards"].name])[specs["rewards"].name].retention_bytes == 70_000_000


@on_kafka
def test_no_topic_is_made_by_use(bus: Bus, config: Config) -> None:
    name = f"distrl.{config.run.name}.rewards"
    admin = bus.admin()
    with bus.producer() as producer, pytest.raises(UnknownTopicError, match="distrl topics apply"):
        producer.send(name, b"v").result(30.0)
    with bus.producer(fence=name) as fenced, pytest.raises(UnknownTopicError):
        fenced.send(name, b"v").result(30.0)
    for group in (None, "g"):
        with pytest.raises(UnknownTopicError):
            bus.consumer([name], group=group)
    with pytest.raises(UnknownTopicError):
        admin.end_offsets([name])
    assert admin.alter([TopicSpec(name)]) == []
    assert name not in admin.topics()
    # One that is deleted while it is in use does not come back either.
    admin.create([TopicSpec(name)])
    with bus.producer() as producer, bus.consumer([name]) as consumer:
        producer.send(name, b"v").result(30.0)
        admin.delete([name])
        with pytest.raises(UnknownTopicError):
            producer.send(name, b"v").result(30.0)
        consumer.poll(0.5)
    assert name not in admin.topics()
