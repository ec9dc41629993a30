"""What identifies an event: its topic, its key, and ids derived from content, so that a repeated send is recognised."""

from __future__ import annotations

import hashlib

from distrl.core.contracts.events import (
    DeadLetter,
    Event,
    Feedback,
    Metrics,
    NodeStatus,
    Priority,
    Reward,
    Trajectory,
    WeightsUpdate,
)

KEY_BYTES = 1024
"""The longest key of an origin that its dead letter takes over as its own."""
TOPICS: dict[type[Event], str] = {
    Trajectory: "trajectories",
    Reward: "rewards",
    Priority: "priorities",
    Feedback: "feedback",
    WeightsUpdate: "weights",
    NodeStatus: "nodes",
    Metrics: "metrics",
    DeadLetter: "dead-letters",
}


def event_topic(event: Event) -> str:
    """The short name (``core.contracts.topic``) of the topic that an event belongs to.

    A weight update belongs to ``weights``; its producer writes it to ``weights-latest`` too.
    """
    return TOPICS[type(event)]


def event_key(event: Event) -> bytes:
    """The record key of an event: what it is joined, compacted and partitioned by. UTF-8, never empty.

    Of a dead letter it is the origin's key, or the event id where the origin had none or an oversized one: the letter holds it anyhow.
    """
    match event:
        case Trajectory() | Reward() | Priority() | Feedback():
            return event.trajectory_id.encode()
        case WeightsUpdate():
            return event.policy.encode()
        case NodeStatus() | Metrics():
            return event.envelope.node.encode()
        case DeadLetter():
            return event.key if event.key and len(event.key) <= KEY_BYTES else event.envelope.event_id.encode()


def derived_id(*parts: str) -> str:
    """32 hexadecimal digits that depend on ``parts`` alone: the same content gives the same id, on any machine.

    Each part is hashed with its length, so ``("ab", "c")`` and ``("a", "bc")`` differ.
    """
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8))
        digest.update(data)
    return digest.hexdigest()[:32]
