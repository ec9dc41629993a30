"""One device and the episode on it. Used by the episode collector.

Two threads meet here. The collector's thread owns the episode and chooses; the device's worker calls the device, puts the
observation away and reports with an ``Arrival``. A job is queued only after the last one has reported, and jobs run in
order, so whatever a worker has written before its report (or in the job before) is read safely.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from distrl.core.contracts.action import Action
from distrl.core.contracts.clock import Clock
from distrl.core.contracts.device import Device, StepResult
from distrl.core.contracts.events import ObservationRecord
from distrl.core.contracts.observation import Observation
from distrl.core.contracts.policy import Policy, PolicyAction
from distrl.core.contracts.role import Artefacts, Ticket
from distrl.core.contracts.task import Task
from distrl.plugins.builtin.collector.worker import Inbox, Worker


@dataclass(slots=True)
class Chosen:
    """An action and when it was chosen and carried out."""

    seen: int
    """Index of the observation that it was chosen on."""
    action: PolicyAction
    chosen_ms: int
    done_ms: int = 0
    invalid_reason: str = ""


@dataclass(slots=True)
class Episode:
    """An episode in hand."""

    ticket: Ticket
    policy: Policy
    task: Task
    goal: str
    horizon: int
    started_ms: int
    steps: list[Chosen] = field(default_factory=list)
    observation: Observation | None = None
    """The latest one."""
    looks: int = 0
    """Observations reported so far."""
    records: list[ObservationRecord] = field(default_factory=list)
    """One an observation, filled by the worker; the latest may still be missing while the policy chooses."""
    recording_failed: Exception | None = None


@dataclass(frozen=True, slots=True)
class Arrival:
    """A worker's report: an observation to act on, an end, or a failure."""

    slot: Slot
    episode: Episode
    time_ms: int
    observation: Observation | None = None
    ended: bool = False
    by_environment: bool = False
    environment_outcome: float | None = None
    error: Exception | None = None
    device_failed: bool = False


class Slot:
    """A device, its worker, and how the device has fared."""

    def __init__(self, index: int, device: Device, artefacts: Artefacts, clock: Clock, inbox: Inbox[Arrival]) -> None:
        self.index = index
        self.device = device
        self.worker = Worker(f"device-{index}")
        self.episode: Episode | None = None
        self.failures = 0
        """Failures of the device in a row."""
        self.rests_until = 0.0
        """Monotonic seconds: no episode starts before."""
        self._artefacts = artefacts
        self._clock = clock
        self._inbox = inbox

    def reset(self, episode: Episode) -> None:
        """Queue the start of an episode."""
        self._queue(
            episode, lambda: StepResult(self.device.reset(episode.task, episode=episode.ticket.episode)), last=False
        )

    def step(self, episode: Episode, action: Action, *, last: bool) -> None:
        """Queue an action; with ``last`` the episode ends after it in any case."""
        self._queue(episode, lambda: self.device.step(action), last=last)

    def end(self, episode: Episode) -> None:
        """Queue the end of an episode that the agent, or an invalid last action, has ended without touching the device."""
        self._queue(episode, lambda: None, last=True)

    def _queue(self, episode: Episode, call: Callable[[], StepResult | None], *, last: bool) -> None:
        self.worker.submit(lambda: self._work(episode, call, last))

    def _work(self, episode: Episode, call: Callable[[], StepResult | None], last: bool) -> None:
        if episode.recording_failed is not None:
            self._report(episode, error=episode.recording_failed)
            return
        try:
            result = call()
            observation = result.observation if result else None
            done = result is not None and result.done
            outcome = result.environment_outcome if result else None
            if (done or last) and outcome is None:
                outcome = self.device.outcome()
        except Exception as error:
            self._report(episode, error=error, device_failed=True)
            return
        if not done and not last:
            # The policy may look at it while it is being put away.
            self._report(episode, observation=observation)
            episode.recording_failed = self._record(episode, observation)
            return
        if (failure := self._record(episode, observation)) is not None:
            self._report(episode, observation=observation, error=failure)
        else:
            self._report(episode, observation=observation, ended=True, by_environment=done, environment_outcome=outcome)

    def _record(self, episode: Episode, observation: Observation | None) -> Exception | None:
        """Put an observation away. A failure is carried by the episode: it ends as aborted with the next report."""
        if observation is not None:
            try:
                episode.records.append(self._artefacts.record(observation))
            except Exception as error:
                return error
        return None

    def _report(
        self,
        episode: Episode,
        *,
        observation: Observation | None = None,
        ended: bool = False,
        by_environment: bool = False,
        environment_outcome: float | None = None,
        error: Exception | None = None,
        device_failed: bool = False,
    ) -> None:
        self._inbox.put(
            Arrival(
                self,
                episode,
                self._clock.time_ms(),
                observation,
                ended,
                by_environment,
                environment_outcome,
                error,
                device_failed,
            )
        )
