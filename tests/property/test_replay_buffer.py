"""The replay buffer against a plain model of it: who is in, who left and why, who may be drawn, through any order of events."""

from __future__ import annotations

import json
import math
import random
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from distrl.core.contracts.events import Blob, Envelope, ObservationRecord, Reward, StepRecord, Trajectory
from distrl.core.contracts.role import Experience
from distrl.core.contracts.staleness import StalenessPolicy
from distrl.plugins.builtin.learner.replay_buffer import ReplayBuffer, trajectory_bytes

ENVELOPE = Envelope("e", "r", "n", 0)
PRIORITIES = st.one_of(
    st.floats(0.0, 100.0), st.sampled_from([0.0, 5e-324, 1e-300, 1e-9, 1e9, 1e150, 1.7e308]), st.floats(0.0, 1.7e308)
)


def experience(name: str, version: int, steps: int, inline: int) -> Experience:
    blob = Blob("image/x-rgb", inline, "0" * 64, inline=b"x" * inline)
    step = StepRecord(ObservationRecord(0, 1, 1, screenshot=blob), "wait", (0,), -1.0, (-1.0,))
    trajectory = Trajectory(
        ENVELOPE, name, "policy", "k", "kind", "train", "goal", "[]", 0, 5, "d", "p", 1, version, "", "{}", "finished", 0, 1,
        (step,) * steps,
    )  # fmt: skip
    return Experience(trajectory, Reward(ENVELOPE, name, "state", "1", 1.0))


class Buffer(RuleBasedStateMachine):
    """The model keeps a list in order of arrival, and finds by looking at all of it."""

    @initialize(
        size=st.integers(1, 5),
        room=st.sampled_from([6_000, 20_000, 10**9]),
        alpha=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
        beta=st.sampled_from([0.0, 0.5, 1.0]),
        lag=st.integers(0, 3),
    )
    def begin(self, size: int, room: int, alpha: float, beta: float, lag: int) -> None:
        self.size, self.room, self.lag = size, room, lag
        self.make = lambda: ReplayBuffer(
            StalenessPolicy(max_lag=lag, batch=4), max_trajectories=self.size, max_bytes=room, alpha=alpha, beta=beta
        )
        self.buffer = self.make()
        self.model: list[dict[str, Any]] = []
        self.newest = 0
        self.highest = 1.0
        self.arrivals = 0
        self.left: dict[str, str] = {}
        self.add(0, 1, 0)

    def stale(self, item: dict[str, Any]) -> bool:
        """Noted when the learner's version moves or the item comes, and never taken back."""
        return bool(self.lag) and self.newest - item["version"] > self.lag

    @rule(back=st.integers(0, 5), steps=st.integers(0, 3), inline=st.sampled_from([0, 1_000, 10_000]))
    def add(self, back: int, steps: int, inline: int) -> None:
        item = experience(f"t{self.arrivals}", max(0, self.newest - back), steps, inline)
        self.arrivals += 1
        self.buffer.add(item)
        weight = trajectory_bytes(item.trajectory)
        name = item.trajectory.trajectory_id
        if weight > self.room:
            self.left[name] = "oldest"
            return
        self.model.append(
            {
                "name": name,
                "item": item,
                "bytes": weight,
                "version": item.trajectory.version,
                "priority": self.highest,
                "samples": 0,
            }
        )
        while len(self.model) > self.size or sum(each["bytes"] for each in self.model) > self.room:
            stale = [each for each in self.model if self.stale(each)]
            sampled = [each for each in self.model if each["samples"]]
            if stale:
                leaver, reason = stale[0], "stale"
            elif sampled:
                leaver, reason = min(sampled, key=lambda each: each["priority"]), "priority"
            else:
                leaver, reason = self.model[0], "oldest"
            self.model.remove(leaver)
            self.left[leaver["name"]] = reason

    @rule(data=st.data(), priority=PRIORITIES)
    def prioritize(self, data: st.DataObject, priority: float) -> None:
        names = [each["name"] for each in self.model] + ["stranger"]
        name = data.draw(st.sampled_from(names))
        assert self.buffer.prioritize(name, priority) == (name != "stranger")
        for each in self.model:
            if each["name"] == name:
                each["priority"] = priority
                self.highest = max(self.highest, priority)

    @rule(by=st.integers(1, 3))
    def advance(self, by: int) -> None:
        self.newest += by
        self.buffer.advance(self.newest)

    @rule(count=st.integers(1, 6), seed=st.integers(0, 2**32), edge=st.sampled_from([None, 0.0, 1.0 - 2**-53]))
    def sample(self, count: int, seed: int, edge: float | None) -> None:
        source: Any = random.Random(seed)
        if edge is not None:
            source.random = lambda: edge
        samples = self.buffer.sample(count, source)
        may = {each["name"] for each in self.model if self.may_be_drawn(each)}
        assert len(samples) == (count if may else 0)
        for sample in samples:
            name = sample.experience.trajectory.trajectory_id
            assert name in may
            assert 0.0 <= sample.weight <= 1.0
            (item,) = (each for each in self.model if each["name"] == name)
            item["samples"] += 1
        if samples:
            assert max(sample.weight for sample in samples) == 1.0

    def may_be_drawn(self, item: dict[str, Any]) -> bool:
        """A priority so small that its power is no number any more is as good as none."""
        return (
            not self.stale(item)
            and bool(item["item"].trajectory.steps)
            and self.buffer._tree[self.buffer._entries[item["name"]].slot] > 0.0
        )

    @rule()
    def evictions_are_told_once(self) -> None:
        assert self.buffer.evictions() == self.left
        self.left = {}

    @precondition(lambda self: hasattr(self, "buffer"))
    @rule(lost=st.sets(st.integers(0, 40), max_size=2), size=st.integers(-2, 4))
    def restart(self, lost: set[int], size: int) -> None:
        """Through a checkpoint, into a buffer of another size, without those that the log no longer has."""
        self.evictions_are_told_once()
        state = json.loads(json.dumps(self.buffer.state()))
        self.size = max(1, self.size + size)
        self.buffer = self.make()
        kept = self.model[-self.size :]
        self.model = [each for each in kept if int(each["name"][1:]) not in lost]
        self.buffer.restore(state, [each["item"] for each in self.model])

    @invariant()
    @precondition(lambda self: hasattr(self, "buffer"))
    def both_hold_the_same(self) -> None:
        assert sorted(self.buffer.ids) == sorted(each["name"] for each in self.model)
        assert len(self.buffer) == len(self.model) <= self.size
        assert self.buffer.bytes == sum(each["bytes"] for each in self.model) <= self.room
        assert self.buffer.withheld == sum(self.stale(each) for each in self.model)
        assert self.buffer.sampleable == sum(self.may_be_drawn(each) for each in self.model)
        for each in self.model:
            assert (each["name"] in self.buffer) is True
        total = self.buffer._tree.total
        assert math.isfinite(total)
        assert sum(self.buffer.evicted_by.values()) + len(self.buffer) >= len(self.left)


Buffer.TestCase.settings = settings(settings.get_profile("same"), max_examples=60, stateful_step_count=40)
TestBuffer = Buffer.TestCase
