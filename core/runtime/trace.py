"""W3C trace context: one trace an episode, carried by every event about it (https://www.w3.org/TR/trace-context/)."""

from __future__ import annotations

import random


def new_traceparent(source: random.Random) -> str:
    """A ``traceparent`` of a new trace: version 00, random ids, sampled."""
    return f"00-{source.getrandbits(128) or 1:032x}-{source.getrandbits(64) or 1:016x}-01"


def child_traceparent(parent: str, source: random.Random) -> str:
    """The ``traceparent`` of a new span in the parent's trace; empty for a malformed parent."""
    parts = parent.split("-")
    if len(parts) != 4 or len(parts[1]) != 32:
        return ""
    return f"{parts[0]}-{parts[1]}-{source.getrandbits(64) or 1:016x}-{parts[3]}"
