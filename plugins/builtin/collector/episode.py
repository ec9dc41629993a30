"""The collector ``episodes``: runs episodes with the policy, one on each device at a time. Made by the collector node.

One round (``advance``): start episodes on idle devices, wait for the first devices that are ready, let
each policy act once on the batch of its own, hand the actions to the devices. Slow devices are simply not in the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog

from distrl.core.contracts.action import InvalidAction, parse_action
from distrl.core.contracts.events import Outcome, Trajectory
from distrl.core.contracts.policy import Policy, PolicyAction, PolicyInput
from distrl.core.contracts.role import CollectorParts, RoleContext, Ticket
from distrl.core.errors import ConfigError, PolicyError, StoreFullError
from distrl.plugins.builtin.collector.episode_options import EpisodeOptions
from distrl.plugins.builtin.collector.record import describe, previous_actions, to_trajectory
from distrl.plugins.builtin.collector.slot import Arrival, Chosen, Episode, Slot
from distrl.plugins.builtin.collector.worker import Inbox

log = structlog.get_logger(__name__)
STOPPED = "Stopped"
"""Error class of episodes that were in hand when the collector was closed."""


class EpisodeCollector:
    """A ``Collector``. An episode keeps the policy that its ticket names, from its first step to its last."""

    uses_weights = True

    def __init__(self, options: EpisodeOptions, context: RoleContext, parts: CollectorParts) -> None:
        if not parts.devices:
            raise ConfigError("a collector needs at least one device")
        self._options = options
        self._context = context
        self._clock = context.clock
        self._parts = parts
        self._inbox: Inbox[Arrival] = Inbox(context.clock)
        self._slots = [
            Slot(index, device, context.artefacts, context.clock, self._inbox)
            for index, device in enumerate(parts.devices)
        ]
        self._ready: list[tuple[Slot, Episode]] = []
        """Those whose next action is to be chosen."""
        self._closed = False
        self._failure: Exception | None = None
        """Why the policy could not act, to be raised by the next round."""

    def in_flight(self) -> int:
        return sum(slot.episode is not None for slot in self._slots)

    def advance(self, ticket: Callable[[], Ticket | None]) -> Sequence[Trajectory]:
        """Raises ``TaskError`` if no task can be drawn and ``PolicyError`` if the policy cannot act."""
        if self._closed:
            return []
        if self._failure is not None:
            raise self._failure
        self._start(ticket)
        if not self.in_flight():
            self._rest()
            return []
        working = self.in_flight() - len(self._ready)
        arrivals = self._inbox.take(
            working,
            wait_s=0.0 if self._ready else self._options.wait_ms / 1000,
            settle_s=self._options.settle_ms / 1000,
        )
        ended = [trajectory for arrival in arrivals if (trajectory := self._arrived(arrival)) is not None]
        try:
            self._act()
        except Exception as error:
            if not ended:
                raise
            # What has ended is handed over first; the next round raises.
            self._failure = error
        return ended

    def confirm(self, trajectory: Trajectory) -> None:
        """Raises ``StoreFullError`` if the device's ledger finds no space; any other failure is the device's and logged."""
        slot = next((slot for slot in self._slots if slot.device.device_id == trajectory.device), self._slots[0])
        identity, outcome = trajectory.trajectory_id, trajectory.outcome
        try:
            in_time = slot.worker.call(
                lambda: slot.device.finish(identity, outcome), self._clock, self._options.confirm_s
            )
        except StoreFullError:
            raise
        except Exception as error:
            log.warning("a device did not take note of a kept episode", device=trajectory.device, error=str(error))
            self._failed(slot)
        else:
            if not in_time:
                log.warning("a device is slow to take note of a kept episode", device=trajectory.device)

    def close(self) -> Sequence[Trajectory]:
        if self._closed:
            return []
        self._closed = True
        for slot in self._slots:
            slot.worker.submit(slot.device.close)
            slot.worker.stop()
        deadline = self._clock.monotonic() + self._options.close_s
        for slot in self._slots:
            if not slot.worker.join(deadline - self._clock.monotonic()):
                log.warning("a device does not let go; it is left behind", device=slot.device.device_id)
        in_hand = [(slot, slot.episode) for slot in self._slots if slot.episode is not None]
        return [
            self._end(
                slot, episode, "aborted", error_class=STOPPED, error="the collector stopped before the episode ended"
            )
            for slot, episode in in_hand
        ]

    # --- one round --------------------------------------------------------------------------

    def _start(self, ticket: Callable[[], Ticket | None]) -> None:
        now = self._clock.monotonic()
        for slot in self._slots:
            if slot.episode is not None or slot.rests_until > now:
                continue
            leave = ticket()
            if leave is None:
                return
            if leave.policy is None:
                raise PolicyError(f"episode {leave.episode} came without a policy to act in it")
            task = self._parts.tasks.sample(self._options.split, leave.seed)
            slot.episode = Episode(
                ticket=leave,
                policy=leave.policy,
                task=task,
                goal=task.goal,
                horizon=self._parts.horizon or task.horizon,
                started_ms=self._clock.time_ms(),
            )
            slot.reset(slot.episode)

    def _rest(self) -> None:
        """While all devices rest there is nothing to wait for but the first of them, so the caller does not spin."""
        left = min(slot.rests_until for slot in self._slots) - self._clock.monotonic()
        if left > 0:
            self._clock.sleep(min(left, self._options.wait_ms / 1000))

    def _arrived(self, arrival: Arrival) -> Trajectory | None:
        """Take a worker's report; the trajectory if the episode has ended with it."""
        slot, episode = arrival.slot, arrival.episode
        if slot.episode is not episode:
            return None
        if episode.steps and not episode.steps[-1].done_ms:
            episode.steps[-1].done_ms = arrival.time_ms
        if arrival.error is not None:
            error_class, text = describe(arrival.error)
            log.warning("episode aborted", device=slot.device.device_id, episode=episode.ticket.episode, error=text)
            if arrival.device_failed:
                self._failed(slot)
            return self._end(slot, episode, "aborted", error_class=error_class, error=text)
        if arrival.observation is not None:
            if episode.looks == 0 and arrival.observation.goal:
                episode.goal = arrival.observation.goal
            episode.observation = arrival.observation
            episode.looks += 1
        if not arrival.ended:
            self._ready.append((slot, episode))
            return None
        slot.failures = 0
        by_word = arrival.by_environment or _ended_by_agent(episode)
        return self._end(
            slot, episode, "finished" if by_word else "horizon", environment_outcome=arrival.environment_outcome
        )

    def _act(self) -> None:
        """Choose an action for everyone who is ready, one call a policy, and send the actions off."""
        groups: dict[int, tuple[Policy, list[tuple[Slot, Episode]]]] = {}
        for slot, episode in sorted(self._ready, key=lambda item: item[0].index):
            groups.setdefault(id(episode.policy), (episode.policy, []))[1].append((slot, episode))
        self._ready = []
        for policy, members in groups.values():
            actions = policy.act([_input(episode) for _, episode in members])
            if len(actions) != len(members):
                raise PolicyError(f"policy {policy.name!r} gave {len(actions)} actions for {len(members)} observations")
            now = self._clock.time_ms()
            for (slot, episode), action in zip(members, actions, strict=True):
                self._send(slot, episode, action, now)

    def _send(self, slot: Slot, episode: Episode, choice: PolicyAction, now: int) -> None:
        step = Chosen(seen=episode.looks - 1, action=choice, chosen_ms=now)
        episode.steps.append(step)
        last = len(episode.steps) >= episode.horizon
        try:
            action = parse_action(choice.action)
        except InvalidAction as error:
            step.invalid_reason = str(error) or "invalid"
            step.done_ms = now
            if last:
                slot.end(episode)
            else:
                self._ready.append((slot, episode))
            return
        if action.kind in ("done", "fail"):
            step.done_ms = now
            slot.end(episode)
        else:
            slot.step(episode, action, last=last)

    def _end(
        self,
        slot: Slot,
        episode: Episode,
        outcome: Outcome,
        *,
        environment_outcome: float | None = None,
        error_class: str = "",
        error: str = "",
    ) -> Trajectory:
        slot.episode = None
        return to_trajectory(
            self._context,
            slot.device.device_id,
            episode,
            outcome,
            environment_outcome=environment_outcome,
            error_class=error_class,
            error=error,
        )

    def _failed(self, slot: Slot) -> None:
        """The first failure costs nothing but the episode: the next reset may mend it. After that the device rests."""
        slot.failures += 1
        if slot.failures < 2:
            return
        rest = min(self._options.backoff_longest_s, self._options.backoff_first_s * 2.0 ** min(slot.failures - 2, 30))
        slot.rests_until = self._clock.monotonic() + rest
        log.warning(
            "a device failed again and rests", device=slot.device.device_id, failures=slot.failures, seconds=rest
        )


def _input(episode: Episode) -> PolicyInput:
    if episode.observation is None:
        raise PolicyError(f"episode {episode.ticket.episode} has no observation to act on")
    return PolicyInput(episode.goal, episode.observation, previous_actions(episode.steps))


def _ended_by_agent(episode: Episode) -> bool:
    """Whether the last action was the agent's own word that it is over."""
    last = episode.steps[-1] if episode.steps else None
    return last is not None and not last.invalid_reason and parse_action(last.action.action).kind in ("done", "fail")
