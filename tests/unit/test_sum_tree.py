"""The sum tree against a naive one."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distrl.plugins.builtin.learner.sum_tree import SumTree


def naive_find(numbers: list[float], mass: float) -> int:
    running = 0.0
    last = -1
    for slot, number in enumerate(numbers):
        if number > 0.0:
            last = slot
            running += number
            if mass < running:
                return slot
    return last


@given(st.data())
def test_agrees_with_a_naive_one(data: st.DataObject) -> None:
    capacity = data.draw(st.integers(1, 20))
    tree, numbers = SumTree(capacity), [0.0] * capacity
    # Whole numbers: sums are exact in any order, so slots must agree exactly.
    writes = st.lists(st.tuples(st.integers(0, capacity - 1), st.integers(0, 1000)), max_size=40)
    for slot, number in data.draw(writes):
        tree[slot] = float(number)
        numbers[slot] = float(number)
        assert tree[slot] == number
    assert tree.total == sum(numbers)
    if tree.total > 0.0:
        for mass in (0.0, *data.draw(st.lists(st.floats(0.0, tree.total, exclude_max=True), max_size=20))):
            assert tree.find(mass) == naive_find(numbers, mass)


@given(st.lists(st.floats(0.0, 1e12), min_size=1, max_size=33), st.floats(0.0, 1.0))
def test_never_finds_an_empty_slot(numbers: list[float], share: float) -> None:
    tree = SumTree(len(numbers))
    for slot, number in enumerate(numbers):
        tree[slot] = number
    assert tree.total == pytest.approx(math.fsum(numbers))
    if tree.total > 0.0:
        assert numbers[tree.find(share * tree.total)] > 0.0


@pytest.mark.parametrize("number", [-1.0, math.inf, math.nan])
def test_refuses_what_is_no_weight(number: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        SumTree(2)[0] = number


def test_refuses_a_slot_that_is_not_there() -> None:
    tree = SumTree(3)
    with pytest.raises(IndexError):
        tree[3] = 1.0
    with pytest.raises(ValueError, match="nothing to draw"):
        tree.find(0.0)
