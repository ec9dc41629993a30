"""``RunHistory``: what it counts, in whatever order the topics are read, and however often a record comes."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from distrl.core.contracts.events import (
    Blob,
    DeadLetter,
    Envelope,
    Event,
    Feedback,
    Metrics,
    NodeStatus,
    Origin,
    Outcome,
    Reward,
    Role,
    Split,
    Trajectory,
    WeightsUpdate,
)
from distrl.core.runtime.history import WINDOW, RunHistory
from distrl.core.runtime.series import Series

T0 = 1_790_000_000_000


def envelope(event_id: str, node: str = "n", time_ms: int = T0) -> Envelope:
    return Envelope(event_id, "r", node, time_ms)


def trajectory(
    number: int,
    *,
    kind: str = "open",
    origin: Origin = "policy",
    outcome: Outcome = "finished",
    version: int = 0,
    split: Split = "train",
) -> Trajectory:
    return Trajectory(
        envelope=envelope(f"t{number}", "collector-0"),
        trajectory_id=f"id-{number}",
        origin=origin,
        task_id=f"task-{number}",
        task_kind=kind,
        split=split,
        goal="open the clock",
        checks="[]",
        seed=number,
        horizon=10,
        device="d0",
        policy="factored",
        epoch=1,
        version=version,
        base_model="",
        sampling="{}",
        outcome=outcome,
        started_ms=T0 + number,
        ended_ms=T0 + number + 1,
        error_class="DeviceLostError" if outcome == "aborted" else "",
        error="the phone is gone" if outcome == "aborted" else "",
    )


def reward(number: int, success: float, evaluator: str = "state") -> Reward:
    return Reward(envelope(f"r{number}{evaluator}"), f"id-{number}", evaluator, "1", success)


def ingested(number: int, version: int, reason: str = "") -> Feedback:
    return Feedback(envelope(f"f{number}"), f"id-{number}", "ingested", 1, version, reason=reason)


def weights(version: int, sequence: int = 0, epoch: int = 1) -> WeightsUpdate:
    return WeightsUpdate(
        envelope(f"w{version}.{sequence}.{epoch}"), "factored", epoch, version, sequence, Blob("x", 1, "0" * 64)
    )


def metrics(number: int, role: Role, node: str, values: dict[str, float], interval_ms: int = 1000) -> Metrics:
    return Metrics(envelope(f"m{number}", node, T0 + number), role, interval_ms, values)


def node(name: str, role: Role, *, incarnation: str = "a", waiting_for: str = "") -> NodeStatus:
    return NodeStatus(
        envelope(f"n{name}{incarnation}", name), role, "p", "running", incarnation, "h", 1, T0, 1000, 1, 3, waiting_for
    )


TOPICS: dict[type[Event], str] = {
    Trajectory: "trajectories",
    Reward: "rewards",
    Feedback: "feedback",
    WeightsUpdate: "weights",
    NodeStatus: "nodes",
    Metrics: "metrics",
    DeadLetter: "dead-letters",
}


def history_of(events: list[Event], evaluator: str = "state") -> RunHistory:
    history = RunHistory("r", evaluator=evaluator)
    for event in events:
        history.add(TOPICS[type(event)], event, event.envelope.time_ms)
    return history


def a_run(count: int = 500) -> list[Event]:
    """A run in which success rises from 0 to 1 half-way, every 50th episode is aborted and lags grow from 0 to 3."""
    events: list[Event] = []
    for number in range(count):
        aborted = number % 50 == 49
        events.append(
            trajectory(
                number,
                kind=("open", "search")[number % 2],
                outcome="aborted" if aborted else "finished",
                version=number // 10,
            )
        )
        if not aborted:
            events += [reward(number, float(number >= count // 2)), ingested(number, number // 10 + number % 4)]
    return events


def facts(history: RunHistory) -> tuple[object, ...]:
    return (
        history.total,
        history.judged(),
        history.staleness_mean,
        history.staleness_max,
        sorted(history.table.staleness.items()),
    )


def test_counts_and_success_of_a_run() -> None:
    history = history_of(a_run())
    assert (history.total.collected, history.total.aborted) == (490, 10)
    assert history.total.evaluated == history.total.ingested == history.episodes == 490
    success = [episode.success for episode in history.judged()]
    assert set(success[:WINDOW]) == {0.0}
    assert set(success[-WINDOW:]) == {1.0}
    assert history.staleness_max == 3
    assert history.recent_success == 1.0
    assert history.recent_success_by_kind == {"open": 1.0, "search": 1.0}


@pytest.mark.parametrize("seed", range(5))
def test_order_of_reading_and_repeats_change_nothing(seed: int) -> None:
    events = a_run(300)
    shuffled = events + random.Random(seed).sample(events, 100)
    random.Random(seed).shuffle(shuffled)
    assert facts(history_of(shuffled)) == facts(history_of(events))


def test_the_first_verdict_wins_and_only_that_of_the_named_evaluator() -> None:
    history = history_of([trajectory(1), reward(1, 1.0, "judge"), reward(1, 0.0), reward(1, 1.0)])
    assert [episode.success for episode in history.judged()] == [0.0]
    anyone = history_of([trajectory(1), reward(1, 1.0, "judge"), reward(1, 0.0)], evaluator="")
    assert [episode.success for episode in anyone.judged()] == [1.0]


def test_demonstrations_and_test_tasks_are_no_success_of_the_policy() -> None:
    history = history_of(
        [
            trajectory(1, origin="demonstration"),
            reward(1, 1.0),
            ingested(1, 5),
            trajectory(2, split="test"),
            reward(2, 1.0),
        ]
    )
    assert history.judged() == []
    assert history.recent_success is None
    assert history.staleness_mean is None
    assert history.count("demonstration").ingested == 1
    assert history.total.collected == 2


def test_a_refused_trajectory_is_ingested_but_has_no_staleness() -> None:
    history = history_of([trajectory(1, version=1), ingested(1, 9, reason="split")])
    assert history.total.ingested == 1
    assert history.staleness_max is None


def test_an_aborted_trajectory_is_never_evaluated_or_ingested() -> None:
    history = history_of([reward(1, 0.0), ingested(1, 1), trajectory(1, outcome="aborted")])
    assert (history.total.collected, history.total.evaluated, history.total.ingested) == (0, 0, 0)
    assert history.total.aborted == 1
    assert [line.message for line in history.errors] == ["the phone is gone"]


def test_a_renewed_allowance_is_no_new_version() -> None:
    history = history_of([weights(0), weights(1), weights(1, sequence=1), weights(0, epoch=1)])
    assert [version.version for version in history.versions] == [0, 1]
    assert history.newest is not None
    assert history.newest.sequence == 1


def test_shares_are_weighted_by_time_and_repeated_metrics_count_once() -> None:
    slow = metrics(1, "learner", "l", {"busy_share": 1.0, "duplicates": 2, "learner.withheld": 1}, interval_ms=3000)
    history = history_of(
        [
            slow,
            slow,
            metrics(2, "learner", "l", {"busy_share": 0.0, "wait_share.trajectories": 1.0, "learner.loss": 0.5}),
        ]
    )
    assert history.busy("learner") == 0.75
    assert history.waits("learner") == {"trajectories": 1.0}
    assert history.busy("collector") is None
    assert (history.duplicates_dropped, history.withheld) == (2, 1)
    assert [value for _, value in history.learner_series["loss"]] == [0.5]


def test_a_node_whose_clock_is_set_back_is_not_hidden() -> None:
    history = RunHistory("r")
    hours = 7 * 3_600_000
    for time_ms, waiting, lag in ((T0, "trajectories", 9), (T0 - hours, "verdicts", 4)):
        status = node("e0", "evaluator", waiting_for=waiting)
        history.add("nodes", status, time_ms)
        history.add("metrics", metrics(time_ms - T0, "evaluator", "e0", {"lag.trajectories": lag}), time_ms)
    assert history.nodes["e0"].status.waiting_for == "verdicts"
    assert history.lag() == {"evaluator trajectories": 4}


def test_the_latest_load_is_that_of_the_nodes_that_are_there() -> None:
    history = history_of(
        [
            metrics(1, "collector", "c0", {"in_flight_records": 3, "queue_age_ms": 9}),
            metrics(2, "collector", "c1", {"in_flight_records": 2, "queue_age_ms": 5}),
            metrics(3, "learner", "l0", {"in_flight_records": 1}),
        ]
    )
    assert history.load("in_flight_records") == {"collector": 5, "learner": 1}
    history.add("nodes", node("c0", "collector"), T0)
    history.node_left("c0")
    assert history.load("in_flight_records") == {"collector": 2, "learner": 1}
    assert history.queue_ages() == {"collector": 5}


def test_lag_is_the_latest_of_each_node_summed_over_a_role() -> None:
    history = history_of(
        [
            metrics(1, "evaluator", "e0", {"lag.trajectories": 9, "queue_age_ms": 50}),
            metrics(2, "evaluator", "e0", {"lag.trajectories": 4, "queue_age_ms": 20}),
            metrics(3, "evaluator", "e1", {"lag.trajectories": 2, "queue_age_ms": 70}),
        ]
    )
    assert history.lag() == {"evaluator trajectories": 6}
    assert history.queue_ages() == {"evaluator": 70}


def test_nodes_leave_and_come_back() -> None:
    history = RunHistory("r")
    history.add("nodes", node("c0", "collector"), T0)
    history.add("nodes", node("c0", "collector", incarnation="b"), T0 + 5000)
    assert history.nodes["c0"].restarts == 1
    history.node_left("c0")
    assert history.nodes["c0"].left
    history.add("nodes", node("c0", "collector", incarnation="b"), T0 + 6000)
    assert not history.nodes["c0"].left
    history.add("nodes", replace(node("c0", "collector", incarnation="c"), state="stopped"), T0 + 6000)
    assert history.nodes["c0"].left


def test_dead_letters_count_once_and_their_text_is_kept_in_bounds() -> None:
    letters: list[Event] = [
        DeadLetter(envelope(f"d{n % 40}"), "DISTRL-200", f"bad {n % 40}", "evaluator", "t", 0, n, None, b"")
        for n in range(80)
    ]
    history = history_of(letters)
    assert history.dead_letters == 40
    assert len(history.errors) == 20


def test_only_collected_trajectories_that_are_not_ingested_are_given_up() -> None:
    events: list[Event] = [trajectory(number) for number in range(4)]
    keys = [event.trajectory_id.encode() for event in events if isinstance(event, Trajectory)]
    letters: list[Event] = [
        DeadLetter(envelope(f"d{number}"), "DISTRL-200", "bad", "learner", "distrl.r.trajectories", 0, number, key, b"")
        for number, key in enumerate([keys[0], keys[0], keys[1], b"of poison that nobody collected", None])
    ]
    assert history_of([*events, *letters]).given_up == 2
    assert history_of([*events, *letters, ingested(1, 1)]).given_up == 1


def test_a_series_keeps_its_mean_in_bounded_memory() -> None:
    series = Series(limit=8)
    for number in range(1000):
        series.add(number, float(number))
    points = series.points()
    assert len(points) <= 8
    assert points == sorted(points)
    assert points[0][1] < 100
    assert points[-1][1] > 900
    with pytest.raises(ValueError, match="even"):
        Series(limit=3)
