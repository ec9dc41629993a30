"""The device contract: a phone, an emulator, a browser or a simulation. Implemented in ``connectors/``.

The loop that a collector runs, each call bounded by the device's own time limits::

    observation = device.reset(task)
    while True:
        result = device.step(action)
        if result.done: break
    outbox.write(trajectory)                # durable first
    device.finish(trajectory_id, outcome)   # then the device is told
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from distrl.core.contracts.action import Action
from distrl.core.contracts.events import Outcome
from distrl.core.contracts.observation import Observation
from distrl.core.contracts.task import Task


@dataclass(frozen=True, slots=True)
class StepResult:
    """What an action led to."""

    observation: Observation
    done: bool = False
    """The environment itself ended the episode."""
    environment_outcome: float | None = None
    """What a benchmark says once the episode is over: 1 success, 0 failure."""


class Device(Protocol):
    """One device. Not safe for use by several threads. A device runs one episode at a time.

    Every call ends within its time limit; a failure is a ``DeviceError`` (``DeviceTimeoutError``,
    ``DeviceLostError``), after which ``reset`` tries to bring the device back and may raise again.
    """

    @property
    def device_id(self) -> str:
        """Stable over restarts; it is on every trajectory."""

    def reset(self, task: Task, *, episode: str) -> Observation:
        """Bring the device to the task's start and look at it. ``episode`` is the trajectory's id."""

    def step(self, action: Action) -> StepResult:
        """Carry one action out and look at what came of it."""

    def observe(self) -> Observation:
        """Look again without acting."""

    def outcome(self) -> float | None:
        """What the benchmark says of the episode as it stands, for an episode that the agent or the horizon
        ended; ``None`` where it defines nothing."""

    def finish(self, episode: str, outcome: Outcome) -> None:
        """The collector has the finished episode in durable storage. Called after every episode that was not
        aborted, again for the same one after a crash: idempotent. A device that keeps a
        ledger writes it here."""

    def health(self) -> None:
        """Return if the device can run an episode; raise a ``DeviceError`` that says why not."""

    def close(self) -> None:
        """Release the device. Idempotent, never raises."""
