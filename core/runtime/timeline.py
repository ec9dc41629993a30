"""One episode's way through all roles, put together from the records about it. Used by ``distrl trace``; only looks on.

Times are those of the machines that wrote the records: between two machines a delay is off by what their clocks differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from distrl.core.codec import Codec
from distrl.core.contracts.bus import Bus, Record, Start
from distrl.core.contracts.events import DeadLetter, Event, Feedback, Priority, Reward, Trajectory
from distrl.core.contracts.topic import CO_PARTITIONED, TopicName
from distrl.core.errors import CodecError, UnknownEpisodeError
from distrl.core.runtime.header import TRACEPARENT
from distrl.core.runtime.scan import records
from distrl.core.runtime.trace import trace_id

TOPICS = (*CO_PARTITIONED, "dead-letters")


@dataclass(frozen=True, slots=True)
class Moment:
    """Something that happened to the episode."""

    time_ms: int
    """Milliseconds since the epoch."""
    what: str
    """``started``, ``ended``, ``logged``, ``evaluated``, ``prioritized``, a feedback's kind, ``refused``, ``dead letter``."""
    node: str
    topic: str = ""
    """Bare name; empty for what left no record of its own."""
    partition: int = 0
    offset: int = 0
    text: str = ""
    version: int | None = None
    """Of the weights, where one is concerned."""
    event_id: str = ""
    repeated: bool = False
    """The same event was on the log before: it was sent twice, and counts once."""

    @property
    def where(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}" if self.topic else ""


@dataclass(frozen=True, slots=True)
class Timeline:
    """An episode, oldest moment first."""

    episode: str
    trace: str
    """Its trace id; empty where no record names one."""
    moments: Sequence[Moment]
    unreadable: int = 0
    """Records about it that this version cannot read."""


def follow(bus: Bus, codec: Codec, run: str, identity: str) -> Timeline:
    """The timeline of an episode, by its id or its trace's.

    Reads the run's keyed topics once, a second time for a trace id, and decodes only what is about the episode. Raises
    ``UnknownEpisodeError`` if nothing is.
    """
    found = [record for record in _scan(bus, run) if _is_about(record, identity)]
    keys = {record.key for record in found if record.key is not None}
    if keys and identity.encode() not in keys:
        # Known by its trace: what an older distrl wrote about it carries no trace, but the key.
        episode = _text(min(keys))
        found = [record for record in _scan(bus, run) if record.key in keys]
    else:
        episode = identity
    if not found:
        raise UnknownEpisodeError(
            f"nothing on the log of run {run!r} is about {identity!r}: it takes a trajectory's id, or the 32 digits of a trace"
        )
    moments: list[Moment] = []
    seen: set[str] = set()
    unreadable = 0
    for record in found:
        try:
            event = codec.decode(record.value or b"", headers=record.headers)
        except CodecError:
            unreadable += 1
            continue
        again = event.envelope.event_id in seen
        seen.add(event.envelope.event_id)
        moments += _moments(record, event, again)
    traces = {trace for record in found if (trace := _trace(record))}
    moments.sort(key=lambda moment: moment.time_ms)
    return Timeline(episode, min(traces, default=""), moments, unreadable)


def _scan(bus: Bus, run: str) -> Iterable[Record]:
    name = TopicName(run)
    with bus.consumer([name(topic) for topic in TOPICS], start=Start.earliest()) as consumer:
        for record in records(consumer):
            if record.value is not None:
                yield record


def _is_about(record: Record, identity: str) -> bool:
    return record.key == identity.encode() or _trace(record) == identity


def _trace(record: Record) -> str:
    return next((trace_id(_text(value)) for name, value in record.headers if name == TRACEPARENT), "")


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _moments(record: Record, event: Event, again: bool) -> list[Moment]:
    """What a record tells; a trajectory tells of its start and end too."""

    def moment(what: str, text: str, version: int | None = None) -> Moment:
        return Moment(
            record.timestamp_ms,
            what,
            event.envelope.node,
            record.topic.rpartition(".")[2],
            record.partition,
            record.offset,
            text,
            version,
            event.envelope.event_id,
            again,
        )

    match event:
        case Trajectory():
            logged = moment("logged", "out of the outbox", event.version)
            return [logged] if again else [*_episode(event), logged]
        case Reward():
            reason = f": {event.reason}" if event.reason else ""
            return [
                moment(
                    "evaluated", f"success {event.success:g}, by {event.evaluator} {event.evaluator_version}{reason}"
                )
            ]
        case Priority():
            return [moment("prioritized", f"priority {event.priority:.4g}, by {event.prioritizer}", event.version)]
        case Feedback(kind="ingested") if event.reason:
            return [moment("refused", event.reason, event.version)]
        case Feedback():
            numbers = {"TD error": event.mean_abs_td, "ratio": event.mean_ratio, "entropy": event.mean_entropy}
            told = [f"{name} {number:.3g}" for name, number in numbers.items() if number is not None]
            return [moment(event.kind, ", ".join([event.reason] * bool(event.reason) + told), event.version)]
        case DeadLetter():
            origin = f"{event.topic.rpartition('.')[2]}/{event.partition}/{event.offset}"
            return [moment("dead letter", f"{event.role} on {origin}: {event.code} {event.message}")]
        case _:
            return []


def _episode(event: Trajectory) -> list[Moment]:
    node = event.envelope.node
    ended = f"{event.outcome}, {len(event.steps)} step{'s' * (len(event.steps) != 1)}"
    if event.outcome == "aborted":
        ended += f", {event.error_class}: {event.error}"
    who = f"{event.policy}, version {event.version}" if event.origin == "policy" else f"{event.policy}, {event.origin}"
    return [
        Moment(event.started_ms, "started", node, text=f"{event.device}, {who}: {event.goal}", version=event.version),
        Moment(event.ended_ms, "ended", node, text=ended, version=event.version),
    ]
