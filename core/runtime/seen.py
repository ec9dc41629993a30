"""Which ids were handled before: the bounded memory that makes effects happen once by event id."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable


class Seen:
    """The last ``capacity`` ids. A repeat that comes later than that is not recognised."""

    def __init__(self, capacity: int, ids: Iterable[str] = ()) -> None:
        self._capacity = capacity
        self._ids: OrderedDict[str, None] = OrderedDict()
        for identity in ids:
            self.add(identity)

    def add(self, identity: str) -> bool:
        """Remember an id; return whether it is new."""
        if identity in self._ids:
            self._ids.move_to_end(identity)
            return False
        self._ids[identity] = None
        if len(self._ids) > self._capacity:
            self._ids.popitem(last=False)
        return True

    def discard(self, identity: str) -> None:
        self._ids.pop(identity, None)

    def __contains__(self, identity: str) -> bool:
        return identity in self._ids

    def __len__(self) -> int:
        return len(self._ids)

    def ids(self) -> list[str]:
        """Oldest first."""
        return list(self._ids)
