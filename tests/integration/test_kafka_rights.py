"""Each part of a run works with the rights that ``connectors.kafka.acl`` lists, and with none less."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from distrl.connectors import open_bus
from distrl.connectors.kafka.acl import PARTS, STATUS_TOPICS, Acl, Part, acls
from distrl.core.cli import exit
from distrl.core.cli.main import command
from distrl.core.codec import Codec
from distrl.core.config import parse_config
from distrl.core.contracts.bus import Bus, TopicSpec
from distrl.core.contracts.clock import SystemClock
from distrl.core.contracts.flow import FLOWS
from distrl.core.contracts.topic import TopicName
from distrl.core.errors import BusAuthorizationError
from distrl.core.runtime import tail
from distrl.core.runtime.tail import RunTail
from distrl.core.runtime.topic import declared_topics

if TYPE_CHECKING:
    from conftest import SecureKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(400)]

CONFIG = parse_config({"run": {"name": "rights"}, "bus": {"kind": "kafka", "partitions": 1}})
CASES = [(part, acl) for part in PARTS for acl in acls(CONFIG, part)]
TOPIC = TopicName("rights")


@pytest.fixture(scope="module")
def granted(secure_kafka: SecureKafka) -> SecureKafka:
    """The topics of a run; each part's user has its rights, ``<part>-<number>`` all of them but that one."""
    rights: list[tuple[str, Acl]] = []
    for part in PARTS:
        whole = acls(CONFIG, part)
        rights += [(part, acl) for acl in whole]
        rights += [
            (f"{part}-{number}", acl)
            for number, _ in enumerate(whole)
            for other, acl in enumerate(whole)
            if other != number
        ]
    secure_kafka.grant(rights)
    with open_bus(secure_kafka.bus_config(), clock=SystemClock(), client_id="test") as bus:
        bus.admin().create(declared_topics(CONFIG))
        with bus.producer() as producer:
            for name in FLOWS:
                producer.send(TOPIC(name), b"v", key=b"k").result(60.0)
    return secure_kafka


def use(bus: Bus, part: Part, acl: Acl) -> None:
    """What ``part`` does that takes ``acl``. Raises what the log says to that."""
    admin = bus.admin()
    own = TopicSpec(f"distrl.rights.{part}-{acl.operation.lower()}")
    match acl.operation, acl.resource:
        case "Write", "topic":
            with bus.producer() as producer:
                producer.send(acl.name, b"v", key=b"k").result(60.0)
        case "Write", "transactional-id":
            with bus.producer(fence=acl.name) as producer:
                producer.send(TOPIC("weights"), b"v", key=b"k").result(60.0)
        case "Read", "topic":
            with bus.consumer([acl.name]) as consumer:
                deadline = time.monotonic() + 60.0
                while not consumer.poll(0.5):
                    assert time.monotonic() < deadline
        case "Read", "group":
            with bus.consumer([TOPIC("trajectories")], group=acl.name, member="m") as consumer:
                deadline = time.monotonic() + 60.0
                while not (records := consumer.poll(0.5)):
                    assert time.monotonic() < deadline
                consumer.ack(records[0])
                consumer.commit()
        case "Describe", "topic":
            assert acl.name in admin.topics([acl.name])
        case "Create" | "Delete", "topic":
            assert admin.create([own]) == [own.name]
            admin.delete([own.name])
        case "AlterConfigs", "topic":
            weights = next(spec for spec in declared_topics(CONFIG) if spec.name == TOPIC("weights"))
            admin.alter([weights])
        case "Delete", "group":
            admin.groups("distrl.rights.")
            admin.delete_groups(["distrl.rights.gone"])
        case _:
            raise AssertionError(acl)


def opened(secure: SecureKafka, user: str) -> Bus:
    return open_bus(secure.bus_config(user), clock=SystemClock(), client_id="test")


@pytest.mark.parametrize("part", PARTS)
def test_a_part_may_do_what_it_does(granted: SecureKafka, part: Part) -> None:
    with opened(granted, part) as bus:
        for acl in acls(CONFIG, part):
            use(bus, part, acl)


