"""What a role's loop tells about itself. Written by the loop, read by the node's signs of life and health."""

from __future__ import annotations

from dataclasses import dataclass

from distrl.core.contracts.events import NodeState


@dataclass(slots=True)
class NodeView:
    """One node's. Each field is set whole, so no reader sees half of it."""

    state: NodeState = "starting"
    epoch: int = 0
    version: int = 0
    outbox_since_ms: int = 0
    """When the first episode in a collector's outbox began; 0 while there is none."""
    built: bool = False
    """The role's plugin is there."""
    needs_weights: bool = False
    """The role cannot work without weights of a policy."""
    has_weights: bool = False
    """``epoch`` and ``version`` are those of weights in use."""
