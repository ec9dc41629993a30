"""The collector ``episodes``: what it records, and that slow, broken and stubborn devices harm nobody else."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from distrl.core.contracts.action import Action
from distrl.core.contracts.clock import Clock, SystemClock
from distrl.core.contracts.device import Device, StepResult
from distrl.core.contracts.events import Blob, ObservationRecord, Outcome, Split, Trajectory
from distrl.core.contracts.observation import Observation
from distrl.core.contracts.policy import Policy, PolicyAction, PolicyInput
from distrl.core.contracts.role import CollectorParts, RoleContext, Ticket
from distrl.core.contracts.task import Check, Task
from distrl.core.errors import (
    ConfigError,
    DeviceError,
    DeviceLostError,
    DeviceTimeoutError,
    PolicyError,
    StoreFullError,
    StoreUnavailableError,
    TaskError,
)
from distrl.plugins.builtin.collector.episode import EpisodeCollector
from distrl.plugins.builtin.collector.episode_options import EpisodeOptions

OPTIONS = EpisodeOptions(wait_ms=50, close_s=2)
ROUNDS = 3000
"""More than any test here needs: a limit, so that a mistake ends."""


class SteppedClock(SystemClock):
    """The machine's clock, whose monotonic time a test can push forward; it notes sleep and does not take it."""

    def __init__(self) -> None:
        self.ahead = 0.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead


class MemoryArtefacts:
    """Keeps UI trees by their text."""

    def __init__(self) -> None:
        self.failing = False

    def record(self, observation: Observation) -> ObservationRecord:
        if self.failing:
            raise StoreUnavailableError("the store is away")
        data = (observation.ui_tree or "").encode()
        return ObservationRecord(
            observation.time_ms, 1, 1, ui_tree=Blob("application/json", len(data), "0" * 64, inline=data)
        )

    def read(self, blob: Blob) -> bytes:
        return blob.inline or b""

    def observation(self, record: ObservationRecord) -> Observation:
        return Observation(record.time_ms, None, seen(record))


def seen(record: ObservationRecord) -> str:
    assert record.ui_tree is not None
    assert record.ui_tree.inline is not None
    return record.ui_tree.inline.decode()


class Counter:
    """A device that counts actions; its screen is the number of its present step. ``act`` may be replaced by a test."""

    def __init__(self, name: str, *, done_at: int = 3) -> None:
        self.device_id = name
        self.done_at = done_at
        self.count = 0
        self.actions: list[str] = []
        self.resets: list[str] = []
        self.finished: list[tuple[str, str]] = []
        self.closed = 0
        self.goal = ""
        self.on_reset: Callable[[], object] = lambda: None
        self.on_step: Callable[[], object] = lambda: None
        self.on_finish: Callable[[], object] = lambda: None

    def _look(self) -> Observation:
        return Observation(0, None, f"{self.device_id}:{self.count}")

    def reset(self, task: Task, *, episode: str) -> Observation:
        self.resets.append(episode)
        self.on_reset()
        self.count = 0
        return replace(self._look(), goal=self.goal)

    def step(self, action: Action) -> StepResult:
        self.on_step()
        self.actions.append(str(action))
        self.count += 1
        done = self.count >= self.done_at
        return StepResult(self._look(), done, 1.0 if done else None)

    def observe(self) -> Observation:
        return self._look()

    def outcome(self) -> float | None:
        return 1.0 if self.count >= self.done_at else 0.0

    def finish(self, episode: str, outcome: Outcome) -> None:
        self.on_finish()
        self.finished.append((episode, outcome))

    def health(self) -> None:
        """It is well."""

    def close(self) -> None:
        self.closed += 1


class Texts:
    """A policy that says what it is told to, step by step, and counts its calls."""

    name = "texts"
    base_model = "b" * 64

    def __init__(self, *texts: str) -> None:
        self.texts = texts or ("wait",)
        self.calls: list[list[PolicyInput]] = []

    @property
    def sampling(self) -> Mapping[str, float]:
        return {"temperature": 1.0}

    def act(self, batch: Sequence[PolicyInput], *, greedy: bool = False) -> Sequence[PolicyAction]:
        self.calls.append(list(batch))
        return [
            PolicyAction(
                self.texts[len(item.previous_actions) % len(self.texts)], (7, 8), (-0.5, -0.25), 1.5, 0.3, "mask"
            )
            for item in batch
        ]

    def load(self, path: Path) -> None:
        raise AssertionError

    def save(self, path: Path) -> None:
        raise AssertionError


