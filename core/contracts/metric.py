"""Every number that a node tells, in one table: its name on the topic ``metrics`` and the one that ``/metrics`` serves.

Loops count under the names of the topic; ``core.runtime.exporter`` and ``docs/metrics.md`` are made from the table, so none of
them can drift. A share is a part of the interval that an event covers, from 0 to 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

WAITS = ("weights", "allowance", "devices", "log", "store", "trajectories", "demonstrations", "verdicts")
"""What a role may wait for."""
SIDES = (
    "learner",
    "collector",
    "evaluator",
    "weights",
    "demonstrations",
    "trajectories",
    "verdicts",
    "devices",
    "log",
    "store",
)
"""Who or what may be missing while a role waits in vain."""
HANDLERS = ("records", "episode", "update", "publish", "checkpoint")
"""What takes time: a batch of records, an episode from leave to end, a learner's update, a new version, a checkpoint."""
OPERATIONS = ("put", "get", "stat", "list", "delete", "ping")
"""Kinds of requests to the store."""

BUSY_SHARE = "busy_share"
WAIT_SHARE = "wait_share."
LAG = "lag."
QUEUE_AGE_MS = "queue_age_ms"
HANDLED = "handled"
DUPLICATES = "duplicates"
DEAD_LETTERS = "dead_letters"
RETRIES = "retries"
HELD = "held_records"
IN_FLIGHT_RECORDS = "in_flight_records"
IN_FLIGHT_BYTES = "in_flight_bytes"
OUTBOX = "outbox_episodes"
OUTBOX_SINCE = "outbox_since_ms"
"""A counter of a collector's signs of life alone: when the first episode in its outbox began; 0 while there is none."""
EPISODES = "episodes"
ABORTED = "aborted"
STEPS = "steps"
UNJUDGED = "unjudged"
STORE_REQUESTS = "store_requests"
STORE_ERRORS = "store_errors"
STORE_RETRIES = "store_retries"
CHECKPOINT_AGE = "checkpoint_age_seconds"
LEARNER = "learner."
BUFFER = LEARNER + "buffer.trajectories"
WITHHELD = LEARNER + "withheld"
HANDLER_SECONDS = "distrl_handler_seconds"
STORE_SECONDS = "distrl_store_request_seconds"

BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds of the histograms' buckets, in seconds."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One number: what it is called in both places and what it means."""

    name: str
    """On the topic ``metrics``; one that ends with a dot is a prefix; empty: it is only served."""
    served: str
    """At ``/metrics``; one that ends with an underscore is a prefix."""
    kind: Literal["counter", "gauge", "histogram"]
    """As served. On the topic, a counter covers the interval alone."""
    by: str
    """Roles that have it."""
    meaning: str
    label: str = ""
    """Label of the served series besides ``run``, ``role`` and ``node``."""
    scale: float = 1.0
    """What a value of the topic is multiplied by to be served."""


_ALL = "every role"
_READERS = "evaluator, prioritizer, learner"

