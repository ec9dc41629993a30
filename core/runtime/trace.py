"""W3C trace context (https://www.w3.org/TR/trace-context/): a trace an episode or version of the weights, a span an event.

``EventWriter`` and the loops call it. Span ids derive from event ids, so an event that is sent again is the same span, and two
runs with one seed share no trace. A ``traceparent`` holds the span that wrote it: who acts on an event is that span's child.
"""

from __future__ import annotations

import re

from distrl.core.contracts.identity import derived_id

# Of a version after 00 the first four fields mean the same, and more may follow (section 3.2.3).
_TRACEPARENT = re.compile(
    r"(?!ff)(?P<version>[0-9a-f]{2})-(?!0{32})(?P<trace>[0-9a-f]{32})-(?!0{16})(?P<span>[0-9a-f]{16})"
    r"-(?P<flags>[0-9a-f]{2})(?P<rest>-.*)?"
)


def root_traceparent(*identity: str) -> str:
    """The ``traceparent`` of a new trace's first span. ``identity`` is unique to what the trace follows: the same parts give the
    same trace."""
    return f"00-{derived_id('trace', *identity)}-{_span(*identity)}-01"


def child_traceparent(parent: str, event_id: str) -> str:
    """The ``traceparent`` of the event's own span in the trace of ``parent``; empty for a parent that is none."""
    match = _match(parent)
    if match is None:
        return ""
    sampled = int(match["flags"], 16) & 1
    return f"00-{match['trace']}-{_span(event_id)}-0{sampled}"


def trace_id(traceparent: str) -> str:
    """The trace that a ``traceparent`` belongs to, 32 hexadecimal digits; empty for text that is no ``traceparent``."""
    match = _match(traceparent)
    return "" if match is None else match["trace"]


def _match(traceparent: str) -> re.Match[str] | None:
    match = _TRACEPARENT.fullmatch(traceparent)
    return None if match is None or (match["version"] == "00" and match["rest"]) else match


def _span(*identity: str) -> str:
    return derived_id("span", *identity)[:16]
