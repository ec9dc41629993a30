"""What live nodes tell of themselves: their numbers, their health, and in every wait who is missing."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from distrl.connectors import open_bus
from distrl.core.codec import Codec, event_key, event_topic
from distrl.core.config import Config, parse_config
from distrl.core.contracts.bus import Bus
from distrl.core.contracts.clock import SystemClock
from distrl.core.contracts.events import Event, NodeStatus, Role
from distrl.core.contracts.metric import NODE_METRICS
from distrl.core.contracts.topic import TopicName
from distrl.core.errors import StarvedError
from distrl.core.runtime.node import run_node
from distrl.core.runtime.scan import scan
from distrl.core.runtime.topic import declared_topics
from distrl.testing import make_envelope, make_trajectory

pytestmark = pytest.mark.timeout(400)
LIGHT = Path(__file__).parents[1] / "data" / "plugins" / "light.py"
RUN = "watched"
ROLES: tuple[Role, ...] = ("learner", "evaluator", "prioritizer", "collector")
SPEED = 8.0
BOUND_S = 12.0
"""Of a wait, on the faster clock."""


class FasterClock(SystemClock):
    """The machine's clocks, some times as fast."""

    def __init__(self) -> None:
        self._started = super().monotonic()
        self._started_ms = super().time_ms()
        self.set_forward_s = 0.0

    def monotonic(self) -> float:
        return (super().monotonic() - self._started) * SPEED

    def time_ms(self) -> int:
        return self._started_ms + round((self.monotonic() + self.set_forward_s) * 1000)

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds / SPEED)

    def wait(self, event: threading.Event, seconds: float) -> bool:
        return super().wait(event, seconds / SPEED)


class World:
    """A run whose nodes are threads of this process."""

    def __init__(self, directory: Path, clock: SystemClock, **run: Any) -> None:
        self.clock = clock
        self.config: Config = parse_config(
            {
                "run": {
                    "name": RUN,
                    "directory": str(directory / "runs"),
                    "heartbeat_seconds": 2.0,
                    "plugins": [str(LIGHT)],
                    **run,
                },
                "bus": {"path": str(directory / "log"), "session_seconds": 10},
                "store": {"path": str(directory / "store")},
                "tasks": {"options": {"kinds": ["open"]}},
                "collector": {"devices": 2, "stop_seconds": 1.0},
                "policy": {"plugin": "light-taps"},
                "learner": {"plugin": "light", "checkpoint_seconds": 2.0},
            }
        )
        self.codec = Codec()
        self.topic = TopicName(RUN)
        self.bus: Bus = open_bus(self.config.bus, clock=SystemClock(), client_id="test")
        self.bus.admin().create(declared_topics(self.config))

    def send(self, event: Event) -> None:
        with self.bus.producer() as producer:
            producer.send(self.topic(event_topic(event)), self.codec.encode(event), key=event_key(event)).result(20.0)

    def statuses(self, node: str) -> list[NodeStatus]:
        with self.bus.consumer([self.topic("nodes")]) as consumer:
            found = [event for _, event in scan(consumer, self.codec) if isinstance(event, NodeStatus)]
        return [event for event in found if event.envelope.node == node]

    def http(self, node: str) -> str:
        """Where a node answers, once it has said so."""
        until(lambda: any(status.http for status in self.statuses(node)))
        return self.statuses(node)[-1].http

    def pretend(self, node: str, role: Role, waiting_for: str = "") -> None:
        """Send a sign of life of a node that is not there; it counts as alive for minutes."""
        envelope = replace(make_envelope(f"{node} lives"), run=RUN, node=node, time_ms=self.clock.time_ms())
        self.send(NodeStatus(envelope, role, "episodes", "running", "i", "h", 1, 0, 200_000, waiting_for=waiting_for))

    @contextmanager
    def node(self, role: Role) -> Iterator[list[BaseException]]:
        """A node of the role in a thread, stopped in good order at the end; what it raised is in the list."""
        stop = threading.Event()
        failures: list[BaseException] = []

        def work() -> None:
            try:
                run_node(self.config, role, node_id=f"{role}-0", stop=stop, clock=self.clock)
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=work, name=role)
        thread.start()
        try:
            yield failures
        finally:
            stop.set()
            thread.join(60.0)
        assert not thread.is_alive()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 200.0
    while not condition():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.05)


def ask(address: str, path: str, accept: str = "") -> tuple[int, str]:
    request = urllib.request.Request(f"http://{address}{path}", headers={"Accept": accept})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def families(address: str) -> dict[str, Metric]:
    return {family.name: family for family in parse(ask(address, "/metrics")[1])}


