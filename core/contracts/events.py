"""The records on the log, as plain dataclasses. One class a schema in ``schemas/<record>/``; a test holds the two together.

Every top-level record starts with an ``Envelope``. Times are milliseconds since the epoch (UTC), durations
milliseconds, log-probabilities natural logarithms, entropies nats. ``core.codec`` turns them
into framed Avro and back. Readers ignore what a newer writer added; a field added later has a default.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Origin = Literal["policy", "demonstration", "imported"]
Split = Literal["train", "test"]
Outcome = Literal["finished", "horizon", "aborted"]
NodeState = Literal["starting", "running", "waiting", "draining", "stopped"]
Role = Literal["collector", "evaluator", "prioritizer", "learner", "supervisor"]
ROLES: tuple[Role, ...] = ("collector", "evaluator", "prioritizer", "learner")


@dataclass(frozen=True, slots=True)
class Envelope:
    """What every event says about itself."""

    event_id: str
    """Unique in the run; derived from the content's identity, so that a repeated send is recognised."""
    run: str
    node: str
    """Id of the node that produced the event."""
    time_ms: int
    traceparent: str = ""
    """W3C trace context of the episode (or update) that this event belongs to; empty if none."""


@dataclass(frozen=True, slots=True)
class Blob:
    """An artefact of an event: inside it (``inline``) or in the store (``bucket`` and ``key``)."""

    media_type: str
    size: int
    """Bytes."""
    sha256: str
    """64 lower-case hexadecimal digits."""
    bucket: str = ""
    key: str = ""
    """Empty when ``inline`` holds the bytes."""
    inline: bytes | None = None


@dataclass(frozen=True, slots=True)
class ObservationRecord:
    """What the agent saw: a screenshot, a UI tree, or both."""

    time_ms: int
    width: int
    """Pixels."""
    height: int
    """Pixels."""
    screenshot: Blob | None = None
    ui_tree: Blob | None = None


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One action and what was known when it was chosen."""

    observation: ObservationRecord
    action: str
    """The action as text, in the grammar of ``core.contracts.action``; a malformed one as the policy gave it."""
    action_tokens: tuple[int, ...] = ()
    """The sampled token (or factor) ids, never re-tokenised. Shape [L]."""
    log_prob: float = 0.0
    """Log-probability of the whole action under the behaviour policy; the sum of ``token_log_probs``."""
    token_log_probs: tuple[float, ...] = ()
    """Shape [L], one an entry of ``action_tokens``."""
    entropy: float = 0.0
    """Of the behaviour policy's distribution here: exact for a factored head, mean a token for generated text."""
    value: float | None = None
    """The behaviour policy's estimate of the probability of success; ``None`` if it has no value head."""
    constraint_mask: str = ""
    """Id of the mask that restricted sampling; empty when nothing did."""
    invalid: bool = False
    invalid_reason: str = ""
    chosen_ms: int = 0
    """When the policy answered."""
    done_ms: int = 0
    """When the device had carried the action out."""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One finished or aborted episode. Topic ``trajectories``, key: trajectory id."""

    envelope: Envelope
    trajectory_id: str
    origin: Origin
    task_id: str
    """Identity of the task instance: the same id is the same goal, start and checks."""
    task_kind: str
    split: Split
    goal: str
    """The instruction in natural language, as the agent was given it."""
    checks: str
    """JSON: conditions on the final UI tree that mean success (``core.contracts.task.Check``); ``[]`` if none are defined."""
    seed: int
    horizon: int
    """Steps after which the episode ends."""
    device: str
    """Id of the device."""
    policy: str
    """Name of the behaviour policy's plugin; the demonstrator's for a demonstration."""
    epoch: int
    """Of the learner that published the weights which acted; 0 for none."""
    version: int
    """Of the weights which acted; 0 is the untrained policy."""
    base_model: str
    """SHA-256 of the base model's weights; empty when the policy has none."""
    sampling: str
    """JSON: temperature and the like."""
    outcome: Outcome
    started_ms: int
    ended_ms: int
    steps: tuple[StepRecord, ...] = ()
    final_observation: ObservationRecord | None = None
    environment_outcome: float | None = None
    """What a benchmark itself says: 1 success, 0 failure; ``None`` where it defines nothing."""
    error_class: str = ""
    error: str = ""
    """Of an aborted episode: the error's class and its text."""
    attributes: dict[str, str] = field(default_factory=dict)
    """Free for plugins. Nothing in the core reads it."""
    incarnation: str = ""
    """Start of the collector's process that recorded the episode; tells two processes of one node id apart."""


