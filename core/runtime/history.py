"""What happened in a run, seen from its log alone: a pure aggregator over decoded events.

Fed by ``core.runtime.tail``; read by the supervisor, ``distrl status``, ``core.runtime.summary`` and
``core.runtime.report``. Topics may be read in any order: everything is joined by id and ordered by the events' own times.
Memory is bounded but for a small row a trajectory (``core.runtime.episode_table``).
"""

from __future__ import annotations

import math
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from distrl.core.contracts import metric
from distrl.core.contracts.events import (
    DeadLetter,
    Event,
    Feedback,
    Metrics,
    NodeStatus,
    Origin,
    Reward,
    Role,
    Trajectory,
    WeightsUpdate,
)
from distrl.core.runtime.episode_table import Count, EpisodeRow, EpisodeTable
from distrl.core.runtime.series import Series

WINDOW = 200
"""Episodes of ``success_first`` and ``success_last``, and of the live moving average."""
LOADS = (
    metric.QUEUE_AGE_MS,
    metric.IN_FLIGHT_RECORDS,
    metric.IN_FLIGHT_BYTES,
    metric.OUTBOX,
    metric.HELD,
)
"""Numbers of which the latest is kept for each node, besides lag."""
_REMEMBERED = 20_000
_ERRORS_KEPT = 20


@dataclass(slots=True)
class NodeRecord:
    """The latest sign of life of one node."""

    status: NodeStatus
    seen_ms: int
    """When it was written; milliseconds since the epoch."""
    incarnations: int = 1
    left: bool = False
    """It took its leave (a tombstone or the state ``stopped``)."""

    @property
    def restarts(self) -> int:
        return self.incarnations - 1


@dataclass(slots=True)
class _Share:
    """A time-weighted mean."""

    weighted: float = 0.0
    interval_ms: float = 0.0

    def add(self, value: float, interval_ms: float) -> None:
        self.weighted += value * interval_ms
        self.interval_ms += interval_ms

    @property
    def mean(self) -> float | None:
        return self.weighted / self.interval_ms if self.interval_ms else None


@dataclass(frozen=True, slots=True)
class Version:
    """One version of the weights, as first announced."""

    epoch: int
    version: int
    time_ms: int


@dataclass(frozen=True, slots=True)
class ErrorLine:
    """A dead letter or the error of an aborted episode; text comes from events and is not to be trusted."""

    time_ms: int
    node: str
    code: str
    message: str


@dataclass(slots=True)
class _Load:
    """Latest numbers of one node, for lag and queue age."""

    role: Role
    values: dict[str, float] = field(default_factory=dict)