class OneTask:
    """A task source with one task a seed."""

    def kinds(self) -> Sequence[str]:
        return ["count"]

    def sample(self, split: Split, seed: int) -> Task:
        return Task(f"count-{seed}", "count", split, "Count", seed, 5, (Check("a", "text", "b"),), {"to": "3"})

    def instances(self, split: Split, limit: int) -> Sequence[Task]:
        return [self.sample(split, seed) for seed in range(limit)]

    def demonstrate(self, task: Task) -> Sequence[Action] | None:
        return None


class Tickets:
    """Leave for so many episodes."""

    def __init__(self, count: int, policy: Policy | None = None) -> None:
        self.policy: Policy | None = policy or Texts()
        self.version = 1
        self.left = count
        self.issued = 0

    def __call__(self) -> Ticket | None:
        if self.left == 0:
            return None
        self.left -= 1
        self.issued += 1
        return Ticket(f"e{self.issued}", 100 + self.issued, self.policy, 2, self.version, f"trace-{self.issued}")


Build = Callable[..., EpisodeCollector]


@pytest.fixture
def artefacts() -> MemoryArtefacts:
    return MemoryArtefacts()


@pytest.fixture
def clock() -> SteppedClock:
    return SteppedClock()


@pytest.fixture
def build(artefacts: MemoryArtefacts, clock: Clock, tmp_path: Path) -> Iterator[Build]:
    made: list[EpisodeCollector] = []

    def make(*devices: Device, horizon: int | None = None, options: EpisodeOptions = OPTIONS) -> EpisodeCollector:
        context = RoleContext("run", "node-1", 0, clock, random.Random(0), artefacts, tmp_path)
        made.append(EpisodeCollector(options, context, CollectorParts(devices, OneTask(), horizon)))
        return made[-1]

    yield make
    for collector in made:
        collector.close()


def collect(collector: EpisodeCollector, tickets: Callable[[], Ticket | None], count: int) -> list[Trajectory]:
    """Advance until ``count`` episodes have ended."""
    ended: list[Trajectory] = []
    for _ in range(ROUNDS):
        ended += collector.advance(tickets)
        if len(ended) >= count:
            return ended
    raise AssertionError(f"{len(ended)} of {count} episodes ended in {ROUNDS} rounds")


# --- what is recorded ---------------------------------------------------------------------------


def test_a_finished_episode_carries_all_that_was_known(build: Build) -> None:
    (item,) = collect(build(Counter("d0")), Tickets(1), 1)
    assert (item.trajectory_id, item.envelope.event_id) == ("e1", "e1")
    assert (item.envelope.run, item.envelope.node, item.envelope.traceparent) == ("run", "node-1", "trace-1")
    assert (item.origin, item.outcome, item.environment_outcome) == ("policy", "finished", 1.0)
    assert (item.task_id, item.task_kind, item.split, item.goal, item.seed) == (
        "count-101",
        "count",
        "train",
        "Count",
        101,
    )
    assert json.loads(item.checks) == [{"resource_id": "a", "attribute": "text", "equals": "b"}]
    assert (item.device, item.horizon, item.attributes) == ("d0", 5, {"to": "3"})
    assert (item.policy, item.epoch, item.version, item.base_model) == ("texts", 2, 1, "b" * 64)
    assert json.loads(item.sampling) == {"temperature": 1.0}
    assert item.error_class == item.error == ""
    assert [seen(step.observation) for step in item.steps] == ["d0:0", "d0:1", "d0:2"]
    assert item.final_observation is not None
    assert seen(item.final_observation) == "d0:3"
    for step in item.steps:
        assert (step.action, step.action_tokens, step.token_log_probs) == ("wait", (7, 8), (-0.5, -0.25))
        assert (step.log_prob, step.entropy, step.value, step.constraint_mask) == (-0.75, 1.5, 0.3, "mask")
        assert not step.invalid
        assert item.started_ms <= step.chosen_ms <= step.done_ms <= item.ended_ms


def test_the_policy_is_given_goal_screen_and_earlier_actions(build: Build) -> None:
    policy = Texts("wait", "press back", "wait")
    collect(build(Counter("d0")), Tickets(1, policy), 1)
    inputs = [item for call in policy.calls for item in call]
    assert [item.previous_actions for item in inputs] == [(), ("wait",), ("wait", "press back")]
    assert [item.observation.ui_tree for item in inputs] == ["d0:0", "d0:1", "d0:2"]
    assert {item.goal for item in inputs} == {"Count"}