def value(address: str, family: str, **labels: str) -> float:
    """The sum of a family's series that have these labels."""
    found = families(address)[family]
    samples = [sample for sample in found.samples if labels.items() <= sample.labels.items()]
    return sum(sample.value for sample in samples if sample.name in (family, f"{family}_total", f"{family}_count"))


@contextmanager
def process(role: Role, config: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A node of the role as a process of its own."""
    command = [sys.executable, "-m", "distrl.core.cli.node", "--role", role, "--config", str(config)]
    with config.with_name(f"{role}.out").open("wb") as output:
        child = subprocess.Popen([*command, "--node-id", f"{role}-0"], stdout=output, stderr=output)
    try:
        yield child
    finally:
        child.terminate()
        try:
            child.wait(60.0)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
    assert child.returncode == 0, config.with_name(f"{role}.out").read_text()[-2000:]


# --- a run under way --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Role, str]]:
    """Where the nodes of a run answer that has collected, judged and learned; processes, as in any run."""
    directory = tmp_path_factory.mktemp("watched")
    world = World(directory, SystemClock())
    file = directory / "run.toml"
    file.write_text(tomli_w.dumps(world.config.model_dump(mode="json", exclude_none=True)))
    with ExitStack() as stack:
        children = [stack.enter_context(process(role, file)) for role in ROLES]

        def come(condition: Callable[[], bool]) -> None:
            until(lambda: any(child.poll() is not None for child in children) or condition())
            assert all(child.poll() is None for child in children)

        found = {role: world.http(f"{role}-0") for role in ROLES}
        come(lambda: value(found["learner"], "distrl_handler_seconds", handler="update") >= 2)
        come(lambda: value(found["collector"], "distrl_weights_version") >= 1)
        come(lambda: all(ask(address, "/health/ready")[0] == 200 for address in found.values()))
        yield found
    world.bus.close()


@pytest.mark.parametrize("role", ROLES)
def test_prometheus_reads_what_the_table_declares(addresses: dict[Role, str], role: Role) -> None:
    served = families(addresses[role])
    for metric in NODE_METRICS:
        name = metric.served.removesuffix("_total") if metric.kind == "counter" else metric.served
        if metric.served.endswith("_"):
            continue
        if name not in served:
            assert metric.kind == "gauge", name
            assert metric.name, name  # only what a loop has never set may be absent
            continue
        family = served[name]
        assert (family.type, family.documentation) == (metric.kind, metric.meaning)
        for sample in family.samples:
            labels = {"run": RUN, "role": role, "node": f"{role}-0"}
            assert labels.items() <= sample.labels.items()
            assert sample.labels.keys() - labels.keys() <= {metric.label, "le"}
    declared = {metric.served.removesuffix("_total") for metric in NODE_METRICS}
    own = {name for name in served if name.startswith("distrl_") and not name.startswith("distrl_learner_")}
    assert own <= declared
    assert served["process_resident_memory_bytes"].samples[0].value > 0


def test_a_run_under_way_shows_in_its_numbers(addresses: dict[Role, str]) -> None:
    collector, evaluator, learner = addresses["collector"], addresses["evaluator"], addresses["learner"]
    assert value(collector, "distrl_episodes") >= 8
    assert value(collector, "distrl_steps") >= value(collector, "distrl_episodes")
    assert value(collector, "distrl_handler_seconds", handler="episode") >= 8
    assert value(evaluator, "distrl_records_handled", topic="trajectories") >= 8
    assert value(learner, "distrl_records_handled", topic="rewards") >= 8
    assert value(learner, "distrl_learner_buffer_trajectories") >= 8
    assert value(learner, "distrl_learner_loss_of_nothing") == 0
    assert value(learner, "distrl_store_requests", operation="put") >= 1
    assert value(learner, "distrl_checkpoint_age_seconds") >= 0
    assert value(learner, "distrl_busy_seconds") > 0
    assert value(evaluator, "distrl_wait_seconds", cause="trajectories") > 0
    for address in addresses.values():
        assert value(address, "distrl_live") == value(address, "distrl_ready") == 1
        assert value(address, "distrl_log_age_seconds") < 30


@pytest.mark.parametrize("role", ROLES)
def test_openmetrics_is_served_to_who_asks_for_it(addresses: dict[Role, str], role: Role) -> None:
    status, text = ask(addresses[role], "/metrics", "application/openmetrics-text; version=1.0.0")
    assert status == 200
    assert {"distrl_build", "distrl_records_handled"} & {family.name for family in parse_openmetrics(text)}


def test_a_node_that_takes_part_says_why(addresses: dict[Role, str]) -> None:
    for role, address in addresses.items():
        status, text = ask(address, "/health/live")
        assert (status, json.loads(text)["live"]) == (200, True)
        answer = json.loads(ask(address, "/health/ready")[1])
        checks = set(answer["checks"])
        assert {"live", "state", "log", "store", "plugin"} <= checks
        assert ("weights" in checks) == (role == "collector")
        assert ("assignment" in checks) == (role != "collector")


# --- who is missing ---------------------------------------------------------------------------------


def no_one(_world: World) -> None:
    """Nobody else is there."""


def a_collector(world: World) -> None:
    world.pretend("collector-9", "collector", waiting_for="weights")


def a_learner(world: World) -> None:
    world.pretend("learner-9", "learner")


def a_collector_and_an_evaluator(world: World) -> None:
    a_collector(world)
    world.pretend("evaluator-9", "evaluator")


def an_unjudged_trajectory(world: World) -> None:
    a_collector(world)
    sample = make_trajectory("t")
    world.send(replace(sample, envelope=replace(make_envelope("t"), run=RUN)))


WAITS = [
    ("collector", no_one, "learner", "no weights have come, and no learner is alive", True),
    ("collector", a_learner, "weights", "no weights have come, although learner-9 is running", True),
    ("learner", no_one, "collector", "no collector is alive", True),
    ("learner", a_collector, "evaluator", "no evaluator is alive", True),
    ("evaluator", no_one, "collector", "no collector is alive", False),
    ("evaluator", a_collector, "trajectories", "collector-9 waits for weights", False),
    ("prioritizer", no_one, "collector", "no collector is alive", False),
    ("prioritizer", an_unjudged_trajectory, "evaluator", "1 trajectories wait for a verdict and no evaluator", False),
]
"""A role, who else is there, which side it must miss, in which words, and whether its wait ends with an error."""


@pytest.mark.parametrize(("role", "others", "side", "words", "ends"), WAITS)
def test_a_role_that_waits_says_who_is_missing(
    tmp_path: Path, role: Role, others: Callable[[World], None], side: str, words: str, ends: bool
) -> None:
    world = World(tmp_path, FasterClock(), watchdog_seconds=BOUND_S)
    others(world)
    with world.node(role) as failures:
        address = world.http(f"{role}-0")
        seen: dict[str, float] = {}

        def missed() -> bool:
            if failures:  # its wait has ended meanwhile
                return True
            try:
                series = families(address)["distrl_missing"].samples
            except OSError:
                return bool(failures)
            seen.update({sample.labels["side"]: sample.value for sample in series if sample.value})
            return side in seen

        until(missed)
        until(lambda: any(words in status.missing for status in world.statuses(f"{role}-0")))
        if ends:
            until(lambda: bool(failures))
        else:
            begun = world.clock.monotonic()
            until(lambda: bool(failures) or world.clock.monotonic() - begun > BOUND_S)
    assert seen.keys() <= {side}
    assert [type(error) for error in failures] == ([StarvedError] if ends else [])
    world.bus.close()


def test_a_learner_that_gets_no_verdicts_ends_with_an_error_that_says_what_the_others_do(tmp_path: Path) -> None:
    world = World(tmp_path, FasterClock(), watchdog_seconds=BOUND_S)
    a_collector_and_an_evaluator(world)
    with world.node("learner") as failures:
        until(lambda: bool(failures))
    assert "although evaluators are alive and collector-9 waits for weights" in str(failures[0])
    world.bus.close()


@pytest.mark.parametrize("jump_s", [7 * 3600.0, -7 * 3600.0])
def test_a_wall_clock_that_is_set_disturbs_no_role(tmp_path: Path, jump_s: float) -> None:
    clock = FasterClock()
    world = World(tmp_path, clock, watchdog_seconds=400.0, heartbeat_seconds=40.0)
    with ExitStack() as stack:
        failures = [stack.enter_context(world.node(role)) for role in ROLES]
        addresses = {role: world.http(f"{role}-0") for role in ROLES}
        updates = lambda: value(addresses["learner"], "distrl_handler_seconds", handler="update")  # noqa: E731
        until(lambda: updates() >= 1)
        clock.set_forward_s = jump_s
        former = updates()
        until(lambda: updates() >= former + 3)
        for address in addresses.values():
            served = families(address)
            for name in ("distrl_queue_age_seconds", "distrl_log_age_seconds", "distrl_waiting_seconds"):
                assert max((sample.value for sample in served[name].samples), default=0.0) < 2 * 3600, name
            assert value(address, "distrl_missing") == 0
        assert value(addresses["learner"], "distrl_trajectories_unjudged") == 0
        assert not any(failures)
    assert not any(failures)
    world.bus.close()
