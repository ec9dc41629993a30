"""The priority structure against plain sums: whatever was written before, it depends on what its slots hold now."""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from fractions import Fraction
from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from distrl.plugins.builtin.learner.sum_tree import SumTree

WEIGHTS = st.one_of(
    st.just(0.0),
    st.floats(0.0, 1e6),
    st.floats(1e-300, 1e-200),
    st.floats(1e140, 1e150),
    st.sampled_from([1.0, 5e-324, 1e150]),
)


def filled(weights: list[float]) -> SumTree:
    tree = SumTree(len(weights))
    for slot, weight in enumerate(weights):
        tree[slot] = weight
    return tree


def test_a_hundred_thousand_updates_leave_no_drift() -> None:
    """Bit for bit what a tree holds that was filled with the last values alone, over 300 orders of magnitude."""
    source = random.Random(5)
    capacity = 1000
    tree, weights = SumTree(capacity), [0.0] * capacity
    for _ in range(100_000):
        slot = source.randrange(capacity)
        weights[slot] = 0.0 if source.random() < 0.2 else 10.0 ** source.uniform(-150, 150)
        tree[slot] = weights[slot]
    assert tree.total == filled(weights).total
    assert math.isclose(tree.total, math.fsum(weights), rel_tol=1e-12)
    for slot in range(capacity):
        tree[slot] = 0.0
    assert tree.total == 0.0, "nothing is left of what was there"


@given(st.lists(WEIGHTS, min_size=1, max_size=40), st.lists(st.floats(0.0, 1.0, exclude_max=True), max_size=20))
def test_the_slot_is_the_one_at_which_the_exact_running_sum_passes(weights: list[float], shares: list[float]) -> None:
    tree = filled(weights)
    if tree.total == 0.0:
        return
    exact = list(accumulate(map(Fraction, weights)))
    slack = Fraction(tree.total) * Fraction(1, 10**14)
    for share in shares:
        mass = share * tree.total
        slot = tree.find(mass)
        assert weights[slot] > 0.0
        before = exact[slot] - Fraction(weights[slot])
        assert before - slack <= Fraction(mass) <= exact[slot] + slack


@given(st.lists(st.integers(0, 50), min_size=1, max_size=30))
def test_every_slot_gets_its_share_exactly(weights: list[int]) -> None:
    """Inversion at the middle of each unit of mass: a slot of weight w is found w times."""
    tree, total = filled([float(weight) for weight in weights]), sum(weights)
    found = [tree.find(unit + 0.5) for unit in range(total)]
    assert [found.count(slot) for slot in range(len(weights))] == weights
    running = list(accumulate(weights))
    assert found == [bisect_right(running, unit) for unit in range(total)]


@given(st.lists(WEIGHTS, min_size=1, max_size=20), st.integers(0, 200))
def test_more_room_changes_nothing(weights: list[float], more: int) -> None:
    small, large = filled(weights), filled([*weights, *[0.0] * more])
    assert math.isclose(small.total, large.total, rel_tol=1e-15)
    if small.total > 0.0:
        for share in (0.0, 0.3, 0.7):
            assert weights[large.find(share * large.total)] > 0.0
