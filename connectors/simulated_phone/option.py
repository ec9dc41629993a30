"""Settings of the simulated phone and of its task source. Imports neither numpy nor Pillow."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from distrl.plugins.spec import Options

Kind = Literal["open", "toggle", "search"]
KINDS: tuple[Kind, ...] = ("open", "toggle", "search")


class Latency(BaseModel):
    """``latency``: how long a call of the phone takes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["none", "constant", "lognormal"] = "none"
    median_ms: float = Field(default=50.0, ge=0, description="median of one call, milliseconds")
    sigma: float = Field(default=0.5, ge=0, le=3, description="lognormal: standard deviation of the logarithm")


class Faults(BaseModel):
    """``faults``: how often the phone fails, per step."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    freeze_probability: float = Field(default=0.0, ge=0, le=1, description="hangs until the call's time limit")
    crash_probability: float = Field(default=0.0, ge=0, le=1, description="the phone restarts under the episode")
    lost_session_probability: float = Field(default=0.0, ge=0, le=1, description="the connection is gone")

    @model_validator(mode="after")
    def _at_most_one(self) -> Self:
        if self.freeze_probability + self.crash_probability + self.lost_session_probability > 1:
            raise ValueError("the three probabilities add up to more than 1")
        return self


class PhoneOptions(Options):
    """``[device.options]`` of ``simulated-phone``."""

    latency: Latency = Field(default_factory=Latency)
    faults: Faults = Field(default_factory=Faults)
    spread: float = Field(
        default=1.0, ge=1, description="the slowest device's latency over the fastest one's; each keeps its own factor"
    )
    timeout_s: float = Field(default=5.0, gt=0, description="time limit of one call, seconds")


class TaskOptions(Options):
    """``[tasks.options]`` of ``simulated-phone``."""

    kinds: tuple[Kind, ...] = Field(default=KINDS, min_length=1, description="open (1 step), toggle (2), search (4)")