NODE_METRICS = (
    Metric(
        BUSY_SHARE,
        "distrl_busy_seconds_total",
        "counter",
        _ALL,
        "Time in work: a collector with an episode in hand, a learner inside updates, others handling records. "
        "On the topic a share of the interval",
    ),
    Metric(
        WAIT_SHARE,
        "distrl_wait_seconds_total",
        "counter",
        _ALL,
        f"Time spent waiting, by cause: {', '.join(WAITS)}. On the topic a share of the interval",
        label="cause",
    ),
    Metric("", "distrl_waiting_seconds", "gauge", _ALL, "How long the node has waited by now, by cause", label="cause"),
    Metric(
        "",
        "distrl_missing",
        "gauge",
        _ALL,
        "1 for the side that is missing while the node waits in vain (distrl status says it in words), else 0",
        label="side",
    ),
    Metric(
        LAG,
        "distrl_consumer_lag_records",
        "gauge",
        _READERS,
        "Records of the topic that the node has not read yet",
        label="topic",
    ),
    Metric(
        QUEUE_AGE_MS,
        "distrl_queue_age_seconds",
        "gauge",
        _READERS,
        "How long the oldest record has waited that the node read lately, has in hand, or has not read yet. "
        "On the topic in milliseconds, the oldest of all topics",
        label="topic",
        scale=0.001,
    ),
    Metric(
        "",
        "distrl_queue_too_old",
        "gauge",
        _READERS,
        "1 while that age is above run.queue_age_seconds, else 0",
        label="topic",
    ),
    Metric(HANDLED, "distrl_records_handled_total", "counter", _READERS, "Records read and handled", label="topic"),
    Metric(
        DUPLICATES,
        "distrl_records_duplicate_total",
        "counter",
        _READERS,
        "Records that had been handled before and were dropped",
    ),
    Metric(
        DEAD_LETTERS, "distrl_dead_letters_total", "counter", _READERS, "Records sent to the dead letters by the node"
    ),
    Metric(RETRIES, "distrl_record_retries_total", "counter", _READERS, "Times that a record was tried again"),
    Metric(HELD, "distrl_held_records", "gauge", _READERS, "Records held back to be tried again"),
    Metric(
        "",
        HANDLER_SECONDS,
        "histogram",
        _ALL,
        "Time to handle one batch of records, to run an episode, to make an update, to publish a version, "
        "to keep a checkpoint",
        label="handler",
    ),
    Metric(
        IN_FLIGHT_RECORDS,
        "distrl_producer_in_flight_records",
        "gauge",
        _ALL,
        "Records sent that the log has not acknowledged yet",
    ),
    Metric(IN_FLIGHT_BYTES, "distrl_producer_in_flight_bytes", "gauge", _ALL, "Bytes of those records"),
    Metric(
        OUTBOX,
        "distrl_outbox_episodes",
        "gauge",
        "collector",
        "Finished episodes on the node's disk that the log has not acknowledged yet",
    ),
    Metric(EPISODES, "distrl_episodes_total", "counter", "collector", "Episodes that ended, aborted ones included"),
    Metric(ABORTED, "distrl_episodes_aborted_total", "counter", "collector", "Episodes that a device cut short"),
    Metric(STEPS, "distrl_steps_total", "counter", "collector", "Actions carried out"),
    Metric(
        UNJUDGED,
        "distrl_trajectories_unjudged_total",
        "counter",
        "prioritizer, learner",
        "Trajectories let go because no verdict came in time",
    ),
    Metric(
        "",
        "distrl_weights_version",
        "gauge",
        "collector, learner",
        "Version of the weights in use; a learner's newest",
    ),
    Metric("", "distrl_weights_epoch", "gauge", "collector, learner", "Epoch of the weights in use"),
    Metric(
        CHECKPOINT_AGE,
        "distrl_checkpoint_age_seconds",
        "gauge",
        "learner",
        "Time since the last checkpoint was kept, or since the start",
    ),
    Metric(
        LEARNER,
        "distrl_learner_",
        "gauge",
        "learner",
        "What the learner plugin reports: losses, entropy, share of clipped ratios and so on; served with _ for "
        "each character that Prometheus does not allow",
    ),
    Metric(BUFFER, "distrl_learner_buffer_trajectories", "gauge", "learner", "Trajectories in the buffer"),
    Metric(
        WITHHELD,
        "distrl_learner_withheld",
        "gauge",
        "learner",
        "Trajectories that became too old before they were sampled once, since the run began",
    ),
    Metric(STORE_REQUESTS, "distrl_store_requests_total", "counter", _ALL, "Requests to the object store", "operation"),
    Metric(
        STORE_ERRORS,
        "distrl_store_errors_total",
        "counter",
        _ALL,
        "Requests that failed because the store did not answer, had no room, or refused",
        label="operation",
    ),
    Metric(
        STORE_RETRIES,
        "distrl_store_retries_total",
        "counter",
        _ALL,
        "Requests to the store that were made again",
        label="operation",
    ),
    Metric("", STORE_SECONDS, "histogram", _ALL, "Time that a request to the store took", label="operation"),
    Metric("", "distrl_log_age_seconds", "gauge", _ALL, "Time since the log last acknowledged a sign of life"),
    Metric("", "distrl_store_age_seconds", "gauge", _ALL, "Time since the store last answered"),
    Metric("", "distrl_loop_age_seconds", "gauge", _ALL, "Time since the role's loop last came round"),
    Metric("", "distrl_ready", "gauge", _ALL, "1 while the node takes part in the work (/health/ready), else 0"),
    Metric("", "distrl_live", "gauge", _ALL, "1 while the role's loop makes progress (/health/live), else 0"),
    Metric("", "distrl_build_info", "gauge", _ALL, "1; the version of distrl is its label", label="version"),
)
"""What every node's ``/metrics`` serves, besides ``process_*`` of the Prometheus client."""

RUN_METRICS = (
    Metric("", "distrl_run_nodes_alive", "gauge", "", "Nodes that show signs of life, by role", label="role"),
    Metric("", "distrl_run_nodes_expected", "gauge", "", "Nodes that distrl run keeps up, by role", label="role"),
    Metric("", "distrl_run_node_restarts_total", "counter", "", "Times that a node was started again", label="node"),
    Metric("", "distrl_run_collected_total", "counter", "", "Distinct trajectories on the log, aborted ones left out"),
    Metric("", "distrl_run_evaluated_total", "counter", "", "Those of them that have a verdict"),
    Metric("", "distrl_run_ingested_total", "counter", "", "Those of them that the learner has ingested"),
    Metric("", "distrl_run_aborted_total", "counter", "", "Distinct trajectories that a device cut short"),
    Metric("", "distrl_run_dead_letters", "gauge", "", "Records in the dead letters"),
    Metric("", "distrl_run_weights_version", "gauge", "", "Newest version of the weights"),
    Metric("", "distrl_run_success_ratio", "gauge", "", "Success over the last 200 judged episodes of the policy"),
    Metric("", "distrl_run_staleness_versions", "gauge", "", "Mean lag of ingested trajectories, in versions"),
    Metric("", "distrl_run_budget_ratio", "gauge", "", "Share of the nearest budget that is spent"),
    Metric("", "distrl_run_phase", "gauge", "", "1 for the phase that the run is in, else 0", label="phase"),
)
"""What the supervisor of ``distrl run`` serves of the run as a whole."""
