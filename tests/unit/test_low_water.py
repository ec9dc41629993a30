"""The low-water mark never passes a record that is not acknowledged, whatever the order of acknowledgements."""

from __future__ import annotations

import itertools
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from distrl.connectors.low_water import LowWater


class Acknowledging(RuleBasedStateMachine):
    """Against a model that knows every offset and looks at all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.mark = LowWater(5)
        self.position = 5
        self.open: dict[int, bool] = {}
        """Delivered since the last seek, in order; whether acknowledged."""

    @rule(gaps=st.lists(st.integers(0, 3), min_size=1, max_size=4))
    def deliver(self, gaps: list[int]) -> None:
        offsets = [offset - 1 for offset in itertools.accumulate((gap + 1 for gap in gaps), initial=self.position)][1:]
        self.position = offsets[-1] + 1
        self.mark.deliver(offsets)
        self.open.update(dict.fromkeys(offsets, False))

    @rule(by=st.integers(-3, 3))
    def advance(self, by: int) -> None:
        self.mark.advance(self.position + by)
        self.position += max(0, by)

    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(sorted(self.open))) if self.open else self.position
        outstanding = offset in self.open and not self.open[offset]
        assert self.mark.ack(offset) is outstanding
        if offset in self.open:
            self.open[offset] = True

    @rule(offset=st.integers(0, 50))
    def ack_anything(self, offset: int) -> None:
        outstanding = offset in self.open and not self.open[offset]
        assert self.mark.ack(offset) is outstanding
        if outstanding:
            self.open[offset] = True

    @rule(offset=st.integers(0, 50))
    def seek(self, offset: int) -> None:
        self.mark.seek(offset)
        self.position = offset
        self.open.clear()

    @invariant()
    def lowest_outstanding(self) -> None:
        missing = [offset for offset, acked in self.open.items() if not acked]
        assert self.mark.outstanding == len(missing)
        assert self.mark.position == self.position
        assert self.mark.committable == (min(missing) if missing else self.position)


TestAcknowledging = Acknowledging.TestCase


@given(st.sets(st.integers(0, 1000), min_size=1), st.randoms(use_true_random=False))
def test_all_acknowledged_in_any_order_commits_the_position(offsets: set[int], random: Random) -> None:
    mark = LowWater(0)
    for offset in sorted(offsets):
        mark.deliver([offset])
    order = sorted(offsets)
    random.shuffle(order)
    seen = []
    for offset in order:
        assert mark.ack(offset)
        seen.append(mark.committable)
    assert seen == sorted(seen)
    assert seen[-1] == mark.position == max(offsets) + 1


def test_a_record_is_delivered_once_between_seeks() -> None:
    mark = LowWater(0)
    mark.deliver([3])
    with pytest.raises(ValueError, match="delivered before"):
        mark.deliver([3])
    mark.seek(3)
    mark.deliver([3])
    assert mark.committable == 3