def test_a_goal_that_the_device_words_itself_takes_the_place_of_the_tasks(build: Build) -> None:
    device, policy = Counter("d0"), Texts()
    device.goal = "Count to three"
    (item,) = collect(build(device), Tickets(1, policy), 1)
    assert item.goal == "Count to three" == policy.calls[-1][0].goal


@pytest.mark.parametrize("horizon", [2, None])
def test_the_horizon_ends_an_episode_and_the_benchmark_is_asked(build: Build, horizon: int | None) -> None:
    (item,) = collect(build(Counter("d0", done_at=9), horizon=horizon), Tickets(1), 1)
    assert (item.outcome, item.environment_outcome, item.horizon, len(item.steps)) == (
        "horizon",
        0.0,
        horizon or 5,
        horizon or 5,
    )
    assert item.final_observation is not None
    assert seen(item.final_observation) == f"d0:{horizon or 5}"


def test_an_episode_done_in_its_last_step_is_finished(build: Build) -> None:
    (item,) = collect(build(Counter("d0", done_at=2), horizon=2), Tickets(1), 1)
    assert (item.outcome, item.environment_outcome) == ("finished", 1.0)


@pytest.mark.parametrize("word", ["done", "fail"])
def test_the_agents_own_word_ends_an_episode(build: Build, word: str) -> None:
    device = Counter("d0", done_at=9)
    (item,) = collect(build(device), Tickets(1, Texts("wait", word)), 1)
    assert (item.outcome, item.environment_outcome) == ("finished", 0.0)
    assert [step.action for step in item.steps] == ["wait", word]
    assert device.actions == ["wait"]
    assert item.final_observation == item.steps[-1].observation


def test_an_invalid_action_is_recorded_and_touches_nothing(build: Build) -> None:
    device = Counter("d0", done_at=9)
    (item,) = collect(build(device), Tickets(1, Texts("tap 2 2", "jump", "wait", "", "")), 1)
    assert [step.invalid for step in item.steps] == [True, True, False, True, True]
    assert "coordinates" in item.steps[0].invalid_reason
    assert "jump" in item.steps[1].invalid_reason
    assert [step.action for step in item.steps] == ["tap 2 2", "jump", "wait", "", ""]
    assert [seen(step.observation) for step in item.steps] == ["d0:0", "d0:0", "d0:0", "d0:1", "d0:1"]
    assert device.actions == ["wait"]
    assert (item.outcome, item.environment_outcome) == ("horizon", 0.0)
    assert item.final_observation == item.steps[-1].observation


def test_a_test_task_is_marked_as_such(build: Build) -> None:
    (item,) = collect(build(Counter("d0"), options=EpisodeOptions(split="test")), Tickets(1), 1)
    assert item.split == "test"


# --- versions and batches -----------------------------------------------------------------------


def test_an_episode_keeps_the_policy_it_began_with(build: Build) -> None:
    old, new, tickets = Texts(), Texts("press home"), Tickets(2)
    collector = build(Counter("d0", done_at=4))
    tickets.policy = old
    for _ in range(ROUNDS):
        collector.advance(tickets)
        if old.calls:
            break
    tickets.policy, tickets.version = new, 2
    first, second = collect(collector, tickets, 2)
    assert (first.version, {step.action for step in first.steps}) == (1, {"wait"})
    assert (second.version, {step.action for step in second.steps}) == (2, {"press home"})


def test_devices_that_are_ready_act_in_one_call(build: Build) -> None:
    policy = Texts()
    devices = [Counter(f"d{n}") for n in range(4)]
    barrier = threading.Barrier(4)
    for device in devices:
        device.on_step = lambda: barrier.wait(20)
    # Every device steps with the others, so whoever is first always has company within the settling time.
    collector = build(*devices, options=EpisodeOptions(wait_ms=50, settle_ms=10_000))
    ended = collect(collector, Tickets(4, policy), 4)
    assert [len(call) for call in policy.calls] == [4, 4, 4]
    assert [item.observation.ui_tree for item in policy.calls[0]] == ["d0:0", "d1:0", "d2:0", "d3:0"]
    assert {item.device for item in ended} == {"d0", "d1", "d2", "d3"}


