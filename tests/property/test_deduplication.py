"""Recognising what was handled before, against models that forget nothing but what they must: ``Seen`` and ``Join``."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from distrl.core.contracts.bus import Record, TopicPartition
from distrl.core.runtime.join import Join
from distrl.core.runtime.seen import Seen
from distrl.testing import ManualClock, make_reward, make_trajectory

IDS = st.sampled_from([f"t{number}" for number in range(6)])
PATIENCE_S = 10.0


class Joining(RuleBasedStateMachine):
    """A consumer's life: records come in any order, again, from other partitions; partitions go; time passes."""

    @initialize(capacity=st.integers(1, 8))
    def begin(self, capacity: int) -> None:
        self.clock = ManualClock()
        self.capacity = capacity
        self.join = Join(
            evaluator="state", version_pattern="1*", patience_s=PATIENCE_S, clock=self.clock, capacity=capacity
        )
        self.waiting: dict[str, tuple[int, int, float]] = {}
        self.verdicts: dict[str, float] = {}
        self.now = 0.0

    @rule(name=IDS, partition=st.integers(0, 2), offset=st.integers(0, 9))
    def trajectory(self, name: str, partition: int, offset: int) -> None:
        record = Record("trajectories", partition, offset, 0, None, b"")
        event = make_trajectory(name)
        held = self.waiting.get(name)
        assert self.join.repeats(event, record) == (held is not None and held[:2] != (partition, offset))
        pair = self.join.trajectory(event, record)
        if name in self.verdicts:
            assert pair is not None
            assert pair.record == record
            assert pair.experience.reward.success == self.verdicts[name]
            self.waiting.pop(name, None)
        else:
            assert pair is None
            # Its place in the order of waiting stays, its time is new.
            self.waiting[name] = (partition, offset, self.now)

    @rule(
        name=IDS, success=st.sampled_from([0.0, 0.25, 1.0]), evaluator=st.sampled_from(["state", "state", "other"]),
        version=st.sampled_from(["1", "1.2", "1.2", "2"]),
    )  # fmt: skip
    def reward(self, name: str, success: float, evaluator: str, version: str) -> None:
        verdict = make_reward(make_trajectory(name), success, evaluator=evaluator, evaluator_version=version)
        pair = self.join.reward(verdict)
        if evaluator != "state" or version == "2" or name in self.verdicts:
            assert pair is None
            return
        self.verdicts[name] = success
        if len(self.verdicts) > self.capacity:
            del self.verdicts[next(iter(self.verdicts))]
        held = self.waiting.pop(name, None)
        assert (pair is None) == (held is None)
        if pair is not None and held is not None:
            assert (pair.record.partition, pair.record.offset) == held[:2]
            assert pair.experience.reward.success == success

    @rule(seconds=st.sampled_from([1.0, 4.0, 11.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.now += seconds

    @rule()
    def let_go(self) -> None:
        gone = {(record.partition, record.offset) for record in self.join.expired()}
        late = {name for name, held in self.waiting.items() if self.now - held[2] >= PATIENCE_S}
        assert gone == {self.waiting[name][:2] for name in late}
        for name in late:
            del self.waiting[name]

    @rule(partitions=st.sets(st.integers(0, 2), max_size=2))
    def forget(self, partitions: set[int]) -> None:
        self.join.forget([TopicPartition("trajectories", number) for number in partitions])
        self.waiting = {name: held for name, held in self.waiting.items() if held[0] not in partitions}

    @invariant()
    def both_wait_for_the_same(self) -> None:
        if hasattr(self, "join"):
            assert self.join.waiting == len(self.waiting)
            oldest: dict[TopicPartition, int] = {}
            for partition, offset, _ in self.waiting.values():
                place = TopicPartition("trajectories", partition)
                oldest[place] = min(offset, oldest.get(place, offset))
            assert self.join.oldest() == oldest


class Remembering(RuleBasedStateMachine):
    """``Seen`` against a list in order of the last sight."""

    @initialize(capacity=st.integers(1, 5))
    def begin(self, capacity: int) -> None:
        self.capacity, self.seen, self.model = capacity, Seen(capacity), list[str]()

    @rule(name=IDS)
    def add(self, name: str) -> None:
        assert self.seen.add(name) == (name not in self.model)
        self.model = [*(other for other in self.model if other != name), name][-self.capacity :]

    @rule(name=IDS)
    def discard(self, name: str) -> None:
        self.seen.discard(name)
        self.model = [other for other in self.model if other != name]

    @rule(capacity=st.integers(1, 5))
    def restart(self, capacity: int) -> None:
        """From a checkpoint, perhaps with another bound: the last seen are kept."""
        self.seen, self.capacity = Seen(capacity, self.seen.ids()), capacity
        self.model = self.model[-capacity:]

    @invariant()
    def both_know_the_same(self) -> None:
        if hasattr(self, "seen"):
            model: Any = self.model
            assert self.seen.ids() == model
            assert len(self.seen) == len(model)
            assert all((name in self.seen) == (name in model) for name in (f"t{number}" for number in range(6)))


Joining.TestCase.settings = settings(settings.get_profile("same"), max_examples=50, stateful_step_count=40)
Remembering.TestCase.settings = settings(settings.get_profile("same"), max_examples=40, stateful_step_count=30)
TestJoining = Joining.TestCase
TestRemembering = Remembering.TestCase
