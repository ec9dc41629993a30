"""The configuration of a run: one TOML file, environment variables over it, ``--set`` over both.

Every section is a frozen model that refuses unknown keys; ``load_config`` turns whatever is wrong into one
``ConfigError`` that names the key and the nearest known one. A plugin's own options live in the ``options`` table of the
section that picks it and are checked by the plugin (``plugins.manager``).
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Self, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, model_validator

from distrl.core.contracts.staleness import StalenessPolicy
from distrl.core.contracts.topic import RUN_PATTERN
from distrl.core.errors import ConfigError

ENVIRONMENT_PREFIX = "DISTRL_"
Table = dict[str, Any]


class Section(BaseModel):
    """Base of all sections."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class RunConfig(Section):
    """``[run]``: which run this is."""

    name: str = Field(default="default", description="names topics, objects and the folder runs/<name>; a-z 0-9 _ -")
    seed: int = Field(default=0, ge=0, description="every random choice of the run derives from it")
    directory: Path = Field(default=Path("runs"), description="holds a folder a run: logs, summary, report, outboxes")
    plugins: tuple[Path, ...] = Field(default=(), description="plugin files to load besides the installed ones")
    heartbeat_seconds: float = Field(
        default=2.0, gt=0, description="interval of a node's sign of life; three missed mean dead"
    )
    watchdog_seconds: float = Field(
        default=120.0, gt=0, description="a role that has waited this long for another one ends with an error"
    )
    hang_seconds: float = Field(
        default=300.0,
        gt=0,
        description="a role whose loop has not come round for so long counts as hung (/health/live)",
    )
    queue_age_seconds: float = Field(
        default=300.0, gt=0, description="a record that waits longer than this to be handled is warned of"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="from which level on distrl's own messages are logged"
    )
    http_host: str = Field(default="127.0.0.1", description="where each node answers /metrics and /health")
    http_port: int = Field(
        default=0,
        ge=0,
        le=65535,
        description="the same; 0: a free one, which `distrl status` shows, for several nodes a host",
    )

    @model_validator(mode="after")
    def _name_fits(self) -> Self:
        if not RUN_PATTERN.fullmatch(self.name):
            raise ValueError(
                "name: use lower-case letters, digits, '-' and '_', at most 63, starting with a letter or digit"
            )
        return self


