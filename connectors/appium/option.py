"""Options of the device ``appium``. Read by the registration and by ``AppiumDevice``; imports no client library."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from distrl.plugins.spec import Options


class AppiumOptions(Options):
    """Which servers, which platform, how long a call may take."""

    servers: tuple[str, ...] = Field(
        default=("http://127.0.0.1:4723",),
        min_length=1,
        description="URLs of Appium servers; devices take turns on them",
    )
    platform: Literal["chromium", "android"] = "chromium"
    reset_seconds: float = Field(
        default=60.0, gt=0, description="longest time of a reset, with a new session if need be"
    )
    step_seconds: float = Field(default=20.0, gt=0, description="longest time of every other call")
    wait_seconds: float = Field(default=1.0, ge=0, description="how long the action `wait` waits")
    swipe_ms: int = Field(default=200, ge=0, description="how long the finger of a swipe is on its way")
    settle_seconds: float = Field(
        default=0.0, ge=0, description="pause between an action and the look at what came of it"
    )
    idle_seconds: int = Field(default=120, ge=1, description="the server ends a session that was silent this long")
    capabilities: dict[str, Any] = Field(
        default_factory=dict,
        description="more capabilities, by their full name (appium:...); they win over the built-in ones",
    )

    browser: Path = Field(default=Path("/usr/bin/chromium"), description="chromium: the browser's program")
    driver: Path = Field(default=Path("/usr/bin/chromedriver"), description="chromium: the chromedriver that fits it")
    width: int = Field(default=160, ge=1, description="chromium: CSS pixels of the viewport")
    height: int = Field(default=284, ge=1, description="chromium: CSS pixels of the viewport")
    pixel_ratio: float = Field(default=2.25, gt=0, description="chromium: pixels of a screenshot for one CSS pixel")
    browser_flags: tuple[str, ...] = Field(default=(), description="chromium: more command line flags")

    udids: tuple[str, ...] = Field(
        default=(),
        description="android: serial numbers as `adb devices` shows them, one a device; empty: whichever is connected",
    )

    @model_validator(mode="after")
    def _calls_fit(self) -> Self:
        if self.step_seconds <= self.wait_seconds + self.settle_seconds + self.swipe_ms / 1000:
            raise ValueError(
                "step_seconds must exceed wait_seconds + settle_seconds + swipe_ms: every such step would time out"
            )
        return self