@dataclass(frozen=True, slots=True)
class Reward:
    """A verdict on a trajectory. Topic ``rewards``, key: trajectory id. The first by offset wins."""

    envelope: Envelope
    trajectory_id: str
    evaluator: str
    evaluator_version: str
    success: float
    """The terminal reward: 1 success, 0 failure, between for partial credit."""
    reason: str = ""
    split: Split = "train"
    """Copied from the trajectory."""


@dataclass(frozen=True, slots=True)
class Priority:
    """A sampling priority. Topic ``priorities``, key: trajectory id. The last by offset counts."""

    envelope: Envelope
    trajectory_id: str
    prioritizer: str
    priority: float
    """Not negative, finite; sampling probability is proportional to ``priority ** alpha``."""
    version: int = 0
    """Of the weights that the numbers behind the priority belong to."""


@dataclass(frozen=True, slots=True)
class Feedback:
    """What the learner knows of a trajectory. Topic ``feedback``, key: trajectory id.

    ``ingested``: it is in the buffer (or was refused, with a reason) and will not be ingested again.
    ``trained`` and ``rescanned``: fresh numbers for the prioritizer. ``evicted``: it left the buffer.
    """

    envelope: Envelope
    trajectory_id: str
    kind: Literal["ingested", "trained", "rescanned", "evicted"]
    epoch: int
    version: int
    """Of the weights that the numbers were computed with."""
    mean_abs_td: float | None = None
    """Mean over steps of the absolute TD error."""
    mean_ratio: float | None = None
    """Mean over steps of min(rho, rho_max)."""
    mean_entropy: float | None = None
    reason: str = ""
    """Why it was refused or evicted; empty otherwise."""


@dataclass(frozen=True, slots=True)
class WeightsUpdate:
    """Weights are in the store; and how far collectors may go. Topics ``weights`` and ``weights-latest``, key: policy name.

    Ordered by (epoch, version, sequence): readers ignore what is not newer. An update with the same version and a
    higher sequence only renews the allowance.
    """

    envelope: Envelope
    policy: str
    epoch: int
    version: int
    sequence: int
    blob: Blob
    """safetensors, in the store."""
    base_model: str = ""
    ingested: int = 0
    """Distinct trajectories of the policy that the learner has ingested."""
    allowance: int = -1
    """Episodes that each living collector may start after reading this update, until the next; -1 without bound."""
    live_collectors: int = 0
    """How many collectors the allowance was computed for."""
    max_lag: int = 0
    """Versions: what lags more will be withheld from training; 0 without bound."""
    options: str = "{}"
    """JSON: how to build the policy that these weights fit (the plugin's options)."""


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A node's sign of life. Topic ``nodes``, key: node id; a tombstone when it leaves."""

    envelope: Envelope
    role: Role
    plugin: str
    state: NodeState
    incarnation: str
    """New at every start of the process; tells two processes of one node id apart."""
    host: str
    pid: int
    started_ms: int
    heartbeat_ms: int
    """Interval between two signs of life; three missed mean dead."""
    epoch: int = 0
    version: int = 0
    """The newest weights that the node uses."""
    waiting_for: str = ""
    """Which side the node waits for; empty when it works."""
    counters: dict[str, int] = field(default_factory=dict)
    distrl_version: str = ""
    missing: str = ""
    """Who is missing, in words, while the node waits in vain; empty otherwise."""
    ready: bool = True
    """Whether the node takes part in the work: its log, store and plugin answer."""
    http: str = ""
    """``host:port`` where the node answers ``/metrics`` and ``/health``; empty if it does not."""


@dataclass(frozen=True, slots=True)
class Metrics:
    """Numbers of one node over one interval. Topic ``metrics``, key: node id."""

    envelope: Envelope
    role: Role
    interval_ms: int
    values: dict[str, float] = field(default_factory=dict)
    """Dotted names, documented in ``docs/metrics.md``."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record that could not be handled. Topic ``dead-letters``, key: the origin's key."""

    envelope: Envelope
    code: str
    """Stable code of the error (``core.errors``)."""
    message: str
    role: Role
    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    """The original bytes."""
    headers: dict[str, bytes] = field(default_factory=dict)
    attempt: int = 1
    """How often the record has been tried."""
    traceback: str = ""
    cause: str = ""
    """Class and message of the error beneath the one that ``code`` and ``message`` tell; empty if there is none."""
    record_time_ms: int = 0
    """The record's own time; 0 if it is not known."""


Event = Trajectory | Reward | Priority | Feedback | WeightsUpdate | NodeStatus | Metrics | DeadLetter
EVENT_TYPES: tuple[type[Event], ...] = (
    Trajectory,
    Reward,
    Priority,
    Feedback,
    WeightsUpdate,
    NodeStatus,
    Metrics,
    DeadLetter,
)
