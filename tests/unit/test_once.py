"""Effects are made once by id, in whatever order and however often events come: what the learner holds and what it last heard of
each trajectory's priority are as for the clean stream."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, TypeVar, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from distrl.core.contracts.bus import Record, RecordPosition, TopicPartition
from distrl.core.contracts.events import Envelope, Event, Feedback, Priority, Reward, Trajectory
from distrl.core.contracts.role import Experience, Learner
from distrl.core.errors import DistrlError
from distrl.core.runtime.activity import Activity
from distrl.core.runtime.batch import Untried
from distrl.core.runtime.checkpoint import Covered
from distrl.core.runtime.event_reader import EventReader, Received
from distrl.core.runtime.ingestion import Ingestion
from distrl.core.runtime.join import Join
from distrl.core.runtime.newest import arrival_id
from distrl.core.runtime.prioritizer import PrioritizerLoop
from distrl.core.runtime.worker import Worker
from distrl.testing import ManualClock, MemoryArtefacts, make_envelope, make_feedback, make_reward, make_trajectory

T = TypeVar("T")
COUNT = 4


class Buffer:
    """A learner that keeps everything, and refuses what it holds already, as the contract says."""

    name = "buffer"

    def __init__(self) -> None:
        self.kept: dict[str, float] = {}

    def ingest(self, batch: Sequence[Experience]) -> None:
        for item in batch:
            assert item.trajectory.trajectory_id not in self.kept
            self.kept[item.trajectory.trajectory_id] = 1.0

    def prioritize(self, batch: Sequence[Priority]) -> None:
        for event in batch:
            if event.trajectory_id in self.kept:
                self.kept[event.trajectory_id] = event.priority

    def buffered(self) -> list[str]:
        return list(self.kept)


class Reader:
    """What the loops ask of an ``EventReader``, over no log: nothing fails here."""

    def __init__(self) -> None:
        self.acked: set[int] = set()
        self.consumer = SimpleNamespace(
            assignment=lambda: {TopicPartition("t", 0)}, position=lambda _: 0, ack=self._ack
        )

    def _ack(self, position: RecordPosition) -> None:
        self.acked.add(position.offset)

    def ack(self, records: Sequence[Record]) -> None:
        self.acked.update(record.offset for record in records)

    def refuse(self, record: Record, error: DistrlError) -> None:
        raise error

    def not_done(self, record: Record, why: DistrlError | Untried) -> None:
        raise AssertionError(why)

    def succeeded(self) -> None:
        pass

    def unhandled(self) -> dict[TopicPartition, int]:
        return {}

    def attend(self, worker: Worker, work: Callable[[], T]) -> T:
        return work()


class Rule:
    """Priorities that tell which event they were made of."""

    name = "rule"

    def arrived(self, batch: Sequence[tuple[Trajectory, Reward]]) -> list[float]:
        return [0.5 for _ in batch]

    def refreshed(self, batch: Sequence[Feedback]) -> list[float | None]:
        return [event.mean_abs_td for event in batch]


def stream() -> list[Event]:
    """Trajectories, verdicts, and for each trajectory three priorities that grow older backwards."""
    events: list[Event] = []
    for number in range(COUNT):
        trajectory = make_trajectory(f"t{number}", version=3, steps=0, final_observation=None)
        events += [trajectory, make_reward(trajectory, 1.0, evaluator="state")]
        events.append(priority(number, "arrived", 0.5, version=3, time_ms=900))
        events.append(priority(number, "one", 0.25, version=3, time_ms=100))
        events.append(priority(number, "two", 0.75, version=4, time_ms=50))
        events.append(priority(number, "three", number / 10, version=4, time_ms=60))
    return events


def priority(number: int, cause: str, value: float, *, version: int, time_ms: int) -> Priority:
    identity = arrival_id(f"t{number}", "rule") if cause == "arrived" else f"{cause}-{number}"
    return Priority(Envelope(identity, "run", "n", time_ms), f"t{number}", "rule", value, version)


def received(events: Sequence[Event]) -> list[Received[Event]]:
    return [Received(Record("t", 0, offset, 0, None, b""), event) for offset, event in enumerate(events)]


def ingestion(learner: Buffer, clock: ManualClock) -> Ingestion:
    join = Join(evaluator="state", version_pattern="*", patience_s=1e9, clock=clock)
    return Ingestion(cast(Learner, learner), join, MemoryArtefacts(), Activity(clock), remembered=100)


def mixed(events: Sequence[Event]) -> st.SearchStrategy[list[Event]]:
    """The events, some of them several times, in any order."""
    extra = st.lists(st.sampled_from(list(events)), max_size=12)
    return extra.flatmap(lambda more: st.permutations([*events, *more]))


def cut(events: Sequence[T], cuts: Sequence[int]) -> list[Sequence[T]]:
    """The events as polls bring them."""
    places = [0, *sorted(place % (len(events) + 1) for place in cuts), len(events)]
    return [events[start:end] for start, end in itertools.pairwise(places)]


@settings(deadline=None)
@given(events=mixed(stream()), cuts=st.lists(st.integers(0, 100), max_size=5), restart=st.integers(0, 5))
def test_the_learner_holds_what_a_clean_stream_would_leave(events: list[Event], cuts: list[int], restart: int) -> None:
    """Also over a restart from a checkpoint in the middle, which keeps what recognises repeats."""
    clock = ManualClock()
    learner, reader = Buffer(), Reader()
    current = ingestion(learner, clock)
    ingested: list[str] = []
    asked = cast(EventReader, reader)
    offered = received(events)
    for number, batch in enumerate(cut(offered, cuts)):
        if number == restart:
            covered = current.covered(epoch=1, version=1, positions=current.positions(asked, {}))
            current = restarted(current, learner, covered, clock)
            # What waited for its verdict, and verdicts, come again: a checkpoint stands below them.
            current.take(
                asked,
                [
                    item
                    for item in offered[: sum(map(len, cut(offered, cuts)[:number]))]
                    if not isinstance(item.event, Priority)
                ],
            )
        ingested += [trajectory.trajectory_id for trajectory in current.take(asked, batch)]
    assert set(learner.kept) == {f"t{number}" for number in range(COUNT)}
    assert len(ingested) == len(set(ingested))
    assert learner.kept == {f"t{number}": number / 10 for number in range(COUNT)}
    assert current.ingested == COUNT
    current.acknowledge(asked.consumer)
    assert reader.acked >= {item.record.offset for item in offered if not isinstance(item.event, Trajectory)} or restart


def restarted(current: Ingestion, learner: Buffer, covered: Covered, clock: ManualClock) -> Ingestion:
    successor = ingestion(learner, clock)
    experiences = [
        Experience(trajectory, make_reward(trajectory, 1.0, evaluator="state"))
        for trajectory in (
            make_trajectory(identity, version=3, steps=0, final_observation=None) for identity in covered.buffer
        )
    ]
    successor.restore(covered, experiences)
    return successor


def feedback_stream() -> list[Event]:
    events: list[Event] = []
    for number in range(COUNT):
        trajectory = make_trajectory(f"t{number}", version=1, steps=0, final_observation=None)
        events += [trajectory, make_reward(trajectory, 1.0, evaluator="state")]
        for order, (epoch, version, time_ms) in enumerate([(1, 1, 900), (1, 2, 100), (2, 2, 50), (2, 2, 60)]):
            feedback = make_feedback(trajectory.trajectory_id, mean_abs_td=order + number / 10)
            envelope = replace(make_envelope(f"f{number}-{order}"), time_ms=time_ms)
            events.append(replace(feedback, envelope=envelope, epoch=epoch, version=version, kind="trained"))
    return events


@settings(deadline=None)
@given(events=mixed(feedback_stream()), cuts=st.lists(st.integers(0, 100), max_size=5))
def test_the_learner_hears_the_newest_priority_whatever_order_the_prioritizer_reads_in(
    events: list[Event], cuts: list[int]
) -> None:
    clock = ManualClock()
    sent: list[Event] = []

    def envelope(identity: str, *, parent: str = "") -> Envelope:
        clock.advance(0.001)
        return Envelope(identity, "run", "n", clock.time_ms())

    config = SimpleNamespace(
        training_evaluator="state",
        learner=SimpleNamespace(evaluator_version="*"),
        prioritizer=SimpleNamespace(plugin="rule", options={}, verdict_seconds=1e9),
        run=SimpleNamespace(watchdog_seconds=1.0),
    )
    node: Any = SimpleNamespace(
        config=config,
        clock=clock,
        activity=Activity(clock),
        create=lambda *_: Rule(),
        writer=SimpleNamespace(envelope=envelope, send_all=sent.extend),
        plugins=SimpleNamespace(observe=lambda *_, **__: None),
    )
    loop = PrioritizerLoop(node, cast(Worker, Here()))
    reader = Reader()
    offered = received(events)
    for batch in cut(offered, cuts):
        loop._handle(cast(EventReader, reader), batch)
    assert reader.acked == set(range(len(events)))
    ids = [event.envelope.event_id for event in sent]
    assert len(ids) == len(set(ids)), "nothing is answered twice"
    learner = Buffer()
    learner.kept = {f"t{number}": 1.0 for number in range(COUNT)}
    target = ingestion(learner, clock)
    covered = Covered(1, 1, COUNT, {}, {f"t{number}": ("t", 0, number) for number in range(COUNT)})
    target = restarted(target, learner, covered, clock)
    target.take(cast(EventReader, Reader()), received(sent))
    assert learner.kept == {f"t{number}": 3 + number / 10 for number in range(COUNT)}


class Here:
    """A worker that works in the caller's thread."""

    def call(self, work: Callable[[], T]) -> T:
        return work()

    def submit(self, work: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        future.set_result(work())
        return future
