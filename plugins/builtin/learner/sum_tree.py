"""A sum tree: numbers in slots, drawn in proportion to their size in logarithmic time. Used by ``ReplayBuffer``.

Inner nodes are always computed from their two children, never adjusted by differences: the tree depends on
its leaves alone, so a restored buffer samples exactly as the one that was saved, and rounding does not pile up.
"""

from __future__ import annotations


class SumTree:
    """``capacity`` slots, all 0 at first."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError("a sum tree needs at least one slot")
        self._leaves = 1 << (capacity - 1).bit_length()
        self._capacity = capacity
        self._nodes = [0.0] * (2 * self._leaves)

    @property
    def total(self) -> float:
        return self._nodes[1]

    def __getitem__(self, slot: int) -> float:
        return self._nodes[self._leaves + self._checked(slot)]

    def __setitem__(self, slot: int, value: float) -> None:
        """``value`` must be finite and not negative (``ValueError``)."""
        if not 0.0 <= value < float("inf"):
            raise ValueError(f"a sum tree holds finite numbers from 0, not {value}")
        node = self._leaves + self._checked(slot)
        self._nodes[node] = value
        while node > 1:
            node //= 2
            self._nodes[node] = self._nodes[2 * node] + self._nodes[2 * node + 1]

    def find(self, mass: float) -> int:
        """The slot at which the running sum exceeds ``mass``, for ``mass`` in [0, total). Never one that holds 0
        (``ValueError`` if all do)."""
        if self.total <= 0.0:
            raise ValueError("nothing to draw: every slot holds 0")
        node = 1
        while node < self._leaves:
            left = self._nodes[2 * node]
            # By rounding, mass can reach the end of a branch: stay where there is something.
            if mass < left or self._nodes[2 * node + 1] <= 0.0:
                node = 2 * node
            else:
                mass -= left
                node = 2 * node + 1
        return node - self._leaves

    def _checked(self, slot: int) -> int:
        if not 0 <= slot < self._capacity:
            raise IndexError(f"slot {slot} of {self._capacity}")
        return slot
