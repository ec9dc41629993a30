"""Options of the plugins; light, because every process reads them."""

from __future__ import annotations

from pydantic import Field

import distrl
from distrl.plugins.builtin.collector.episode_options import EpisodeOptions
from distrl.plugins.builtin.learner.a_ride_options import ARideOptions


class CollectorOptions(EpisodeOptions):
    label: str = Field(default="example", description="text that is put on every trajectory")


class EvaluatorOptions(distrl.Options):
    discount: float = Field(default=1.0, gt=0, le=1, description="factor on the success for each step after the first")


class PrioritizerOptions(distrl.Options):
    growth: float = Field(default=1.1, gt=1, le=2, description="factor on the priority for each newer version")


class LearnerOptions(ARideOptions):
    """Those of a-ride."""