@pytest.mark.parametrize(("part", "acl"), CASES, ids=lambda value: str(value).replace("distrl.rights.", ""))
def test_without_any_one_right_it_is_refused(granted: SecureKafka, part: Part, acl: Acl) -> None:
    user = f"{part}-{acls(CONFIG, part).index(acl)}"
    with opened(granted, user) as bus, pytest.raises(BusAuthorizationError) as caught:
        use(bus, part, acl)
    assert caught.value.exit_code == 3
    assert acl.name.rstrip(".") in str(caught.value)


def test_rights_are_those_of_the_table_of_topics() -> None:
    assert STATUS_TOPICS == tail.STATUS_TOPICS
    writers = {(part, acl.name) for part, acl in CASES if acl.operation == "Write" and acl.resource == "topic"}
    assert writers == {(role, TOPIC(name)) for name, flow in FLOWS.items() for role in flow.written_by}


# --- the command line -----------------------------------------------------------------------------------


@pytest.fixture
def call(
    granted: SecureKafka, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> Callable[..., Any]:
    file = tmp_path / "config.toml"

    def run(user: str, *arguments: str, name: str = "rights") -> tuple[int, str, str]:
        file.write_text(config_file(granted, user, name))
        monkeypatch.setenv("DISTRL_BUS__PASSWORD", granted.users[user])
        code = exit.run(command, [*arguments, "--config", str(file)])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def config_file(secure: SecureKafka, user: str, name: str, extra: str = "") -> str:
    return (
        f'[run]\nname = "{name}"\nwatchdog_seconds = 300\n[bus]\nkind = "kafka"\nbootstrap = ["{secure.server.bootstrap}"]\n'
        f'security_protocol = "SASL_SSL"\nsasl_mechanism = "SCRAM-SHA-512"\nusername = "{user}"\npartitions = 1\n'
        f'ca_file = "{secure.authority.ca_file}"\nsession_seconds = 30\n{extra}'
    )


def test_plan_needs_only_a_look_and_apply_says_what_an_administrator_must_do(
    granted: SecureKafka, call: Callable[..., Any]
) -> None:
    granted.grant([("described", Acl("Describe", "topic", "distrl.", "prefixed"))])
    code, out, err = call("described", "topics", "plan", "--json")
    assert code == 0, err
    assert {row["state"] for row in json.loads(out)} == {"settings unknown"}
    code, out, err = call("described", "topics", "plan", "--json", name="unmade")
    assert {row["state"] for row in json.loads(out)} == {"missing"}
    code, out, err = call("described", "topics", "apply", name="unmade")
    assert code == 3
    assert err.startswith("error [DISTRL-309]: 9 of 9 topics could not be made or changed (making topic distrl.unmade.")
    assert err.count("\n") == 1
    lines = [line for line in out.splitlines() if line.startswith("kafka-topics.sh ")]
    assert len(lines) == 9
    assert "--command-config admin.properties --create --if-not-exists --topic distrl.unmade.traj" in lines[0]
    code, out, err = call("nobody", "topics", "plan")
    assert (code, "looking at topic distrl.rights." in err) == (3, True)


def test_status_reads_with_its_own_rights(call: Callable[..., Any]) -> None:
    code, out, err = call("status", "status", "--json")
    assert code == 0, err
    assert json.loads(out)["log_bytes"] is None  # sizes take a right on the cluster
    code, _, err = call("nobody", "status", "--json")
    assert (code, err.startswith("error [DISTRL-309]:")) == (3, True)


def test_acls_are_printed(call: Callable[..., Any]) -> None:
    code, out, _ = call("learner", "topics", "acls", "--role", "learner", "--principal", "User:learner", "--commands")
    assert code == 0
    assert len(out.splitlines()) == len(acls(CONFIG, "learner"))
    assert (
        "--add --allow-principal User:learner --operation Write --transactional-id distrl.rights.learner "
        "--resource-pattern-type literal"
    ) in out
    code, out, _ = call("learner", "topics", "acls", "--role", "status", "--principal", "User:x", "--json")
    assert [row["name"] for row in json.loads(out)] == [TOPIC(name) for name in STATUS_TOPICS]
    for wrong in (("--role", "nobody"), ("--role", "learner", "--principal", "x")):
        assert call("learner", "topics", "acls", *wrong)[0] == 2


@pytest.mark.timeout(180)
def test_an_administrators_lines_give_the_right(granted: SecureKafka, call: Callable[..., Any], tmp_path: Path) -> None:
    """The printed line, with Kafka's own tool."""
    _, out, _ = call(
        "learner", "topics", "acls", "--role", "status", "--principal", "User:nobody", "--commands", name="a"
    )
    properties = tmp_path / "admin.properties"
    properties.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nssl.truststore.type=PEM\n"
        f"ssl.truststore.location={granted.authority.ca_file}\nsasl.jaas.config="
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        f'username="admin" password="{granted.users["admin"]}";\n'
    )
    words = shlex.split(out.splitlines()[0])
    assert words[0] == "kafka-acls.sh"
    done = subprocess.run(
        granted.server.tool("org.apache.kafka.tools.AclCommand", *words[1:]),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "operation=READ" in done.stdout


# --- real nodes -----------------------------------------------------------------------------------------

ROLES = ("collector", "evaluator", "prioritizer", "learner")
SMALL = """
[tasks]
options.kinds = ["open"]
[collector]
devices = 4
demonstrations = 0
[learner]
checkpoint_seconds = 2
options.demonstrations = 0
options.clone_updates = 0
"""


@pytest.fixture
def nodes(granted: SecureKafka, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts ``distrl-node`` as a user."""
    with ExitStack() as stack:

        def start(role: str, user: str, name: str) -> subprocess.Popen[str]:
            file = tmp_path / f"{role}.toml"
            file.write_text(config_file(granted, user, name, SMALL))
            process = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", "distrl.core.cli.node", "--role", role, "--config", str(file)],
                    cwd=tmp_path,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    text=True,
                    env={**os.environ, "DISTRL_BUS__PASSWORD": granted.users[user], "OMP_NUM_THREADS": "1"},
                )
            )
            stack.callback(process.kill)
            return process

        yield start


@pytest.mark.torch
def test_a_run_completes_with_a_user_for_each_role(
    granted: SecureKafka, nodes: Callable[..., subprocess.Popen[str]]
) -> None:
    name = "people"
    config = parse_config({"run": {"name": name}, "bus": granted.login("supervisor", partitions=1)})
    granted.grant([(part, acl) for part in (*ROLES, "supervisor") for acl in acls(config, cast(Part, part))])
    with opened(granted, "admin") as bus:
        bus.admin().create(declared_topics(config))
    processes = {role: nodes(role, role, name) for role in ROLES}
    with opened(granted, "supervisor") as bus:
        assert bus.admin().create(declared_topics(config)) == []
        with RunTail(bus, Codec(), name, evaluator="state") as following:
            deadline = time.monotonic() + 300.0
            while following.history.total.ingested < 5 or len(following.history.nodes) < len(ROLES):
                assert time.monotonic() < deadline, following.history
                for role, process in processes.items():
                    assert process.poll() is None, (role, process.stderr.read() if process.stderr else "")
                following.poll(0.5)
            assert following.history.dead_letters == 0
    for process in processes.values():
        process.send_signal(signal.SIGTERM)
    for role, process in processes.items():
        _, err = process.communicate(timeout=90)
        assert process.returncode == 0, (role, err)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("role", "operation", "name"),
    [
        ("collector", "Read", "weights-latest"),
        ("evaluator", "Read", "evaluator.state"),
        ("prioritizer", "Read", "feedback"),
        ("learner", "Write", "learner"),
    ],
)
def test_a_node_without_a_right_ends_and_names_it(
    nodes: Callable[..., subprocess.Popen[str]], role: Part, operation: str, name: str
) -> None:
    rights = acls(CONFIG, role)
    [number] = [n for n, acl in enumerate(rights) if (acl.operation, acl.name) == (operation, f"distrl.rights.{name}")]
    process = nodes(role, f"{role}-{number}", "rights")
    _, err = process.communicate(timeout=120)
    last = err.strip().splitlines()[-1]
    assert process.returncode == 3, err
    assert last.startswith("error [DISTRL-309]:")
    assert f"distrl.rights.{name}" in last
    assert "Traceback" not in err