def test_two_policies_are_never_mixed_in_a_batch(build: Build) -> None:
    policies = [Texts("wait"), Texts("press back")]
    tickets = Tickets(4)
    numbers = iter(range(4))

    def alternate() -> Ticket | None:
        tickets.policy = policies[next(numbers, 0) % 2]
        return tickets()

    ended = collect(build(*(Counter(f"d{n}") for n in range(4))), alternate, 4)
    assert {(item.device, item.steps[0].action) for item in ended} == {
        ("d0", "wait"),
        ("d1", "press back"),
        ("d2", "wait"),
        ("d3", "press back"),
    }


def test_a_slow_device_holds_nobody_up(build: Build) -> None:
    slow, fast = Counter("slow"), Counter("fast")
    gate = threading.Event()
    slow.on_step = lambda: gate.wait(60)
    collector = build(slow, fast)
    ended = collect(collector, Tickets(21), 20)
    assert {item.device for item in ended} == {"fast"}
    assert collector.in_flight() == 1
    assert slow.resets == ["e1"]
    gate.set()
    (last,) = collect(collector, Tickets(0), 1)
    assert (last.device, last.outcome) == ("slow", "finished")


def test_without_leave_nothing_starts(build: Build, clock: SteppedClock) -> None:
    collector = build(Counter("d0"))
    assert collector.advance(lambda: None) == []
    assert collector.in_flight() == 0
    assert clock.slept == []


# --- failures -----------------------------------------------------------------------------------


def raising(error: Exception, *, times: int = 10**9) -> Callable[[], None]:
    left = [times]

    def call() -> None:
        if left[0]:
            left[0] -= 1
            raise error

    return call


@pytest.mark.parametrize(
    "error",
    [DeviceTimeoutError("no answer"), DeviceLostError("gone"), TaskError("not mine"), ZeroDivisionError("a bug")],
)
def test_a_device_failure_is_an_aborted_episode_and_the_next_one_runs(build: Build, error: Exception) -> None:
    device = Counter("d0")
    collector = build(device)
    tickets = Tickets(1)
    while not device.actions:
        collector.advance(tickets)
    device.on_step = raising(error, times=1)
    (item,) = collect(collector, tickets, 1)
    assert item.outcome == "aborted"
    assert item.error_class == type(error).__name__
    assert str(error) in item.error
    assert item.environment_outcome is None
    assert item.final_observation is None
    assert 1 <= len(item.steps) <= 3
    (after,) = collect(collector, Tickets(1), 1)
    assert after.outcome == "finished"


def test_a_failing_reset_is_aborted_and_the_device_rests_longer_each_time(build: Build, clock: SteppedClock) -> None:
    device = Counter("d0")
    device.on_reset = raising(DeviceLostError("gone"))
    collector = build(device, options=EpisodeOptions(wait_ms=50, backoff_first_s=1000, backoff_longest_s=3000))
    tickets = Tickets(100)
    # The first failure is free: the reset of the next episode may mend it.
    assert [item.outcome for item in collect(collector, tickets, 2)] == ["aborted", "aborted"]
    for rest in (1000, 2000, 3000, 3000):
        clock.slept.clear()
        for _ in range(5):
            assert collector.advance(tickets) == []
        # Whoever calls it in a loop does not spin.
        assert clock.slept == [OPTIONS.wait_ms / 1000] * 5
        assert collector.in_flight() == 0
        before = tickets.issued
        clock.ahead += rest - 500
        assert collector.advance(tickets) == []
        assert tickets.issued == before
        clock.ahead += 501
        (item,) = collect(collector, tickets, 1)
        assert (item.outcome, item.steps) == ("aborted", ())
    clock.ahead += 3001
    device.on_reset = lambda: None
    assert collect(collector, tickets, 1)[0].outcome == "finished"
    # Once it works again, a failure is free again.
    device.on_reset = raising(DeviceLostError("gone"), times=1)
    assert [item.outcome for item in collect(collector, tickets, 2)][-2:] == ["aborted", "finished"]


def test_a_broken_device_leaves_the_others_alone(build: Build) -> None:
    broken, sound = Counter("broken"), Counter("sound")
    broken.on_reset = raising(DeviceError("dead"))
    ended = collect(build(broken, sound), Tickets(30), 30)
    assert {item.outcome for item in ended if item.device == "sound"} == {"finished"}
    assert {item.outcome for item in ended if item.device == "broken"} == {"aborted"}
    assert sum(item.device == "sound" for item in ended) >= 27


