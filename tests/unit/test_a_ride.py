"""The learner A-RIDE with the real policy on small screens: what it wants, trains, publishes, saves."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from distrl.core.contracts.clock import SystemClock
from distrl.core.contracts.events import (
    Blob,
    Envelope,
    ObservationRecord,
    Origin,
    Outcome,
    Priority,
    Reward,
    StepRecord,
    Trajectory,
)
from distrl.core.contracts.observation import Observation, Screenshot
from distrl.core.contracts.policy import PolicyInput
from distrl.core.contracts.role import Experience, RoleContext, UpdateResult, Wanted
from distrl.core.contracts.staleness import StalenessPolicy
from distrl.core.errors import CheckpointError, InvalidEventError, PolicyError, SplitViolationError, WeightsError
from distrl.plugins.builtin.learner.a_ride import ARide
from distrl.plugins.builtin.learner.a_ride_options import ARideOptions
from distrl.plugins.builtin.policy.factored import FactoredPolicy
from distrl.plugins.builtin.policy.factored_options import FactoredOptions

pytestmark = pytest.mark.torch

POLICY = FactoredOptions(columns=2, rows=2, words=4, buckets=64, history=2, width=16, actions=("tap", "type", "done"))
ENVELOPE = Envelope("e", "r", "n", 0)


class MemoryArtefacts:
    """Artefacts that ride inside the record; counts reads."""

    def __init__(self) -> None:
        self.reads = 0

    def record(self, observation: Observation) -> ObservationRecord:
        shot = observation.screenshot
        assert shot is not None
        blob = Blob(shot.media_type, len(shot.data), hashlib.sha256(shot.data).hexdigest(), inline=shot.data)
        return ObservationRecord(observation.time_ms, shot.width, shot.height, screenshot=blob)

    def read(self, blob: Blob) -> bytes:
        assert blob.inline is not None
        return blob.inline

    def observation(self, record: ObservationRecord) -> Observation:
        self.reads += 1
        assert record.screenshot is not None
        return Observation(
            record.time_ms,
            Screenshot(record.width, record.height, self.read(record.screenshot), record.screenshot.media_type),
        )


class World:
    """A learner with its policy, and experiences for it: a bright cell is to be tapped."""

    def __init__(self, *, seed: int = 0, max_lag: int = 0, **options: Any) -> None:
        self.artefacts = MemoryArtefacts()
        self.context = RoleContext("r", "n", seed, SystemClock(), random.Random(seed), self.artefacts, Path())
        self.policy = FactoredPolicy(POLICY, self.context)
        self.options = ARideOptions(**{"batch": 4, "samples": 4, "replay_ratio": 2.0, "clone_steps": 8, **options})
        self.learner = ARide(self.options, self.context, self.policy)
        self.learner.use(StalenessPolicy(max_lag=max_lag, batch=4))

    def observation(self, target: int) -> Observation:
        rows = [bytearray(32 * 3) for _ in range(32)]
        for y in range(16 * (target // 2), 16 * (target // 2) + 16):
            start = 3 * 16 * (target % 2)
            rows[y][start : start + 48] = b"\xff" * 48
        return Observation(0, Screenshot(32, 32, b"".join(bytes(row) for row in rows), "image/x-rgb"))

    def experience(
        self,
        name: str,
        actions: Sequence[str],
        *,
        target: int = 0,
        success: float = 1.0,
        origin: Origin = "policy",
        version: int = 0,
        outcome: Outcome = "finished",
        log_prob: float | None = None,
        invalid: bool = False,
    ) -> Experience:
        steps = []
        for place, action in enumerate(actions):
            item = PolicyInput("tap the cell", self.observation(target), tuple(actions[:place]))
            tokens = self.policy.encode_action(item, action) or ()
            if origin == "policy" and log_prob is None:
                log_prob_here = float(self.policy.evaluate([item], [tokens]).log_probs.detach())
            else:
                log_prob_here = log_prob or 0.0
            record = self.artefacts.record(item.observation)
            steps.append(StepRecord(record, action, tokens, log_prob_here, (log_prob_here,), 1.0, 0.5, invalid=invalid))
        trajectory = Trajectory(
            ENVELOPE, name, origin, "k", "kind", "train", "tap the cell", "[]", 0, 5, "d", "factored", 1, version, "", "{}",
            outcome, 0, 1, tuple(steps), self.artefacts.record(self.observation(3)),
        )  # fmt: skip
        return Experience(trajectory, Reward(ENVELOPE, name, "state", "1", success))

    def batch(self, start: int, count: int = 4, *, version: int = 0) -> list[Experience]:
        """Half of them taps on the bright cell, half on a dark one."""
        cells = ("tap 0.25 0.25", "tap 0.75 0.25", "tap 0.25 0.75", "tap 0.75 0.75")
        made = []
        for number in range(start, start + count):
            target, wrong = number % 4, number % 2
            actions = ["tap 0.75 0.75", cells[(target + wrong) % 4]]
            made.append(
                self.experience(f"t{number}", actions, target=target, success=float(not wrong), version=version)
            )
        return made

    def cycle(self, version: int = 0) -> list[UpdateResult]:
        """Updates until something is wanted."""
        results = []
        while self.learner.wanted() == Wanted():
            results.append(self.learner.update(version))
        return results

    def weights(self, path: Path) -> dict[str, torch.Tensor]:
        self.policy.save(path)
        return load_file(path)


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_demonstrations_first_then_batches(tmp_path: Path) -> None:
    world = World(demonstrations=3, clone_updates=5, clone_chunk=2)
    learner, untouched = world.learner, world.weights(tmp_path / "w")
    assert learner.wanted() == Wanted(demonstrations=3)
    assert not learner.update(0).publish
    assert same(world.weights(tmp_path / "w"), untouched)
    learner.ingest([world.experience(f"d{n}", ["tap 0.25 0.25"], origin="demonstration") for n in range(2)])
    assert learner.wanted() == Wanted(demonstrations=1)
    learner.ingest([world.experience("bad", ["done"], origin="demonstration", success=0.0)])
    assert learner.wanted() == Wanted(demonstrations=1), "a failed demonstration is not cloned"
    learner.ingest([world.experience(f"d{n}", ["tap 0.25 0.25"], origin="demonstration") for n in (2, 3)])
    assert learner.evictions() == {"bad": "unsuccessful", "d3": "surplus"}
    assert [result.publish for result in world.cycle()] == [False, False, True]
    assert not same(world.weights(tmp_path / "w"), untouched)
    assert learner.wanted() == Wanted(policy=4)
    learner.ingest(world.batch(0, 3))
    assert learner.wanted() == Wanted(policy=1)
    learner.ingest(world.batch(3, 1))
    results = world.cycle(1)
    assert [result.publish for result in results] == [False, True]
    assert learner.wanted() == Wanted(policy=4)
    assert results[-1].metrics["replay_ratio"] == 2.0
    assert results[-1].metrics["success.batch"] == 0.5
    assert set(learner.buffered()) == {"d0", "d1", "d2", "t0", "t1", "t2", "t3"}


def test_the_replay_ratio_bounds_updates_without_new_data() -> None:
    world = World(replay_ratio=3.0)
    world.learner.ingest(world.batch(0, 5))
    assert len(world.cycle()) == 3
    for _ in range(5):
        result = world.learner.update(1)
        assert not result.publish
        assert not result.trained


def test_it_learns_from_reward_alone() -> None:
    world = World(batch=8, samples=8, learning_rate=3e-3, entropy_weight=0.0, step_penalty=0.0)
    start = [world.experience(f"s{n}", [f"tap {0.25 + 0.5 * (n % 2)} 0.25"], target=n % 2) for n in range(2)]
    inputs = [PolicyInput("tap the cell", world.observation(n), ()) for n in range(2)]
    tokens = [item.trajectory.steps[0].action_tokens for item in start]
    before = world.policy.evaluate(inputs, tokens).log_probs.detach()
    for version in range(25):
        batch = []
        for number in range(8):
            target, cell = number % 2, (number // 2) % 2
            batch.append(
                world.experience(
                    f"v{version}n{number}",
                    [f"tap {0.25 + 0.5 * cell} 0.25"],
                    target=target,
                    success=float(cell == target),
                    version=version,
                )
            )
        world.learner.ingest(batch)
        world.cycle(version)
    after = world.policy.evaluate(inputs, tokens).log_probs.detach()
    assert bool((after > before + 1.0).all())


def test_numbers_of_what_was_trained() -> None:
    world = World()
    world.learner.ingest(world.batch(0))
    first = world.cycle()[0]
    assert {number.trajectory_id for number in first.trained} == {"t0", "t1", "t2", "t3"}
    for number in first.trained:
        assert number.mean_ratio == pytest.approx(1.0, abs=1e-3), "nothing has changed since they were recorded"
        assert number.mean_abs_td is not None
        assert 0.0 < number.mean_abs_td < 1.0
        assert number.mean_entropy is not None
        assert number.mean_entropy > 0.0


def test_the_rewarded_step_is_in_the_actors_batch() -> None:
    world = World()
    single = world.experience("one", ["tap 0.25 0.25"])
    evaluated = world.learner._evaluate([single, *world.batch(0)])
    batch = world.learner._step_batch(evaluated, [1.0] * 5)
    assert batch.advantages.shape[0] == 1 + 4 * 2
    assert bool(batch.actor.all())
    assert float(batch.advantages[0]) == pytest.approx(
        1.0 - float(evaluated.evaluation.values[0].detach().min().sigmoid()) - 0.01, abs=1e-5
    )
    assert batch.successes.tolist() == [1.0, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0]


def test_penalties_touch_the_advantage_only() -> None:
    world, plain = (
        World(invalid_penalty=0.3, repeat_penalty=0.2, step_penalty=0.1),
        World(invalid_penalty=0.0, repeat_penalty=0.0, step_penalty=0.0),
    )
    found = []
    for each in (world, plain):
        item = each.experience("one", ["tap 0.25 0.25", "tap 0.25 0.25"], invalid=True)
        found.append(each.learner._step_batch(each.learner._evaluate([item]), [1.0]))
    punished, free = found
    assert (free.advantages - punished.advantages).tolist() == pytest.approx([0.4, 0.6])
    assert torch.equal(punished.value_targets, free.value_targets)
    assert torch.equal(punished.successes, free.successes)


def test_only_better_than_expected_trains_the_actor_if_asked() -> None:
    world = World(keep="better-than-expected")
    batch = world.learner._step_batch(world.learner._evaluate(world.batch(0)), [1.0] * 4)
    assert batch.actor.tolist() == [True, True, False, False, True, True, False, False]


def test_a_horizon_is_terminal_unless_asked() -> None:
    targets = []
    for bootstrap in (False, True):
        world = World(bootstrap_horizon=bootstrap)
        items = [
            world.experience("cut", ["done"], success=0.0, outcome="horizon"),
            world.experience("end", ["done"], success=0.0),
        ]
        targets.append([target.values[0] for target in world.learner._evaluate(items).targets])
    assert targets[0] == [pytest.approx(0.0, abs=1e-6)] * 2
    assert targets[1][0] > 0.1
    assert targets[1][1] == pytest.approx(0.0, abs=1e-6)


def test_priorities_decide_what_is_sampled() -> None:
    world = World(samples=8, replay_ratio=8.0, alpha=1.0, rescan_versions=0)
    world.learner.ingest(world.batch(0))
    world.learner.prioritize([Priority(ENVELOPE, f"t{n}", "dper", 1.0 if n == 2 else 0.0) for n in range(4)])
    world.learner.prioritize([Priority(ENVELOPE, "somebody-else", "dper", 9.0)])
    assert {number.trajectory_id for result in world.cycle() for number in result.trained} == {"t2"}


def test_the_neglected_are_rescanned() -> None:
    world = World(rescan_versions=2, rescan_trajectories=3)
    found: list[str] = []
    for version in range(6):
        world.learner.ingest(world.batch(4 * version, version=version))
        world.learner.prioritize([Priority(ENVELOPE, "t1", "dper", 0.0)])
        found += [number.trajectory_id for result in world.cycle(version) for number in result.rescanned]
    assert "t1" in found


def test_what_is_too_old_is_withheld() -> None:
    world = World(max_lag=2)
    world.learner.ingest(world.batch(0, version=0))
    results = world.cycle(3)
    assert all(not result.publish and not result.trained for result in results)
    assert results[-1].metrics["withheld"] == 4.0
    assert world.learner.wanted() == Wanted(policy=4), "it asks for fresh ones"


def test_empty_and_single() -> None:
    world = World(batch=1, samples=1)
    world.learner.ingest([])
    world.learner.prioritize([])
    world.learner.ingest([world.experience("empty", [])])
    assert [result.publish for result in world.cycle()] == [False, False]
    assert world.learner.evictions() == {"empty": "empty"}
    world.learner.ingest([world.experience("one", ["done"])])
    assert world.cycle()[-1].publish


def test_refuses_what_must_never_train() -> None:
    world = World()
    item = world.experience("x", ["done"])
    with pytest.raises(SplitViolationError):
        world.learner.ingest([dataclasses.replace(item, trajectory=dataclasses.replace(item.trajectory, split="test"))])
    with pytest.raises(InvalidEventError, match="aborted"):
        world.learner.ingest(
            [dataclasses.replace(item, trajectory=dataclasses.replace(item.trajectory, outcome="aborted"))]
        )
    assert list(world.learner.buffered()) == []


def test_demonstrations_that_cannot_be_said() -> None:
    world = World(demonstrations=1)
    world.learner.ingest([world.experience("d", ["swipe 0 0 1 1"], origin="demonstration")])
    with pytest.raises(PolicyError, match="nothing to clone"):
        world.learner.update(0)


def test_decoded_screens_are_kept_within_a_bound() -> None:
    world = World(replay_ratio=8.0)
    world.learner.ingest(world.batch(0))
    world.cycle()
    assert world.artefacts.reads == 4, "each distinct screen once"
    scarce = World(replay_ratio=8.0, screen_bytes=32 * 32 * 3)
    scarce.learner.ingest(scarce.batch(0))
    scarce.cycle()
    assert scarce.artefacts.reads > 4


@pytest.mark.parametrize("moment", ["cloning", "between", "inside a version"])
def test_a_restored_learner_goes_on_exactly(moment: str, tmp_path: Path) -> None:
    options = {"demonstrations": 2, "clone_updates": 4, "clone_chunk": 2, "rescan_versions": 2}
    first = World(seed=1, **options)
    given = [first.experience(f"d{n}", ["tap 0.25 0.25"], origin="demonstration") for n in range(2)]
    later = [first.batch(4 * n) for n in range(5)]
    first.learner.ingest(given)
    first.learner.update(0)
    if moment != "cloning":
        first.cycle()
        first.learner.ingest(later[0])
        first.cycle()
    if moment == "inside a version":
        first.learner.ingest(later[1])
        first.learner.prioritize([Priority(ENVELOPE, "t3", "dper", 7.0)])
        first.learner.update(1)
    first.learner.save(tmp_path)
    assert {path.suffix for path in tmp_path.iterdir()} == {".safetensors", ".json"}
    everything = {e.trajectory.trajectory_id: e for e in (*given, *later[0], *later[1])}
    second = World(seed=99, **options)
    second.learner.restore(tmp_path, [everything[identity] for identity in first.learner.buffered()])
    assert second.learner.wanted() == first.learner.wanted()
    assert second.learner.buffered() == first.learner.buffered()
    for world in (first, second):
        world.cycle(1)
        for place, batch in enumerate(later[2:]):
            world.learner.ingest(batch)
            world.learner.prioritize([Priority(ENVELOPE, f"t{place}", "dper", 3.0)])
            world.cycle(2 + place)
    assert same(first.weights(tmp_path / "one"), second.weights(tmp_path / "two"))


def test_checkpoints_that_do_not_fit(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be read"):
        World().learner.restore(tmp_path, [])
    World().learner.save(tmp_path)
    state = json.loads((tmp_path / "learner.json").read_text())
    for change, message in (({"learner": "digirl"}, "digirl"), ({"cloned": None}, "lacks or garbles")):
        (tmp_path / "learner.json").write_text(json.dumps({**state, **change}))
        with pytest.raises(CheckpointError, match=message):
            World().learner.restore(tmp_path, [])
    (tmp_path / "learner.json").write_text(json.dumps(state))
    (tmp_path / "policy.safetensors").write_bytes(b"no weights")
    with pytest.raises(WeightsError):
        World().learner.restore(tmp_path, [])


@pytest.mark.parametrize(
    "options",
    [
        {"replay_ratio": 0.5, "batch": 4, "samples": 16},
        {"batch": 20, "buffer_trajectories": 10},
        {"demonstrations": 1, "clone_updates": 0},
    ],
)
def test_options_that_would_wait_for_ever_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"samples|buffer|nothing would be learned"):
        ARideOptions(**options)
