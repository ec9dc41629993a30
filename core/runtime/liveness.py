"""Who is alive: a view of the topic ``nodes`` by signs of life as they arrive here, so clocks need not agree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from distrl.core.codec import Codec
from distrl.core.contracts.bus import Bus, Start
from distrl.core.contracts.clock import Clock
from distrl.core.contracts.events import NodeStatus, Role
from distrl.core.contracts.topic import TopicName
from distrl.core.errors import CodecError, RegistryUnavailableError

MISSED = 3
"""Signs of life missed in a row after which a node counts as dead."""


@dataclass(slots=True)
class _Sign:
    status: NodeStatus
    heard: float
    age_s: float
    """How old the sign was when it was first read; 0 but for what was on the log before this reader."""


class LiveNodes:
    """Reads signs of life. Used from one thread; call ``poll`` now and then."""

    def __init__(self, bus: Bus, codec: Codec, run: str, clock: Clock) -> None:
        self._consumer = bus.consumer([TopicName(run)("nodes")], start=Start.earliest())
        self._codec = codec
        self._clock = clock
        self._signs: dict[str, _Sign] = {}
        self._caught_up = False

    def poll(self) -> None:
        """Take in what has come; never waits."""
        while records := self._consumer.poll(0.0, 500):
            for record in records:
                node = (record.key or b"").decode("utf-8", "replace")
                if record.value is None:
                    self._signs.pop(node, None)
                    continue
                try:
                    status = self._codec.decode(record.value, NodeStatus, record.headers)
                except (CodecError, RegistryUnavailableError):
                    continue  # the next sign of life is not far
                age = 0.0 if self._caught_up else max(0, self._clock.time_ms() - record.timestamp_ms) / 1000
                self._signs[node] = _Sign(status, self._clock.monotonic(), age)
        self._caught_up = True

    def alive(self, role: Role, where: Callable[[NodeStatus], bool] = lambda _: True) -> list[NodeStatus]:
        """The living nodes of a role, by node id."""
        now = self._clock.monotonic()
        return [
            sign.status
            for _, sign in sorted(self._signs.items())
            if sign.status.role == role
            and sign.status.state != "stopped"
            and now - sign.heard + sign.age_s <= MISSED * max(sign.status.heartbeat_ms, 200) / 1000
            and where(sign.status)
        ]

    def close(self) -> None:
        self._consumer.close()
