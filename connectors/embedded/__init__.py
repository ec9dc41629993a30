"""The embedded log: the bus contract on SQLite files, for several processes on one machine.

``bus`` opens it; ``producer``, ``consumer`` and ``admin`` implement the contract; ``partition`` and ``catalogue`` are
the files, on ``database``; ``group``, ``assignment`` and ``heartbeat`` share partitions among the members of a
group; ``fence`` lets only the newest of several producers write. Made by ``connectors.open_bus``.
"""

from distrl.connectors.embedded.bus import EmbeddedBus

__all__ = ["EmbeddedBus"]
