"""The join of trajectories and verdicts, and the memory of what was handled."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from distrl.core.contracts.bus import Record, TopicPartition
from distrl.core.runtime.join import Join
from distrl.core.runtime.seen import Seen
from distrl.testing import ManualClock, make_reward, make_trajectory


def record(offset: int, partition: int = 0) -> Record:
    return Record("trajectories", partition, offset, 0, None, b"")


def make_join(clock: ManualClock | None = None, *, version: str = "*", capacity: int = 100) -> Join:
    return Join(
        evaluator="state", version_pattern=version, patience_s=10.0, clock=clock or ManualClock(), capacity=capacity
    )


def test_either_side_may_come_first() -> None:
    join = make_join()
    one, two = make_trajectory("one"), make_trajectory("two")
    assert join.trajectory(one, record(3)) is None
    pair = join.reward(make_reward(one, 1.0, evaluator="state"))
    assert pair is not None
    assert (pair.experience.trajectory, pair.record.offset) == (one, 3)
    assert join.reward(make_reward(two, 0.0, evaluator="state")) is None
    pair = join.trajectory(two, record(4))
    assert pair is not None
    assert pair.experience.reward.success == 0.0


def test_the_first_verdict_of_the_named_evaluator_wins() -> None:
    join = make_join(version="1.*")
    one = make_trajectory("one")
    assert join.reward(make_reward(one, 1.0, evaluator="other")) is None
    assert join.reward(make_reward(one, 1.0, evaluator="state", evaluator_version="2.0")) is None
    assert join.reward(make_reward(one, 0.25, evaluator="state", evaluator_version="1.3")) is None
    assert join.reward(make_reward(one, 1.0, evaluator="state", evaluator_version="1.4")) is None
    pair = join.trajectory(one, record(0))
    assert pair is not None
    assert pair.experience.reward.success == 0.25


def test_a_trajectory_that_is_delivered_again_finds_its_verdict() -> None:
    join = make_join()
    one = make_trajectory("one")
    join.reward(make_reward(one, 1.0, evaluator="state"))
    assert join.trajectory(one, record(0)) is not None
    assert join.trajectory(one, record(0)) is not None


def test_what_waits_too_long_is_let_go_and_the_oldest_offset_is_known() -> None:
    clock = ManualClock()
    join = make_join(clock)
    join.trajectory(make_trajectory("one"), record(5))
    clock.advance(6.0)
    join.trajectory(make_trajectory("two"), record(9))
    join.trajectory(make_trajectory("three"), record(2, partition=1))
    assert join.oldest() == {TopicPartition("trajectories", 0): 5, TopicPartition("trajectories", 1): 2}
    clock.advance(5.0)
    assert [item.offset for item in join.expired()] == [5]
    assert join.oldest() == {TopicPartition("trajectories", 0): 9, TopicPartition("trajectories", 1): 2}
    join.forget([TopicPartition("trajectories", 1)])
    assert join.waiting == 1


def test_verdicts_are_bounded() -> None:
    join = make_join(capacity=3)
    for number in range(10):
        join.reward(make_reward(make_trajectory(str(number)), 1.0, evaluator="state"))
    assert join.trajectory(make_trajectory("0"), record(0)) is None
    assert join.trajectory(make_trajectory("9"), record(1)) is not None


@given(ids=st.lists(st.text(max_size=3), max_size=60), capacity=st.integers(1, 20))
def test_seen_recognises_all_within_its_capacity(ids: list[str], capacity: int) -> None:
    seen = Seen(capacity)
    kept: list[str] = []
    for identity in ids:
        new = seen.add(identity)
        assert new == (identity not in kept)
        kept = [*(other for other in kept if other != identity), identity][-capacity:]
    assert seen.ids() == kept
    assert Seen(capacity, kept).ids() == kept


def test_a_repeat_under_another_record_has_nothing_to_add() -> None:
    join = make_join()
    one = make_trajectory("one")
    join.trajectory(one, record(3))
    assert not join.repeats(one, record(3))
    assert join.repeats(one, record(8))
    assert not join.repeats(make_trajectory("two"), record(9))
