"""Who is alive: a view of the topic ``nodes`` by signs of life as they arrive here, so clocks need not agree.

``LiveNodes`` reads the topic for a role; ``Signs`` is the view itself, which ``core.runtime.tail`` feeds too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from distrl.core.codec import Codec
from distrl.core.contracts.bus import Bus, Record, Start, TopicPartition
from distrl.core.contracts.clock import Clock
from distrl.core.contracts.events import NodeStatus, Role
from distrl.core.contracts.topic import TopicName
from distrl.core.errors import BusUnavailableError, CodecError, RegistryUnavailableError
from distrl.core.runtime.scan import OnUnreadable, records
from distrl.core.runtime.wall_clock import WallClock

MISSED = 3
"""Signs of life missed in a row after which a node counts as dead."""
AHEAD_MS = 1_000
"""A sign of life that was on the log before this reader and is further in the future proves nothing: a clock was set back."""


@dataclass(slots=True)
class _Sign:
    status: NodeStatus
    heard: float
    age_s: float
    """How old the sign was when it was read."""


class Signs:
    """The newest sign of life of each node. Used from one thread.

    A sign that comes while this reader follows is as old as its last look at the most, whatever wall clocks say. Only what was on the
    log before must be aged by its time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wall = WallClock(clock)
        self._signs: dict[str, _Sign] = {}
        self._ends: Mapping[TopicPartition, int] | None = None
        self._looked = clock.monotonic()

    def follow(self, ends: Mapping[TopicPartition, int]) -> None:
        """What is on the log by now ends here."""
        self._ends = ends

    @property
    def following(self) -> bool:
        return self._ends is not None

    def heard(self, record: Record, status: NodeStatus) -> None:
        """A sign of life was read."""
        now = self._clock.monotonic()
        limit_s = status_limit_s(status)
        age = self._wall.age_s(record.timestamp_ms)
        if self._ends is not None and record.offset >= self._ends.get(record.topic_partition, 0):
            age = min(age, now - self._looked)
        elif record.timestamp_ms > self._clock.time_ms() + AHEAD_MS:
            age = max(age, 2 * limit_s)
        self._signs[status.envelope.node] = _Sign(status, now, age)

    def left(self, node: str) -> None:
        """It took its leave."""
        self._signs.pop(node, None)

    def looked(self) -> None:
        """All that had come was read."""
        self._looked = self._clock.monotonic()

    def age_s(self, node: str) -> float | None:
        """Seconds since the node's last sign of life; ``None`` if there is none."""
        sign = self._signs.get(node)
        return None if sign is None else self._clock.monotonic() - sign.heard + sign.age_s

    def is_alive(self, node: str) -> bool:
        """Whether it has not left, stopped, or missed three signs of life."""
        sign = self._signs.get(node)
        if sign is None or sign.status.state == "stopped":
            return False
        return self._clock.monotonic() - sign.heard + sign.age_s <= status_limit_s(sign.status)

    def alive(self) -> list[NodeStatus]:
        """The newest signs of the living, by node id."""
        return [sign.status for node, sign in sorted(self._signs.items()) if self.is_alive(node)]

    def silent(self) -> list[NodeStatus]:
        """Those of nodes that neither left nor stopped and are not alive."""
        return [
            sign.status
            for node, sign in sorted(self._signs.items())
            if sign.status.state != "stopped" and not self.is_alive(node)
        ]


class LiveNodes:
    """Reads signs of life. Used from one thread; call ``poll`` now and then."""

    def __init__(
        self, bus: Bus, codec: Codec, run: str, clock: Clock, *, on_unreadable: OnUnreadable = lambda *_: None
    ) -> None:
        """``on_unreadable`` hears of records that are no sign of life."""
        self._on_unreadable = on_unreadable
        self._consumer = bus.consumer([TopicName(run)("nodes")], start=Start.earliest())
        self._codec = codec
        self._signs = Signs(clock)
        self._newest_ms = 0

    def poll(self) -> None:
        """Take in what has come; never waits for more. The first calls may bring nothing yet: see ``catch_up``."""
        if not self._signs.following:
            with contextlib.suppress(BusUnavailableError):
                self._signs.follow(self._consumer.end_offsets())
        while found := self._consumer.poll(0.0, 500):
            for record in found:
                self._take(record)
        self._signs.looked()

    def catch_up(self) -> None:
        """Take in all that is on the log by now, and wait for it. Raises ``BusUnavailableError``."""
        ends = self._consumer.end_offsets()
        self._signs.follow(ends)
        for record in records(self._consumer, ends):
            self._take(record)
        self._signs.looked()

    @property
    def newest_ms(self) -> int:
        """Time of the newest record (milliseconds since the epoch), tombstones too; 0 if there was none."""
        return self._newest_ms

    def _take(self, record: Record) -> None:
        self._newest_ms = max(self._newest_ms, record.timestamp_ms)
        if record.value is None:
            self._signs.left((record.key or b"").decode("utf-8", "replace"))
            return
        try:
            with contextlib.suppress(RegistryUnavailableError):  # the next sign of life is not far
                self._signs.heard(record, self._codec.decode(record.value, NodeStatus, record.headers))
        except CodecError as error:
            self._on_unreadable(record, error)

    def alive(self, role: Role, where: Callable[[NodeStatus], bool] = lambda _: True) -> list[NodeStatus]:
        """The living nodes of a role, by node id."""
        return [status for status in self._signs.alive() if status.role == role and where(status)]

    def close(self) -> None:
        self._consumer.close()


def status_limit_s(status: NodeStatus) -> float:
    """How long a node may be silent and still count as alive."""
    return MISSED * max(status.heartbeat_ms, 200) / 1000