class BusConfig(Section):
    """``[bus]``: the log."""

    kind: Literal["embedded", "kafka"] = Field(
        default="embedded", description="files for processes of one machine, or a Kafka broker"
    )
    path: Path = Field(default=Path(".distrl/log"), description="embedded: folder of the log")
    synchronous: Literal["NORMAL", "FULL"] = Field(
        default="NORMAL", description="embedded: NORMAL outlives a crashed process, FULL a power loss too"
    )
    bootstrap: tuple[str, ...] = Field(default=("127.0.0.1:9092",), description="kafka: host:port of brokers")
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        default="PLAINTEXT", description="kafka: how to speak to the broker"
    )
    sasl_mechanism: Literal["", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = Field(
        default="", description="kafka: how to log in, with a SASL protocol"
    )
    username: str = Field(default="", description="kafka: of the login")
    password: SecretStr = Field(default=SecretStr(""), description="by environment: DISTRL_BUS__PASSWORD")
    ca_file: Path | None = Field(default=None, description="kafka: PEM file of the authority that signed the broker")
    cert_file: Path | None = Field(
        default=None, description="kafka: PEM file of this client's certificate, for mutual TLS"
    )
    key_file: Path | None = Field(default=None, description="kafka: PEM file of that certificate's private key")
    compression: Literal["auto", "none", "gzip", "lz4", "zstd"] = Field(
        default="auto", description="kafka: of batches; auto compresses what gets smaller by it and leaves the rest"
    )
    partitions: int = Field(default=4, ge=1, le=1000, description="of each keyed topic; fixed for the life of a run")
    replication: int = Field(default=1, ge=1, description="kafka: copies of each record")
    retention_hours: float = Field(default=168.0, gt=0, description="must cover the learner's buffer")
    retention_bytes: int = Field(
        default=0, ge=0, description="of each partition of a topic that is not compacted; 0: without bound"
    )
    max_record_bytes: int = Field(default=1_000_000, ge=65_536, description="bytes of one record")
    session_seconds: float = Field(default=10.0, gt=0, description="a group member silent this long is replaced")
    poll_gap_seconds: float = Field(
        default=300.0,
        gt=0,
        description="a group member that has not asked for records this long is replaced, though its process lives",
    )
    delivery_seconds: float = Field(default=120.0, gt=0, description="a record not acknowledged by then has failed")
    send_seconds: float = Field(default=60.0, gt=0, description="longest wait of a send while too much is in flight")
    in_flight_records: int = Field(default=1000, ge=1, description="records sent and not acknowledged, a producer")
    in_flight_bytes: int = Field(default=32_000_000, ge=1, description="bytes sent and not acknowledged, a producer")


class StoreConfig(Section):
    """``[store]``: large artefacts."""

    kind: Literal["folder", "s3"] = Field(
        default="folder", description="a folder on one machine, or MinIO or any S3-compatible server"
    )
    path: Path = Field(default=Path(".distrl/store"), description="folder: where objects lie")
    endpoint: str = Field(default="127.0.0.1:8333", description="s3: host:port")
    secure: bool = Field(default=False, description="s3: speak TLS")
    ca_file: Path | None = Field(default=None, description="s3: PEM file of the authority that signed the server")
    region: str = Field(default="us-east-1", description="s3")
    bucket: str = Field(default="distrl", description="s3: made if it is missing and may be made")
    access_key: str = Field(default="", description="s3; by environment: DISTRL_STORE__ACCESS_KEY")
    secret_key: SecretStr = Field(default=SecretStr(""), description="s3; by environment: DISTRL_STORE__SECRET_KEY")
    inline_bytes: int = Field(default=2048, ge=0, description="artefacts up to this size ride inside the event")
    timeout_seconds: float = Field(default=30.0, gt=0, description="of one request")
    cache_bytes: int = Field(default=64_000_000, ge=0, description="recently read artefacts kept in a node's memory")
    grace_hours: float = Field(
        default=24.0,
        gt=0.5,
        description="`distrl store gc` leaves what was put, or found again by a put, more lately than this",
    )
    gc_hours: float = Field(
        default=6.0, ge=0, description="`distrl run` collects garbage this often, beside the run; 0: never"
    )


class RegistryConfig(Section):
    """``[registry]``: where schemas are known by id."""

    kind: Literal["committed", "confluent"] = Field(
        default="committed", description="ids from the committed schema files, or from a Confluent-compatible registry"
    )
    url: str = Field(
        default="http://127.0.0.1:8081", description="confluent: where its API begins (Apicurio: .../apis/ccompat/v7)"
    )
    username: str = Field(default="", description="confluent: of the login; empty: none")
    password: SecretStr = Field(default=SecretStr(""), description="by environment: DISTRL_REGISTRY__PASSWORD")
    ca_file: Path | None = Field(
        default=None, description="confluent: PEM file of the authority that signed the registry"
    )
    timeout_seconds: float = Field(default=10.0, gt=0, description="confluent: of one request")
    register_missing: bool = Field(
        default=True, description="confluent: a node registers schemas that are not there; false: that is an error"
    )
    write_versions: dict[str, int] = Field(
        default_factory=dict,
        description="schema versions to write, by record, while older readers are about; unset: the newest",
    )


class PolicyConfig(Section):
    """``[policy]``: what acts and is trained."""

    plugin: str = "factored"
    options: Table = Field(default_factory=dict)


class TasksConfig(Section):
    """``[tasks]``: what is to be done."""

    plugin: str = "simulated-phone"
    options: Table = Field(default_factory=dict)


class DeviceConfig(Section):
    """``[device]``: what it is done on."""

    plugin: str = "simulated-phone"
    options: Table = Field(default_factory=dict)


class CollectorConfig(Section):
    """``[collector]``."""

    plugin: str = "episodes"
    nodes: int = Field(default=2, ge=1, description="processes that `distrl run` starts")
    devices: int = Field(default=8, ge=1, description="devices a node")
    horizon: int | None = Field(default=None, ge=1, description="steps; unset leaves it to the task")
    demonstrations: int = Field(default=0, ge=0, description="demonstrations that a node of their own records first")
    demonstrator: str = Field(default="demonstrator", description="the collector plugin that records them")
    outbox_episodes: int = Field(
        default=1000, ge=1, description="finished episodes kept on disk while the log is away; then collecting pauses"
    )
    stop_seconds: float = Field(default=20.0, gt=0, description="longest time to finish episodes in hand at a stop")
    options: Table = Field(default_factory=dict)


class RetrySection(Section):
    """What the sections of all roles that read records have (``core.runtime.retry``)."""

    retry_attempts: int = Field(
        default=5,
        ge=2,
        description="a record that fails with what may pass is tried at least so often before it is a dead letter",
    )
    retry_seconds: float = Field(
        default=120.0, ge=0, description="and for at least so long, counted while other records succeed"
    )


class EvaluatorConfig(RetrySection):
    """``[evaluator]``."""

    plugin: str = "state"
    nodes: int = Field(default=1, ge=1, description="processes that `distrl run` starts")
    batch: int = Field(default=64, ge=1, description="trajectories a call")
    options: Table = Field(default_factory=dict)


class PrioritizerConfig(RetrySection):
    """``[prioritizer]``."""

    plugin: str = "dper"
    nodes: int = Field(default=1, ge=1, description="processes that `distrl run` starts")
    verdict_seconds: float = Field(
        default=600.0, gt=0, description="a trajectory without a verdict by then is counted and let go"
    )
    options: Table = Field(default_factory=dict)


class LearnerConfig(RetrySection):
    """``[learner]``."""

    plugin: str = "a-ride"
    evaluator: str = Field(default="", description="whose verdicts train; empty: the one in [evaluator]")
    evaluator_version: str = Field(default="*", description="pattern that the verdict's version must match")
    verdict_seconds: float = Field(
        default=600.0, gt=0, description="a trajectory without a verdict by then is counted and let go"
    )
    remembered_trajectories: int = Field(
        default=50_000,
        ge=1,
        description="ids kept of what was ingested: what comes again after so many others is ingested again",
    )
    pace: bool = Field(default=True, description="collectors start only what the learner will still use")
    max_lag: int = Field(default=8, ge=0, description="versions; older is not trained on; 0: without bound")
    renew_seconds: float = Field(
        default=5.0, gt=0, description="a waiting learner renews the collectors' allowance this often"
    )
    checkpoint_seconds: float = Field(default=30.0, gt=0, description="interval of checkpoints")
    checkpoints_kept: int = Field(default=2, ge=1, description="older ones are removed")
    weights_kept: int = Field(
        default=100, ge=0, description="newest versions kept in the store, besides the first; above max_lag; 0: all"
    )
    options: Table = Field(default_factory=dict)

    @model_validator(mode="after")
    def _keeps_what_is_used(self) -> Self:
        if 0 < self.weights_kept <= self.max_lag + 1:
            raise ValueError(
                f"weights_kept = {self.weights_kept}: collectors may still act with versions that lag max_lag = {self.max_lag}; "
                f"keep at least {self.max_lag + 2}, or 0 for all"
            )
        return self


class BudgetConfig(Section):
    """``[budget]``: when `distrl run` ends; whichever comes first. 0 means no such bound."""

    minutes: float = Field(default=0.0, ge=0, description="of training, from the first weights on")
    episodes: int = Field(default=0, ge=0, description="finished episodes of the policy")
    until_success: float = Field(
        default=0.0, ge=0, le=1, description="success over the last 200 episodes of the policy"
    )
    drain_seconds: float = Field(
        default=120.0, gt=0, description="longest time to evaluate and ingest what was collected"
    )
    evaluation_tasks: int = Field(
        default=120, ge=0, description="unseen tasks that the first and last weights are judged on"
    )


class Config(Section):
    """The whole configuration of a run."""

    run: RunConfig = Field(default_factory=RunConfig)
    bus: BusConfig = Field(default_factory=BusConfig)
    store: StoreConfig = Field(default_factory=StoreConfig)
    registry: RegistryConfig = Field(default_factory=RegistryConfig)
    policy: PolicyConfig = Field(default_factory=PolicyConfig)
    tasks: TasksConfig = Field(default_factory=TasksConfig)
    device: DeviceConfig = Field(default_factory=DeviceConfig)
    collector: CollectorConfig = Field(default_factory=CollectorConfig)
    evaluator: EvaluatorConfig = Field(default_factory=EvaluatorConfig)
    prioritizer: PrioritizerConfig = Field(default_factory=PrioritizerConfig)
    learner: LearnerConfig = Field(default_factory=LearnerConfig)
    budget: BudgetConfig = Field(default_factory=BudgetConfig)

    @property
    def run_directory(self) -> Path:
        return self.run.directory / self.run.name

    @property
    def training_evaluator(self) -> str:
        """Name of the evaluator whose verdicts train."""
        return self.learner.evaluator or self.evaluator.plugin

    def staleness(self, batch: int) -> StalenessPolicy:
        """The one object that admission and eviction ask; ``batch`` is the learner plugin's."""
        return StalenessPolicy(
            max_lag=self.learner.max_lag, batch=batch, pace=self.learner.pace, renew_s=self.learner.renew_seconds
        )


def load_config(
    path: Path | None,
    *,
    overrides: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Config:
    """Read a configuration. ``overrides`` are ``section.key=value`` with the value in TOML; where text is wanted, so
    is what is no text in TOML (a bare word, a number). A variable of the environment is taken as it is there, quotes too.

    Raises ``ConfigError`` for a missing or malformed file, an unknown key, a value of the wrong type.
    """
    table: Table = {}
    if path is not None:
        try:
            table = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"cannot read the configuration {path}: {error.strerror}") from error
        except (ValueError, RecursionError) as error:  # a number of thousands of digits, lists in lists in lists
            raise ConfigError(f"{path} is not valid TOML: {error}") from error
    for variable, text in sorted((os.environ if environment is None else environment).items()):
        if variable.startswith(ENVIRONMENT_PREFIX) and "__" in variable:
            keys = variable.removeprefix(ENVIRONMENT_PREFIX).lower().split("__")
            _assign(table, keys, text if _is_text(keys) else _value(text), source=f"environment variable {variable}")
    for override in overrides:
        name, separator, text = override.partition("=")
        if not separator:
            raise ConfigError(f"--set {override}: write it as SECTION.KEY=VALUE")
        keys, value = name.strip().split("."), _value(text.strip())
        if _is_text(keys) and not isinstance(value, str):
            value = text.strip()
        _assign(table, keys, value, source=f"--set {name}")
    return parse_config(table, source=str(path) if path else "the configuration")


def parse_config(table: Table, *, source: str = "the configuration") -> Config:
    """Check a table of sections. Raises ``ConfigError``."""
    try:
        return Config.model_validate(table)
    except ValidationError as error:
        raise ConfigError(f"{source}: {explain(error, Config)}") from error


def explain(error: ValidationError, model: type[BaseModel], *, prefix: str = "") -> str:
    """The first thing that is wrong, in one line, with the nearest known key for an unknown one.

    ``prefix``: dotted name of the table that ``model`` checked.
    """
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    location = [str(part) for part in first["loc"]]
    path = [prefix] if prefix else []
    name = ".".join([*path, *location]) or "value"
    if first["type"] != "extra_forbidden":
        return f"{name}: {first['msg'].removeprefix('Value error, ')}"
    owner: Any = model
    for part in location[:-1]:
        field = getattr(owner, "model_fields", {}).get(part)
        owner = field.annotation if field else None
    known = list(getattr(owner, "model_fields", {}))
    nearest = difflib.get_close_matches(location[-1], known, n=1, cutoff=0.5)
    if nearest:
        return f"unknown key {name!r}; did you mean {'.'.join([*path, *location[:-1], nearest[0]])!r}?"
    return f"unknown key {name!r}; known are {', '.join(known) or 'none'}"


def _value(text: str) -> Any:
    """A value written in TOML; what is none is text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def _is_text(keys: Sequence[str]) -> bool:
    """Whether the setting of this name takes text: a password of digits is no number."""
    kind: Any = Config
    for key in keys:
        field = getattr(kind, "model_fields", {}).get(key)
        kind = field.annotation if field is not None else None
    kinds = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    return all(part in (str, SecretStr, Path, type(None)) or get_origin(part) is Literal for part in kinds)


def _assign(table: Table, keys: Sequence[str], value: Any, *, source: str) -> None:
    *parents, last = keys
    for key in parents:
        table = table.setdefault(key, {})
        if not isinstance(table, dict):
            raise ConfigError(f"{source}: {key} is a value, not a section")
    table[last] = value
