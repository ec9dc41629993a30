"""Slowness and failures of the simulated phone, as its options describe them. Called by the device around every call."""

from __future__ import annotations

import math
import random

from distrl.connectors.simulated_phone.option import PhoneOptions
from distrl.core.contracts.clock import Clock
from distrl.core.errors import DeviceError, DeviceLostError, DeviceTimeoutError


class Condition:
    """How one phone fares: its own slowness, and what it is broken by at present."""

    def __init__(self, options: PhoneOptions, clock: Clock, rng: random.Random) -> None:
        self._options = options
        self._clock = clock
        self._rng = rng
        self.slowness: float = options.spread ** rng.random()
        """Factor on every latency, from 1 to ``spread``, uniform in its logarithm; the device's own for life."""
        self.broken: DeviceError | None = None

    def check(self) -> None:
        """Raise what the phone is broken by."""
        if self.broken is not None:
            raise type(self.broken)(self.broken.message)

    def delay(self) -> None:
        """Take the time that a call takes; a call slower than the time limit breaks the phone."""
        seconds = self._seconds()
        limit = self._options.timeout_s
        if seconds:
            self._clock.sleep(min(seconds, limit))
        if seconds > limit:
            self._break(DeviceTimeoutError(f"the phone did not answer within {limit:g} s; it needs a reset"))

    def risk(self) -> None:
        """Fail by chance, as the options say, once a step."""
        faults = self._options.faults
        chance = self._rng.random()
        if chance < faults.freeze_probability:
            self._clock.sleep(self._options.timeout_s)
            self._break(
                DeviceTimeoutError(f"the phone froze: no answer within {self._options.timeout_s:g} s; it needs a reset")
            )
        chance -= faults.freeze_probability
        if chance < faults.crash_probability:
            self._break(DeviceLostError("the phone crashed and restarted; it needs a reset"))
        chance -= faults.crash_probability
        if chance < faults.lost_session_probability:
            self._break(DeviceLostError("the session with the phone is gone; it needs a reset"))

    def _seconds(self) -> float:
        latency = self._options.latency
        if latency.kind == "none":
            return 0.0
        noise = math.exp(self._rng.gauss(0.0, latency.sigma)) if latency.kind == "lognormal" else 1.0
        return latency.median_ms / 1000 * self.slowness * noise

    def _break(self, error: DeviceError) -> None:
        self.broken = error
        raise error
