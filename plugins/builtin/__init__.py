"""The project's own plugins. They register through the same hooks as a stranger's.

One line a plugin: its name, where its implementation lies (imported when it is made, not before), its options
and a summary. Options classes live in modules that import neither torch nor numpy, so
``distrl plugins show`` and the check of a configuration need no extra. Devices and task sources are
registered by ``distrl.connectors.plugin``.
"""

from __future__ import annotations

from collections.abc import Sequence

from distrl.plugins.builtin.collector.episode_options import EpisodeOptions
from distrl.plugins.builtin.learner.a_ride_options import ARideOptions
from distrl.plugins.builtin.policy.factored_options import FactoredOptions
from distrl.plugins.builtin.prioritizer.dper_options import DperOptions
from distrl.plugins.deferred import deferred
from distrl.plugins.spec import (
    CollectorFactory,
    EvaluatorFactory,
    LearnerFactory,
    Options,
    PolicyFactory,
    PrioritizerFactory,
    Registration,
    hookimpl,
)

HERE = "distrl.plugins.builtin"


@hookimpl
def distrl_collectors() -> Sequence[Registration[CollectorFactory]]:
    return (
        Registration(
            "episodes",
            deferred(f"{HERE}.collector.episode:EpisodeCollector"),
            EpisodeOptions,
            "runs episodes with the policy, one on each device at a time",
        ),
        Registration(
            "demonstrator",
            deferred(f"{HERE}.collector.demonstrator:Demonstrator"),
            EpisodeOptions,
            "records what the task source demonstrates",
        ),
    )


@hookimpl
def distrl_evaluators() -> Sequence[Registration[EvaluatorFactory]]:
    return (
        Registration(
            "state",
            deferred(f"{HERE}.evaluator.state:StateEvaluator"),
            Options,
            "checks the final UI tree against the task's conditions",
        ),
        Registration(
            "environment",
            deferred(f"{HERE}.evaluator.environment:EnvironmentEvaluator"),
            Options,
            "takes over what the benchmark itself says",
        ),
    )


@hookimpl
def distrl_prioritizers() -> Sequence[Registration[PrioritizerFactory]]:
    return (
        Registration(
            "dper",
            deferred(f"{HERE}.prioritizer.dper:Dper"),
            DperOptions,
            "weighs TD error, importance ratio and entropy",
        ),
        Registration(
            "uniform",
            deferred(f"{HERE}.prioritizer.uniform:Uniform"),
            Options,
            "samples every trajectory alike",
        ),
    )


@hookimpl
def distrl_learners() -> Sequence[Registration[LearnerFactory]]:
    return (
        Registration(
            "a-ride",
            deferred(f"{HERE}.learner.a_ride:ARide"),
            ARideOptions,
            "advantage-weighted Retrace over prioritized replay",
        ),
    )


@hookimpl
def distrl_policies() -> Sequence[Registration[PolicyFactory]]:
    return (
        Registration(
            "factored",
            deferred(f"{HERE}.policy.factored:FactoredPolicy"),
            FactoredOptions,
            "a small network with a factored action head",
        ),
    )