class RunHistory:
    """Aggregates one run. ``evaluator``: whose verdicts count; empty takes the first that is seen for each trajectory."""

    def __init__(self, run: str, *, evaluator: str = "") -> None:
        self.run = run
        self.evaluator = evaluator
        self.table = EpisodeTable()
        self.nodes: dict[str, NodeRecord] = {}
        self.versions: list[Version] = []
        """Distinct versions, in the order in which they were announced."""
        self.newest: WeightsUpdate | None = None
        self._letters: dict[str, bytes | None] = {}
        """Dead letters that were not sent back, by id; with the key of the trajectory, if they hold one."""
        self._redriven: set[str] = set()
        """Ids of those that were."""
        self.errors: deque[ErrorLine] = deque(maxlen=_ERRORS_KEPT)
        self.undecodable = 0
        """Records that this reader could not decode."""
        self.first_ms: int | None = None
        self.last_ms: int | None = None
        """Times of the earliest and latest event."""
        self.learner_series: dict[str, Series] = defaultdict(Series)
        """By the name of what the learner plugin reports, without its prefix."""
        self.lag_series: dict[tuple[Role, str], Series] = defaultdict(Series)
        """Unread records by role and topic, over all nodes of the role."""
        self._sums: dict[str, float] = defaultdict(float)
        self._withheld = 0.0
        self._busy: dict[Role, _Share] = defaultdict(_Share)
        self._waits: dict[tuple[Role, str], _Share] = defaultdict(_Share)
        self._loads: dict[str, _Load] = {}
        self._incarnations: dict[str, set[str]] = defaultdict(set)
        self._announced: set[int] = set()
        self._remembered: OrderedDict[str, None] = OrderedDict()
        self._recent: deque[tuple[str, float]] = deque(maxlen=WINDOW)
        self._recent_by_kind: dict[str, deque[float]] = {}

    # --- feeding ----------------------------------------------------------------------------------

    def add(self, topic: str, event: Event, timestamp_ms: int) -> None:
        """Take one event over. ``topic``: its bare name (``rewards``); ``timestamp_ms``: of the record."""
        self.first_ms = timestamp_ms if self.first_ms is None else min(self.first_ms, timestamp_ms)
        self.last_ms = timestamp_ms if self.last_ms is None else max(self.last_ms, timestamp_ms)
        match event:
            case Trajectory():
                self._trajectory(event)
            case Reward():
                self._reward(event)
            case Feedback():
                if event.kind == "ingested":
                    self.table.ingested(event.trajectory_id, event.version, refused=bool(event.reason))
            case WeightsUpdate():
                self._weights(event, timestamp_ms)
            case NodeStatus():
                self._node(event, timestamp_ms)
            case Metrics():
                if self._is_new(event.envelope.event_id):
                    self._metrics(event)
            case DeadLetter():
                letter_id = event.envelope.event_id
                if topic == "dead-letters" and letter_id not in self._letters and letter_id not in self._redriven:
                    self._letters[letter_id] = event.key if event.topic.endswith(".trajectories") else None
                    self.errors.append(ErrorLine(timestamp_ms, event.envelope.node, event.code, event.message))
            case _:
                pass  # priorities tell nothing that is reported

    def node_left(self, node: str) -> None:
        """A tombstone on ``nodes``."""
        if node in self.nodes:
            self.nodes[node].left = True

    def redriven(self, letter_id: str) -> None:
        """A dead letter was sent back: it is no longer one. If its record fails again, that makes a new one."""
        self._letters.pop(letter_id, None)
        self._redriven.add(letter_id)

    # --- counts -----------------------------------------------------------------------------------

    @property
    def total(self) -> Count:
        """Distinct trajectories of all origins."""
        return self.table.total

    def count(self, origin: Origin) -> Count:
        """Distinct trajectories of one origin."""
        return self.table.by_origin[origin]

    @property
    def episodes(self) -> int:
        """Finished episodes of the policy: aborted ones are not among them."""
        return self.table.by_origin["policy"].collected

    @property
    def dead_letters(self) -> int:
        """Letters that lie there now: those that were sent back are not among them."""
        return len(self._letters)

    @property
    def given_up(self) -> int:
        """Collected trajectories that are not ingested and lie in the dead letters now, whoever refused them."""
        keys = {key for key in self._letters.values() if key is not None}
        return sum(self.table.unfinished(key.decode("utf-8", "replace")) for key in keys)

    @property
    def duplicates_dropped(self) -> int:
        return round(self._sums[metric.DUPLICATES])

    @property
    def withheld(self) -> int:
        """The learner's own total, which goes on over its restarts."""
        return round(self._withheld)

    @property
    def unjudged(self) -> int:
        return round(self._sums[metric.UNJUDGED])

    @property
    def weight_versions(self) -> int:
        return len(self.versions)

    # --- success and staleness --------------------------------------------------------------------

    def judged(self) -> list[EpisodeRow]:
        """The policy's judged training episodes, in the order in which they ended."""
        return self.table.judged()

    @property
    def recent_success(self) -> float | None:
        """Mean over the latest ``WINDOW`` verdicts on the policy's episodes; ``None`` before the first."""
        return sum(success for _, success in self._recent) / len(self._recent) if self._recent else None

    @property
    def recent_count(self) -> int:
        """How many verdicts ``recent_success`` stands on."""
        return len(self._recent)

    @property
    def recent_success_by_kind(self) -> dict[str, float]:
        """The same, a kind of task, over the latest half window of each."""
        return {kind: sum(values) / len(values) for kind, values in sorted(self._recent_by_kind.items())}

    @property
    def staleness_mean(self) -> float | None:
        count = self.table.staleness.total()
        return sum(lag * number for lag, number in self.table.staleness.items()) / count if count else None

    @property
    def staleness_max(self) -> int | None:
        return max(self.table.staleness, default=None)

    # --- load -------------------------------------------------------------------------------------

    def busy(self, role: Role) -> float | None:
        """Share of time in work over all nodes of a role; ``None`` if none reported."""
        return self._busy[role].mean if role in self._busy else None

    def waits(self, role: Role) -> dict[str, float]:
        """Shares of time spent waiting, by what was waited for."""
        return {
            cause: mean
            for (owner, cause), share in sorted(self._waits.items())
            if owner == role and (mean := share.mean) is not None
        }

    def lag(self) -> dict[str, int]:
        """Unread records now, by ``role topic``."""
        sums: dict[str, int] = defaultdict(int)
        for role, values in self._present():
            for name, value in values.items():
                if name.startswith(metric.LAG):
                    sums[f"{role} {name.removeprefix(metric.LAG)}"] += round(value)
        return dict(sorted(sums.items()))

    def queue_ages(self) -> dict[Role, float]:
        """Age of the oldest record in the latest interval, the worst node of each role; milliseconds."""
        ages: dict[Role, float] = {}
        for role, values in self._present():
            if metric.QUEUE_AGE_MS in values:
                ages[role] = max(ages.get(role, 0.0), values[metric.QUEUE_AGE_MS])
        return ages

    def load(self, name: str) -> dict[Role, float]:
        """A number of the latest interval by role, over the nodes that have not left: one of ``LOADS``."""
        sums: dict[Role, float] = {}
        for role, values in self._present():
            if name in values:
                sums[role] = sums.get(role, 0.0) + values[name]
        return sums

    def _present(self) -> Iterator[tuple[Role, dict[str, float]]]:
        """The latest numbers of nodes that have not left."""
        for node, load in self._loads.items():
            if node not in self.nodes or not self.nodes[node].left:
                yield load.role, load.values

    # --- inside -----------------------------------------------------------------------------------

    def _trajectory(self, event: Trajectory) -> None:
        if not self.table.trajectory(event):
            return
        if event.outcome == "aborted":
            self.errors.append(ErrorLine(event.ended_ms, event.envelope.node, event.error_class, event.error))
            return
        success = self.table.success(event.trajectory_id)
        if success is not None:  # the verdict was read first
            self._remember(event.trajectory_id, success)

    def _reward(self, event: Reward) -> None:
        if self.evaluator and event.evaluator != self.evaluator:
            return
        if self.table.verdict(event.trajectory_id, event.success):
            self._remember(event.trajectory_id, event.success)

    def _remember(self, trajectory_id: str, success: float) -> None:
        kind = self.table.kind(trajectory_id)
        if kind is None:
            return
        self._recent.append((kind, success))
        self._recent_by_kind.setdefault(kind, deque(maxlen=WINDOW // 2)).append(success)

    def _weights(self, event: WeightsUpdate, timestamp_ms: int) -> None:
        if self.newest is None or _order(event) > _order(self.newest):
            self.newest = event
        if event.version not in self._announced:
            self._announced.add(event.version)
            self.versions.append(Version(event.epoch, event.version, timestamp_ms))

    def _node(self, event: NodeStatus, timestamp_ms: int) -> None:
        name = event.envelope.node
        self._incarnations[name].add(event.incarnation)
        # The order of the log is that of a node's signs: its clock may be set back between two of them.
        self.nodes[name] = NodeRecord(event, timestamp_ms, len(self._incarnations[name]), event.state == "stopped")

    def _metrics(self, event: Metrics) -> None:
        node, time_ms = event.envelope.node, event.envelope.time_ms
        # A plugin that diverges reports NaN; one such number must not spoil sums and curves.
        values = {name: value for name, value in event.values.items() if math.isfinite(value)}
        for name, value in values.items():
            if name == metric.BUSY_SHARE:
                self._busy[event.role].add(value, event.interval_ms)
            elif name.startswith(metric.WAIT_SHARE):
                self._waits[event.role, name.removeprefix(metric.WAIT_SHARE)].add(value, event.interval_ms)
            elif name.startswith(metric.LEARNER):
                self.learner_series[name.removeprefix(metric.LEARNER)].add(time_ms, value)
                if name == metric.WITHHELD:
                    self._withheld = max(self._withheld, value)
            elif name in (metric.DUPLICATES, metric.UNJUDGED):
                self._sums[name] += value
        load = self._loads.setdefault(node, _Load(event.role))
        load.values = _only_load(values)
        for name in load.values:
            if name.startswith(metric.LAG):
                peers = (peer.values.get(name, 0.0) for peer in self._loads.values() if peer.role == event.role)
                self.lag_series[event.role, name.removeprefix(metric.LAG)].add(time_ms, sum(peers))

    def _is_new(self, event_id: str) -> bool:
        """Whether an event of that id was not seen lately: a repeated send follows soon or never."""
        if event_id in self._remembered:
            return False
        self._remembered[event_id] = None
        if len(self._remembered) > _REMEMBERED:
            self._remembered.popitem(last=False)
        return True


def _order(update: WeightsUpdate) -> tuple[int, int, int]:
    return update.epoch, update.version, update.sequence


def _only_load(values: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in values.items() if name.startswith(metric.LAG) or name in LOADS}