def test_an_outcome_that_cannot_be_had_is_an_aborted_episode(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    device = Counter("d0", done_at=9)
    monkeypatch.setattr(device, "outcome", raising(DeviceLostError("gone")))
    (item,) = collect(build(device), Tickets(1, Texts("done")), 1)
    assert (item.outcome, item.error_class) == ("aborted", "DeviceLostError")


@pytest.mark.parametrize("away_from", [0, 1])
def test_a_store_that_is_away_aborts_the_episode_but_not_the_device(
    build: Build, artefacts: MemoryArtefacts, away_from: int
) -> None:
    device = Counter("d0")
    collector = build(device, options=EpisodeOptions(wait_ms=50, backoff_first_s=1e6, backoff_longest_s=1e6))
    tickets = Tickets(4)
    while len(device.actions) < away_from:
        collector.advance(tickets)
    artefacts.failing = True
    for item in collect(collector, tickets, 3):
        assert (item.outcome, item.error_class) == ("aborted", "StoreUnavailableError")
        assert len(item.steps) <= 3
    artefacts.failing = False
    # A device that was held responsible would rest for days.
    assert collect(collector, tickets, 1)[0].outcome == "finished"


def test_a_policy_that_cannot_act_is_an_error(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Texts()
    monkeypatch.setattr(policy, "act", lambda batch: [])
    with pytest.raises(PolicyError, match="0 actions for 1"):
        collect(build(Counter("d0")), Tickets(1, policy), 1)
    nobody = Tickets(1)
    nobody.policy = None
    with pytest.raises(PolicyError, match="without a policy"):
        build(Counter("d0")).advance(nobody)
    with pytest.raises(ConfigError):
        build()


# --- the end ------------------------------------------------------------------------------------


def test_confirm_tells_the_device_that_ran_the_episode(build: Build) -> None:
    devices = [Counter("d0"), Counter("d1")]
    collector = build(*devices)
    ended = collect(collector, Tickets(2), 2)
    for item in ended:
        collector.confirm(item)
    for device in devices:
        assert device.finished == [
            (item.trajectory_id, "finished") for item in ended if item.device == device.device_id
        ]
    # After a new configuration an episode of the last start may be of a device that is no more.
    collector.confirm(replace(ended[0], device="elsewhere", trajectory_id="old"))
    assert devices[0].finished[-1] == ("old", "finished")


def test_a_device_that_cannot_take_note_stops_nothing_but_a_full_disk_does(build: Build) -> None:
    device = Counter("d0")
    collector = build(device)
    (item,) = collect(collector, Tickets(1), 1)
    device.on_finish = raising(DeviceLostError("gone"), times=1)
    collector.confirm(item)
    assert device.finished == []
    device.on_finish = raising(StoreFullError("no space"), times=1)
    with pytest.raises(StoreFullError):
        collector.confirm(item)
    collector.confirm(item)
    assert device.finished == [("e1", "finished")]


def test_a_confirmation_does_not_wait_for_ever(build: Build) -> None:
    device, gate = Counter("d0"), threading.Event()
    collector = build(device, options=EpisodeOptions(wait_ms=50, confirm_s=0.01))
    (item,) = collect(collector, Tickets(1), 1)
    device.on_finish = lambda: gate.wait(60)
    collector.confirm(item)
    gate.set()
    collector.close()
    assert device.finished == [("e1", "finished")]


def test_close_returns_what_is_in_hand_and_releases_the_devices(build: Build) -> None:
    devices = [Counter("d0", done_at=99), Counter("d1", done_at=99)]
    collector = build(*devices, horizon=99)
    tickets = Tickets(2)
    while not all(device.actions for device in devices):
        collector.advance(tickets)
    left = collector.close()
    assert sorted(item.trajectory_id for item in left) == ["e1", "e2"]
    assert {(item.outcome, item.error_class) for item in left} == {("aborted", "Stopped")}
    assert all(item.steps for item in left)
    assert [device.closed for device in devices] == [1, 1]
    assert collector.in_flight() == 0
    assert collector.close() == []
    assert collector.advance(Tickets(1)) == []


def test_close_leaves_a_hanging_device_behind(build: Build) -> None:
    hanging, sound = Counter("hanging"), Counter("sound")
    gate = threading.Event()
    hanging.on_reset = lambda: gate.wait(60)
    collector = build(hanging, sound, options=EpisodeOptions(wait_ms=50, close_s=0.2))
    collect(collector, Tickets(2), 1)
    (left,) = collector.close()
    assert (left.device, left.error_class, left.steps) == ("hanging", "Stopped", ())
    assert (hanging.closed, sound.closed) == (0, 1)
    gate.set()
