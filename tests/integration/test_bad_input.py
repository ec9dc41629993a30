"""What comes from elsewhere and is wrong ends in a clear error or a dead letter; the role goes on and nothing else is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from distrl.connectors import open_bus, open_store
from distrl.core.codec import Codec, event_key, event_topic
from distrl.core.config import Config, parse_config
from distrl.core.contracts.bus import Bus, Start
from distrl.core.contracts.clock import SystemClock
from distrl.core.contracts.events import DeadLetter, Event, Feedback, Reward, Role, Trajectory, WeightsUpdate
from distrl.core.contracts.topic import TopicName
from distrl.core.errors import (
    BlobCorruptError,
    BusUnavailableError,
    CodecError,
    InvalidEventError,
    SplitViolationError,
    UnknownTopicError,
)
from distrl.core.runtime.blob import stored_blob
from distrl.core.runtime.node import run_node
from distrl.core.runtime.scan import scan
from distrl.core.runtime.topic import declared_topics
from distrl.core.runtime.weights import WeightsFollower
from distrl.testing import make_envelope, make_policy_trajectory, make_reward, make_trajectory

RUN = "bad-input"


class World:
    """A run's log and store, looked at and written to from outside its nodes."""

    def __init__(self, directory: Path) -> None:
        self.config: Config = parse_config(
            {
                "run": {
                    "name": RUN,
                    "directory": str(directory / "runs"),
                    "heartbeat_seconds": 0.2,
                    "watchdog_seconds": 60,
                },
                "bus": {"path": str(directory / "log"), "session_seconds": 3},
                "store": {"path": str(directory / "store"), "inline_bytes": 64},
                "learner": {"checkpoint_seconds": 1.0, "options": {"batch": 2, "samples": 2}},
            }
        )
        self.codec = Codec()
        self.topic = TopicName(RUN)
        self.bus: Bus = open_bus(self.config.bus, clock=SystemClock(), client_id="test")
        self.store = open_store(self.config.store)

    def make_topics(self) -> None:
        self.bus.admin().create(declared_topics(self.config))

    def send(self, event: Event) -> None:
        self.send_bytes(event_topic(event), event_key(event), self.codec.encode(event))

    def send_bytes(self, topic: str, key: bytes, value: bytes) -> None:
        with self.bus.producer() as producer:
            producer.send(self.topic(topic), value, key=key).result(10.0)

    def events(self, topic: str) -> list[Event]:
        with self.bus.consumer([self.topic(topic)], start=Start.earliest()) as consumer:
            return [event for _, event in scan(consumer, self.codec)]

    def dead_letters(self) -> list[DeadLetter]:
        return [event for event in self.events("dead-letters") if isinstance(event, DeadLetter)]

    def ingested(self) -> set[str]:
        return {e.trajectory_id for e in self.events("feedback") if isinstance(e, Feedback) and e.kind == "ingested"}

    @contextmanager
    def node(self, role: Role) -> Iterator[None]:
        """A node of the role in a thread, stopped in good order at the end; what it raises is raised here."""
        stop = threading.Event()
        failures: list[BaseException] = []

        def work() -> None:
            try:
                run_node(self.config, role, node_id=f"{role}-0", stop=stop)
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=work, name=role)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(60.0)
        assert not thread.is_alive()
        if failures:
            raise failures[0]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    current = World(tmp_path)
    current.make_topics()
    yield current
    current.bus.close()
    current.store.close()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60.0
    while not condition():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.05)


def here(trajectory: Trajectory) -> Trajectory:
    """The sample as an event of this run."""
    return replace(trajectory, envelope=replace(make_envelope(trajectory.trajectory_id), run=RUN))


def judged(trajectory: Trajectory) -> Reward:
    reward = make_reward(trajectory, 1.0, evaluator="state")
    return replace(reward, envelope=replace(reward.envelope, run=RUN))


