"""distrl: fine-tune agents that operate mobile devices, by asynchronous distributed reinforcement learning.

What a plugin author needs comes from here; ``distrl.plugins`` is the author's page and
``distrl.testing`` the test kit. Importing this imports no client library and neither torch nor numpy.
"""

from importlib.metadata import PackageNotFoundError, version

from distrl.core.contracts.action import Action, InvalidAction, parse_action
from distrl.core.contracts.clock import Clock
from distrl.core.contracts.device import Device, StepResult
from distrl.core.contracts.events import (
    Blob,
    DeadLetter,
    Envelope,
    Event,
    Feedback,
    Metrics,
    NodeStatus,
    ObservationRecord,
    Priority,
    Reward,
    StepRecord,
    Trajectory,
    WeightsUpdate,
)
from distrl.core.contracts.identity import derived_id
from distrl.core.contracts.observation import Observation, Screenshot
from distrl.core.contracts.policy import Policy, PolicyAction, PolicyEvaluation, PolicyInput, TrainablePolicy
from distrl.core.contracts.role import (
    Artefacts,
    Collector,
    CollectorParts,
    Evaluator,
    Experience,
    Learner,
    Numbers,
    Prioritizer,
    RoleContext,
    Ticket,
    UpdateResult,
    Verdict,
    Wanted,
)
from distrl.core.contracts.staleness import StalenessPolicy
from distrl.core.contracts.task import Check, Task, TaskSource, UiNode
from distrl.core.errors import (
    DeviceError,
    DeviceLostError,
    DeviceTimeoutError,
    DistrlError,
    InvalidEventError,
    PolicyError,
    TaskError,
    WeightsError,
)
from distrl.plugins.deferred import deferred
from distrl.plugins.spec import (
    CollectorFactory,
    DeviceFactory,
    EvaluatorFactory,
    LearnerFactory,
    Options,
    PolicyFactory,
    PrioritizerFactory,
    Registration,
    TaskSourceFactory,
    hookimpl,
)

try:
    __version__ = version("distrl")
except PackageNotFoundError:  # a source tree that nobody installed
    __version__ = "0+unknown"

__all__ = [
    "Action",
    "Artefacts",
    "Blob",
    "Check",
    "Clock",
    "Collector",
    "CollectorFactory",
    "CollectorParts",
    "DeadLetter",
    "Device",
    "DeviceError",
    "DeviceFactory",
    "DeviceLostError",
    "DeviceTimeoutError",
    "DistrlError",
    "Envelope",
    "Evaluator",
    "EvaluatorFactory",
    "Event",
    "Experience",
    "Feedback",
    "InvalidAction",
    "InvalidEventError",
    "Learner",
    "LearnerFactory",
    "Metrics",
    "NodeStatus",
    "Numbers",
    "Observation",
    "ObservationRecord",
    "Options",
    "Policy",
    "PolicyAction",
    "PolicyError",
    "PolicyEvaluation",
    "PolicyFactory",
    "PolicyInput",
    "Prioritizer",
    "PrioritizerFactory",
    "Priority",
    "Registration",
    "Reward",
    "RoleContext",
    "Screenshot",
    "StalenessPolicy",
    "StepRecord",
    "StepResult",
    "Task",
    "TaskError",
    "TaskSource",
    "TaskSourceFactory",
    "Ticket",
    "TrainablePolicy",
    "Trajectory",
    "UiNode",
    "UpdateResult",
    "Verdict",
    "Wanted",
    "WeightsError",
    "WeightsUpdate",
    "__version__",
    "deferred",
    "derived_id",
    "hookimpl",
    "parse_action",
]
