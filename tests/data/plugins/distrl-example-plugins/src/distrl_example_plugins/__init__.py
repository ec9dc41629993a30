"""Plugins as a third party would package them: registered by this module, imported when they are made."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import distrl
from distrl_example_plugins.option import CollectorOptions, EvaluatorOptions, LearnerOptions, PrioritizerOptions

log = logging.getLogger(__name__)
HERE = "distrl_example_plugins"


@distrl.hookimpl
def distrl_collectors() -> Sequence[distrl.Registration[distrl.CollectorFactory]]:
    factory = distrl.deferred(f"{HERE}.collector:ExampleCollector")
    return [distrl.Registration("example-episodes", factory, CollectorOptions, "episodes, labelled")]


@distrl.hookimpl
def distrl_evaluators() -> Sequence[distrl.Registration[distrl.EvaluatorFactory]]:
    factory = distrl.deferred(f"{HERE}.evaluator:ExampleEvaluator")
    return [distrl.Registration("example-state", factory, EvaluatorOptions, "state, with a discount for long episodes")]


@distrl.hookimpl
def distrl_prioritizers() -> Sequence[distrl.Registration[distrl.PrioritizerFactory]]:
    factory = distrl.deferred(f"{HERE}.prioritizer:ExamplePrioritizer")
    return [distrl.Registration("example-recent", factory, PrioritizerOptions, "prefers newer versions' episodes")]


@distrl.hookimpl
def distrl_learners() -> Sequence[distrl.Registration[distrl.LearnerFactory]]:
    factory = distrl.deferred(f"{HERE}.learner:ExampleLearner")
    return [distrl.Registration("example-a-ride", factory, LearnerOptions, "a-ride that counts its updates")]


@distrl.hookimpl
def distrl_on_weights(update: distrl.WeightsUpdate) -> None:
    log.info("example plugin saw version %d", update.version)
