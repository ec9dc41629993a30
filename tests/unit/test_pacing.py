"""Pacing never deadlocks: collectors join and die at will, episodes are lost and aborted, and the learner still gets its batches."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from distrl.core.contracts.events import Blob, Envelope, WeightsUpdate
from distrl.core.contracts.role import Wanted
from distrl.core.contracts.staleness import StalenessPolicy, is_newer
from distrl.core.runtime.pacer import Pacer
from distrl.testing import ManualClock

UPDATE = WeightsUpdate(
    envelope=Envelope("e", "run", "learner", 0),
    policy="factored",
    epoch=1,
    version=0,
    sequence=0,
    blob=Blob("application/vnd.safetensors", 0, "0" * 64),
)


@dataclass
class CollectorModel:
    """A collector as the runtime drives it: reads announcements, counts what it starts, runs a few episodes at once."""

    devices: int
    read: WeightsUpdate | None = None
    started: int = 0
    in_flight: int = 0

    def hear(self, update: WeightsUpdate) -> None:
        if is_newer(update, self.read):
            self.read, self.started = update, 0

    def start(self, policy: StalenessPolicy) -> None:
        while self.in_flight < self.devices and policy.may_start(self.read, self.started):
            self.started += 1
            self.in_flight += 1


class World:
    """One learner that needs ``batch`` trajectories a version, and collectors that come and go."""

    def __init__(self, policy: StalenessPolicy) -> None:
        self.policy = policy
        self.clock = ManualClock()
        self.pacer = Pacer(policy, self.clock)
        self.collectors: list[CollectorModel] = []
        self.update = UPDATE
        self.new = 0
        self.queue = 0
        self.versions = 0
        self.announce(sequence=0)

    def wanted(self) -> Wanted:
        return Wanted(policy=max(0, self.policy.batch - self.new))

    def announce(self, *, sequence: int) -> None:
        live = len(self.collectors)
        patient = not (sequence and self.pacer.overdue())
        allowance = self.pacer.allowance(self.wanted(), live=live, on_the_way=self.queue, patient=patient)
        self.update = replace(self.update, sequence=sequence, allowance=allowance, live_collectors=live)
        self.pacer.announced(live=live, allowance=allowance)

    def step_learner(self) -> None:
        if self.queue:
            self.new += self.queue
            self.pacer.arrived(self.queue)
            self.queue = 0
        if not self.wanted().policy:
            self.new -= self.policy.batch
            self.versions += 1
            self.pacer.consumed()
            self.update = replace(self.update, version=self.update.version + 1)
            self.announce(sequence=0)
        elif self.pacer.must_renew(self.wanted(), live=len(self.collectors)):
            self.announce(sequence=self.update.sequence + 1)

    def step_collectors(self) -> None:
        for collector in self.collectors:
            collector.hear(self.update)
            collector.start(self.policy)


actions = st.lists(
    st.tuples(
        st.sampled_from(["join", "die", "finish", "abort", "lose", "learner", "collectors", "time"]),
        st.integers(0, 7),
    ),
    max_size=80,
)


@settings(max_examples=300, deadline=None)
@given(
    actions=actions,
    batch=st.integers(1, 40),
    max_lag=st.integers(0, 6),
    pace=st.booleans(),
    survivors=st.integers(1, 4),
)
def test_neither_side_waits_for_ever(
    actions: list[tuple[str, int]], batch: int, max_lag: int, pace: bool, survivors: int
) -> None:
    world = World(StalenessPolicy(max_lag=max_lag, batch=batch, pace=pace, renew_s=5.0))
    for what, number in actions:
        one = world.collectors[number % len(world.collectors)] if world.collectors else None
        match what:
            case "join":
                world.collectors.append(CollectorModel(devices=1 + number % 3))
            case "die" if one is not None:
                world.collectors.remove(one)
            case "finish" if one is not None and one.in_flight:
                one.in_flight -= 1
                world.queue += 1
            case "abort" if one is not None and one.in_flight:
                one.in_flight -= 1
                one.started = max(0, one.started - 1)
            case "lose" if world.queue:
                world.queue -= 1
            case "learner":
                world.step_learner()
            case "collectors":
                world.step_collectors()
            case "time":
                world.clock.advance(number)
    while len(world.collectors) < survivors:
        world.collectors.append(CollectorModel(devices=1))
    before = world.versions
    # From here on nothing dies: whatever happened before, three more versions must come within bounded time.
    for _ in range(3 * (batch * (max_lag + 2) + 20)):
        world.step_collectors()
        for collector in world.collectors:
            if collector.in_flight:
                collector.in_flight -= 1
                world.queue += 1
        world.step_learner()
        world.clock.advance(1.0)
        if world.versions >= before + 3:
            return
    raise AssertionError(f"stuck: {world.wanted()} wanted, {world.update.allowance} allowed, {world.collectors}")


@settings(max_examples=100, deadline=None)
@given(batch=st.integers(1, 40), max_lag=st.integers(1, 6), live=st.integers(1, 50), backlog=st.integers(0, 500))
def test_what_is_on_its_way_stays_within_the_bound(batch: int, max_lag: int, live: int, backlog: int) -> None:
    policy = StalenessPolicy(max_lag=max_lag, batch=batch)
    allowance = policy.allowance(live_collectors=live, lacking=0, backlog=backlog)
    assert 0 <= allowance * live <= max(0, batch * max_lag - backlog) + live - 1


def test_a_late_lagging_trajectory_is_withheld() -> None:
    policy = StalenessPolicy(max_lag=2, batch=4)
    assert not policy.withheld(version=3, newest=5)
    assert policy.withheld(version=2, newest=5)
    assert not StalenessPolicy(max_lag=0, batch=4).withheld(version=0, newest=5)
