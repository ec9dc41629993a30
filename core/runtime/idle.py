"""Says whom a role waits for that has nothing to do. Used by evaluator and prioritizer: to be idle is no error of theirs."""

from __future__ import annotations

from collections.abc import Sequence

from distrl.core.contracts.events import NodeStatus
from distrl.core.runtime.liveness import LiveNodes
from distrl.core.runtime.node import Node
from distrl.core.runtime.watchdog import Missing, Watchdog

NAMED = 3
"""Nodes that a message names one by one."""


class IdleWatch:
    """Used from the role's thread. ``fed`` after work, ``idle`` after a poll that brought none."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._watchdog = Watchdog(node.clock, bound_s=node.config.run.watchdog_seconds, board=node.activity, ends=False)
        self._nodes: LiveNodes | None = None

    def fed(self) -> None:
        """There was something to do."""
        self._watchdog.fed()

    def idle(self, *, unjudged: int = 0) -> None:
        """There is nothing to do. ``unjudged``: trajectories here that wait for their verdict."""
        self._watchdog.hungry(lambda: self._missing(unjudged))

    def close(self) -> None:
        if self._nodes is not None:
            self._nodes.close()

    def _missing(self, unjudged: int) -> Missing | None:
        node, waited = self._node, self._watchdog.waited_s
        if self._nodes is None:  # opened when it is needed: a busy role never asks
            self._nodes = LiveNodes(node.bus, node.codec, node.run, node.clock)
        self._nodes.poll()
        overdue = waited >= self._watchdog.bound_s
        if unjudged:
            if not self._nodes.alive("evaluator"):
                return Missing(
                    "evaluator",
                    f"{unjudged} trajectories wait for a verdict and no evaluator is alive (start one: distrl-node --role evaluator)",
                )
            words = f"{unjudged} trajectories wait for a verdict, and none has come for {waited:.0f} s"
            return Missing("verdicts", words) if overdue else None
        collectors = self._nodes.alive("collector")
        if not collectors:
            return Missing("collector", "no collector is alive (start one: distrl-node --role collector)")
        if not overdue:
            return None
        return Missing("trajectories", f"no trajectory has come for {waited:.0f} s: {told(collectors)}")


def told(nodes: Sequence[NodeStatus]) -> str:
    """What nodes do, in words, a few of them by name."""
    words = [
        f"{status.envelope.node} " + (f"waits for {status.waiting_for}" if status.waiting_for else f"is {status.state}")
        for status in nodes[:NAMED]
    ]
    return ", ".join(words) + (f" and {len(nodes) - NAMED} more" if len(nodes) > NAMED else "")