def test_an_event_that_is_not_avro_goes_to_the_dead_letters(world: World) -> None:
    framed = world.codec.encode(here(make_trajectory("cut")))
    world.send_bytes("trajectories", b"text", b"hello, this is no event")
    world.send_bytes("trajectories", b"cut", framed[: len(framed) // 2])
    world.send_bytes("trajectories", b"other-run", world.codec.encode(make_trajectory("other-run")))
    world.send(here(make_trajectory("good")))
    with world.node("evaluator"):
        until(lambda: len(world.events("rewards")) == 1 and len(world.dead_letters()) == 3)
    [reward] = world.events("rewards")
    assert isinstance(reward, Reward)
    assert (reward.trajectory_id, reward.success) == ("good", 1.0)
    letters = {letter.key: letter for letter in world.dead_letters()}
    assert letters[b"text"].code == CodecError.code
    assert letters[b"text"].value == b"hello, this is no event"
    assert letters[b"cut"].code == CodecError.code
    assert letters[b"cut"].value == framed[: len(framed) // 2]
    assert letters[b"other-run"].code == InvalidEventError.code
    assert {letter.topic for letter in letters.values()} == {world.topic("trajectories")}
    assert all(letter.traceback for letter in letters.values())


def test_what_an_evaluator_cannot_judge_does_not_stop_the_rest(world: World) -> None:
    good = [here(make_trajectory(f"good-{number}")) for number in range(5)]
    broken = replace(here(make_trajectory("broken")), checks="{not json")
    for trajectory in (*good[:2], broken, *good[2:]):
        world.send(trajectory)
    with world.node("evaluator"):
        until(lambda: len(world.events("rewards")) == 5 and len(world.dead_letters()) == 1)
    [letter] = world.dead_letters()
    assert (letter.key, letter.code) == (b"broken", InvalidEventError.code)
    # Judged once each: a second evaluator of the same group does what is new and nothing else.
    world.send(here(make_trajectory("new")))
    with world.node("evaluator"):
        until(lambda: "new" in {event.trajectory_id for event in world.events("rewards") if isinstance(event, Reward)})
    assert len(world.events("rewards")) == 6
    assert len(world.dead_letters()) == 1


BAD_VERDICT = """
import distrl

class Odd:
    name, version = "odd", "1"
    def __init__(self, options, context): ...
    def evaluate(self, batch):
        return [distrl.Verdict(7.0 if item.trajectory_id == "odd" else 1.0) for item in batch]

@distrl.hookimpl
def distrl_evaluators():
    return [distrl.Registration("odd", Odd)]
"""


def test_an_odd_verdict_costs_one_record(world: World, tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(BAD_VERDICT)
    table = world.config.model_dump(mode="json", exclude_none=True)
    table["run"]["plugins"] = [str(tmp_path / "odd.py")]
    world.config = parse_config({**table, "evaluator": {"plugin": "odd"}})
    for name in ("one", "odd", "two"):
        world.send(here(make_trajectory(name)))
    with world.node("evaluator"):
        until(lambda: len(world.events("rewards")) == 2 and len(world.dead_letters()) == 1)
    [letter] = world.dead_letters()
    assert (letter.key, letter.code) == (b"odd", InvalidEventError.code)
    assert "from 0 to 1" in letter.message


@pytest.mark.torch
def test_a_test_split_or_broken_trajectory_never_trains(world: World) -> None:
    from distrl.plugins.builtin.policy.factored import FactoredPolicy
    from distrl.plugins.builtin.policy.factored_options import FactoredOptions
    from distrl.testing import make_context

    policy = FactoredPolicy(FactoredOptions(), make_context(Path(world.config.run.directory)))
    good = [here(make_policy_trajectory(policy, f"good-{number}")) for number in range(3)]
    unseen = replace(here(make_policy_trajectory(policy, "unseen")), split="test")
    ref = world.store.put(f"{RUN}/artefacts/broken", b"wrong bytes", media_type="image/png")
    wrong = replace(stored_blob(ref), sha256="0" * 64)
    broken = here(make_policy_trajectory(policy, "broken"))
    step = broken.steps[0]
    broken = replace(
        broken, steps=(replace(step, observation=replace(step.observation, screenshot=wrong)), *broken.steps[1:])
    )
    odd = replace(here(make_policy_trajectory(policy, "odd")), steps=(replace(step, action_tokens=(99, 99)),))
    for trajectory in (good[0], unseen, broken, odd, *good[1:]):
        world.send(trajectory)
        world.send(judged(trajectory))
    with world.node("learner"):
        until(lambda: len(world.dead_letters()) == 3 and len(world.ingested()) == 3)
    letters = {letter.key: letter.code for letter in world.dead_letters()}
    assert letters == {
        b"unseen": SplitViolationError.code,
        b"broken": BlobCorruptError.code,
        b"odd": InvalidEventError.code,
    }
    assert world.ingested() == {"good-0", "good-1", "good-2"}


def test_weights_whose_hash_is_wrong_are_not_used(world: World, tmp_path: Path) -> None:
    def announce(version: int, data: bytes) -> WeightsUpdate:
        blob = stored_blob(world.store.put(f"{RUN}/weights/{version}", data, media_type="application/octet-stream"))
        envelope = replace(make_envelope(f"weights-{version}"), run=RUN)
        update = WeightsUpdate(envelope, "factored", 1, version, 0, blob)
        world.send_bytes("weights-latest", b"factored", world.codec.encode(update))
        return update

    follower = WeightsFollower(world.bus, world.codec, world.store, RUN, work_dir=tmp_path / "w", clock=SystemClock())
    announce(1, b"first")
    until(lambda: follower.poll())
    world.store.put(f"{RUN}/weights/2", b"second", media_type="application/octet-stream")
    update = announce(2, b"second")
    # Somebody writes other bytes of the same size under the key.
    path = Path(world.config.store.path) / world.store.bucket / update.blob.key
    path.write_bytes(b"sEcond")
    for _ in range(5):
        assert not follower.poll()
        time.sleep(0.3)
    assert follower.update is not None
    assert follower.update.version == 1
    assert follower.path.read_bytes() == b"first"
    # Once the store is mended, the version is taken over.
    path.write_bytes(b"second")
    until(lambda: follower.poll())
    assert follower.path.read_bytes() == b"second"
    follower.close()


def test_a_run_without_topics_says_how_to_make_them(tmp_path: Path) -> None:
    world = World(tmp_path)
    with pytest.raises(UnknownTopicError, match="topics apply"), world.node("evaluator"):
        time.sleep(0.5)
    world.bus.close()
    world.store.close()


def test_a_broker_that_is_not_there_is_named(tmp_path: Path) -> None:
    world = World(tmp_path)
    table = {"kind": "kafka", "bootstrap": ["127.0.0.1:1"]}
    world.config = parse_config({**world.config.model_dump(mode="json", exclude_none=True), "bus": table})
    with pytest.raises(BusUnavailableError, match=r"127\.0\.0\.1:1"), world.node("evaluator"):
        time.sleep(0.1)
    world.bus.close()
    world.store.close()
