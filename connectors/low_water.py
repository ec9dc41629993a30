"""How far a partition may be committed when its records are acknowledged in any order. Used by both logs' consumers.

The commit is the lowest offset that was delivered and not acknowledged, or, when nothing is outstanding, the next one
to be read. Offsets grow but may have gaps (transactions and compaction leave some).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


class LowWater:
    """Delivered and acknowledged offsets of one partition. Every operation takes constant time on average.

    >>> mark = LowWater(position=10)
    >>> mark.deliver([10, 11, 14])
    >>> mark.ack(11), mark.committable
    (True, 10)
    >>> mark.ack(10), mark.committable
    (True, 14)
    """

    __slots__ = ("_delivered", "_outstanding", "position")

    def __init__(self, position: int) -> None:
        self.position = position
        """The offset to be read next."""
        self._delivered: deque[int] = deque()
        self._outstanding: set[int] = set()

    def deliver(self, offsets: Sequence[int]) -> None:
        """``offsets``, at least one and growing, were handed out; the next read is right behind the last."""
        if offsets[0] < self.position:
            raise ValueError(f"offset {offsets[0]} was delivered before: the position is {self.position}")
        self._delivered.extend(offsets)
        self._outstanding.update(offsets)
        self.position = offsets[-1] + 1

    def advance(self, position: int) -> None:
        """Nothing lies between here and ``position``: the next read is there. Going back is ``seek``."""
        self.position = max(self.position, position)

    def ack(self, offset: int) -> bool:
        """``offset`` is done; returns whether it was outstanding (others are ignored)."""
        outstanding, delivered = self._outstanding, self._delivered
        if offset not in outstanding:
            return False
        outstanding.remove(offset)
        while delivered and delivered[0] not in outstanding:
            delivered.popleft()
        return True

    def seek(self, offset: int) -> None:
        """Read at ``offset`` next, and forget all that is outstanding."""
        self.position = offset
        self._delivered.clear()
        self._outstanding.clear()

    @property
    def committable(self) -> int:
        """The offset to commit: every record below it is done."""
        return self._delivered[0] if self._delivered else self.position

    @property
    def outstanding(self) -> int:
        """How many delivered records are not acknowledged."""
        return len(self._outstanding)
