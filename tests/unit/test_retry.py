"""Records that failed with what may pass: who is tried again, when, who is to blame, and what an outage does."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distrl.core.contracts.bus import Record, TopicPartition
from distrl.core.errors import DistrlError, StoreUnavailableError
from distrl.core.runtime.retry import BACK_OFF_MOST_S, BACK_OFF_S, Retries
from distrl.testing import ManualClock

AWAY = StoreUnavailableError("the store is away")


def record(offset: int, key: bytes | None = None, partition: int = 0, size: int = 1) -> Record:
    return Record("trajectories", partition, offset, 0, key, bytes(size))


def make(clock: ManualClock, **settings: float) -> Retries:
    values: dict[str, float] = {"attempts": 3, "patience_s": 20.0, "outage_s": 60.0} | settings
    return Retries(
        clock,
        attempts=int(values["attempts"]),
        patience_s=values["patience_s"],
        outage_s=values["outage_s"],
        max_records=int(values.get("max_records", 1000)),
        max_bytes=int(values.get("max_bytes", 1_000_000)),
    )


def test_a_failed_record_comes_again_later_and_others_go_on() -> None:
    clock = ManualClock()
    retries = make(clock)
    assert retries.failed(record(0, b"a"), AWAY) == 0
    assert retries.admits(record(1, b"b"))
    assert retries.take(10) == []
    assert retries.wait_s() == BACK_OFF_S
    clock.advance(BACK_OFF_S)
    assert retries.take(10) == [record(0, b"a")]
    assert retries.failed(record(0, b"a"), AWAY) == 0
    assert retries.wait_s() == 2 * BACK_OFF_S
    clock.advance(2 * BACK_OFF_S)
    assert retries.take(10) == [record(0, b"a")]
    # It did not fail again, so it is done.
    assert retries.take(10) == []
    assert len(retries) == 0
    assert retries.oldest() == {}
    assert retries.wait_s() == float("inf")


def test_records_of_one_key_stay_in_order() -> None:
    clock = ManualClock()
    retries = make(clock)
    retries.failed(record(0, b"a"), AWAY)
    assert not retries.admits(record(1, b"a"))
    assert not retries.admits(record(2, b"a"))
    assert retries.admits(record(3, b"a", partition=1))
    assert retries.admits(record(4, None))
    clock.advance(BACK_OFF_S)
    assert retries.take(10) == [record(0, b"a")]
    retries.failed(record(0, b"a"), AWAY)
    assert retries.take(10) == []
    clock.advance(2 * BACK_OFF_S)
    for offset in (0, 1, 2):
        assert retries.take(10) == [record(offset, b"a")]
    assert retries.take(10) == []
    assert retries.admits(record(5, b"a"))


def test_what_is_delivered_again_after_a_rebalance_is_held_already() -> None:
    clock = ManualClock()
    retries = make(clock)
    retries.failed(record(0, b"a"), AWAY)
    retries.failed(record(7, b"b", partition=1), AWAY)
    assert not retries.admits(record(0, b"a"))
    assert len(retries) == 2
    assert retries.oldest() == {TopicPartition("trajectories", 0): 0, TopicPartition("trajectories", 1): 7}
    retries.keep({TopicPartition("trajectories", 0)})
    assert retries.oldest() == {TopicPartition("trajectories", 0): 0}
    assert retries.admits(record(7, b"b", partition=1))


def test_a_record_that_fails_while_others_succeed_uses_up_its_patience() -> None:
    clock = ManualClock()
    retries = make(clock)
    tries = 0
    while (tried := retries.failed(record(0, b"a"), AWAY)) == 0:
        tries += 1
        clock.advance(retries.wait_s())
        retries.succeeded()
        assert retries.take(1) == [record(0, b"a")]
    assert tried == tries + 1
    assert tried >= 3
    assert clock.monotonic() >= 20.0
    assert len(retries) == 0


def test_many_quick_tries_are_not_enough() -> None:
    clock = ManualClock()
    retries = make(clock, attempts=2, patience_s=1000.0)
    for _ in range(50):
        assert retries.failed(record(0, b"a"), AWAY) == 0
        retries.succeeded()
        clock.advance(retries.wait_s())
        retries.take(1)
    assert clock.monotonic() < 1000.0


def test_once_blamed_its_patience_runs_though_nothing_else_comes() -> None:
    clock = ManualClock()
    retries = make(clock, outage_s=5.0)
    retries.failed(record(0, b"a"), AWAY)
    retries.succeeded()
    for _ in range(100):
        clock.advance(max(retries.wait_s(), 0.1))
        assert retries.take(1) == [record(0, b"a")]
        if retries.failed(record(0, b"a"), AWAY):
            break
    assert 20.0 <= clock.monotonic() <= 20.0 + 3 * BACK_OFF_MOST_S


def test_an_outage_blames_nobody_and_is_probed_one_by_one() -> None:
    clock = ManualClock()
    retries = make(clock, outage_s=1e9)
    for offset in range(3):
        retries.failed(record(offset, b"%d" % offset), AWAY)
    for offset in range(3, 40):
        retries.put_off(record(offset, b"%d" % offset))
    assert retries.outage
    assert retries.room(100) == 0
    probed: list[Record] = []
    while clock.monotonic() < 600.0:
        clock.advance(max(retries.wait_s(), 0.001))
        taken = retries.take(100)
        assert len(taken) <= 1
        assert retries.room(100) <= 1
        for item in taken:
            assert retries.failed(item, AWAY) == 0
            probed.append(item)
    assert len(probed) < 120, "probes wait for one another"
    assert len({item.offset for item in probed}) > 20, "not always the same one"
    # The first success sets all free at once, and nobody's patience has begun.
    while not (taken := retries.take(100)):
        clock.advance(max(retries.wait_s(), 0.001))
    retries.succeeded()
    rest = retries.take(100)
    assert {item.offset for item in [*taken, *rest]} == set(range(40))
    assert retries.take(100) == []
    assert len(retries) == 0


def test_new_records_are_probes_too() -> None:
    """Two bad records must not stop all others for ever, although together they look like an outage."""
    clock = ManualClock()
    retries = make(clock, outage_s=1e9)
    retries.failed(record(0, b"a"), AWAY)
    retries.failed(record(1, b"b"), AWAY)
    for _ in range(10):
        clock.advance(max(retries.wait_s(), 0.001))
        for item in retries.take(10):
            retries.failed(item, AWAY)
        if retries.room(10):
            break
    else:
        raise AssertionError("no new record was ever let in")
    retries.succeeded()
    assert not retries.outage
    assert retries.room(10) == 10


def test_an_outage_ends_the_node_after_its_bound_and_not_before() -> None:
    clock = ManualClock()
    retries = make(clock)
    retries.failed(record(0, b"a"), AWAY)
    retries.failed(record(1, b"b"), AWAY)

    def go_on() -> None:
        while True:
            clock.advance(max(retries.wait_s(), 0.001))
            for item in retries.take(1):
                retries.failed(item, AWAY)

    with pytest.raises(DistrlError) as caught:
        go_on()
    assert caught.value is AWAY
    assert 60.0 <= clock.monotonic() <= 60.0 + 2 * BACK_OFF_MOST_S


def test_what_is_held_is_bounded_by_pausing_the_partitions_concerned() -> None:
    clock = ManualClock()
    retries = make(clock, max_records=3)
    for offset in range(2):
        retries.failed(record(offset, b"%d" % offset), AWAY)
    assert retries.crowded() == set()
    retries.failed(record(9, b"9", partition=2), AWAY)
    assert retries.crowded() == {TopicPartition("trajectories", 0), TopicPartition("trajectories", 2)}
    by_size = make(clock, max_bytes=100)
    by_size.failed(record(0, b"a", size=200), AWAY)
    assert by_size.crowded() == {TopicPartition("trajectories", 0)}
    by_size.keep(())
    assert by_size.crowded() == set()


@settings(deadline=None)
@given(
    bad=st.sets(st.integers(0, 19), max_size=6),
    keys=st.lists(st.integers(0, 5), min_size=20, max_size=20),
    outage=st.tuples(st.floats(0, 30), st.floats(0, 50)),
    batch=st.integers(1, 8),
)
def test_all_but_the_bad_are_handled_in_order_whatever_the_world_does(
    bad: set[int], keys: list[int], outage: tuple[float, float], batch: int
) -> None:
    """Twenty records, some bad for ever, and an outage of up to 50 s: none is lost, none is handled twice, the good ones are
    never given up, the order within a key holds, and the bad ones are given up once good ones have shown the world to be well."""
    clock = ManualClock()
    retries = make(clock, outage_s=1e9)
    log = [record(offset, b"%d" % keys[offset]) for offset in range(20)]
    good_for_ever = 100  # more records, so that there is always one that can succeed
    unread = [*log, *(record(offset, b"more-%d" % offset) for offset in range(20, good_for_ever))]
    handled: list[Record] = []
    given_up: list[Record] = []
    while (unread or len(retries)) and clock.monotonic() < 3000.0:
        again = retries.take(batch)
        room = retries.room(batch - len(again))
        fresh, unread = unread[:room], unread[room:]
        failures = 0
        good = False
        failed: set[bytes | None] = set()
        for item in [*again, *(item for item in fresh if retries.admits(item))]:
            away = outage[0] <= clock.monotonic() < sum(outage)
            if failures >= 2 or item.key in failed:
                retries.put_off(item)
            elif away or item.offset in bad:
                failures += 1
                failed.add(item.key)
                if retries.failed(item, AWAY):
                    given_up.append(item)
            else:
                failures, good = 0, True
                handled.append(item)
        if good:
            retries.succeeded()
        clock.advance(0.25)
    assert {item.offset for item in given_up} <= bad
    assert sorted(item.offset for item in [*handled, *given_up, *_held(retries)]) == list(range(good_for_ever))
    # What is left is bad, or waits behind a bad one of its key.
    waiting = _held(retries)
    assert {item.key for item in waiting if item.offset not in bad} <= {
        item.key for item in waiting if item.offset in bad
    }
    for key in range(6):
        offsets = [item.offset for item in handled if item.key == b"%d" % key]
        assert offsets == sorted(offsets)


def _held(retries: Retries) -> list[Record]:
    return [held.record for held in retries._held.values()]
