"""The collector's loop: gives leave to start episodes, keeps what ends in the outbox, follows the weights.

Order that loses nothing: a finished episode is written to the outbox, then its device is told (which writes the device's
ledger), then it is sent, and it leaves the outbox when the log has it. A start begins with what the last one left.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import structlog

from distrl.core.codec import derived_id
from distrl.core.contracts.events import Trajectory, WeightsUpdate
from distrl.core.contracts.metric import ABORTED, EPISODES, OUTBOX, STEPS
from distrl.core.contracts.policy import Policy
from distrl.core.contracts.role import Collector, CollectorParts, Ticket
from distrl.core.errors import BusUnavailableError, CodecError, RecordTooLargeError, StoreFullError, TaskError
from distrl.core.runtime.idle import told
from distrl.core.runtime.liveness import LiveNodes
from distrl.core.runtime.node import Node
from distrl.core.runtime.outbox import Outbox, OutboxSender, outbox_path
from distrl.core.runtime.trace import root_traceparent
from distrl.core.runtime.watchdog import Missing, Watchdog
from distrl.core.runtime.weights import WeightsFollower

log = structlog.get_logger(__name__)
DEMONSTRATION_ATTEMPTS = 10
RENEWALS_MISSED = 3
"""A waiting learner renews the collectors' leave; so many missed ones call for a look at who is alive."""
FULL_S = 1.0
"""Pause before a full disk is tried again."""
RECORD_OVERHEAD_BYTES = 1024
"""Room for the key and what a log adds to a record."""


def run(node: Node) -> None:
    """Collect until the node stops; a demonstrator until its demonstrations are done."""
    loop = CollectorLoop(node)
    try:
        loop.run()
    finally:
        loop.close()


class PolicyPool:
    """Policies by version. An episode keeps the one it began with; one that no episode uses takes over new weights."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._current: tuple[tuple[int, int], Policy] | None = None
        self._idle: list[Policy] = []
        self._users: dict[str, Policy] = {}

    def acquire(self, episode: str, update: WeightsUpdate, follower: WeightsFollower) -> Policy:
        """The policy with the weights of ``update``, for one episode."""
        version = (update.epoch, update.version)
        if self._current is None or self._current[0] != version:
            if self._current is not None and self._current[1] not in self._users.values():
                self._idle.append(self._current[1])
            options = json.loads(update.options) or self._node.config.policy.options
            policy: Policy = (
                self._idle.pop() if self._idle else self._node.create("policy", update.policy, dict(options))
            )
            policy.load(follower.path)
            self._current = (version, policy)
        policy = self._current[1]
        self._users[episode] = policy
        return policy

    def release(self, episode: str) -> None:
        """The episode has ended."""
        policy = self._users.pop(episode, None)
        if policy is None or policy in self._users.values():
            return
        if self._current is None or policy is not self._current[1]:
            self._idle.append(policy)


class CollectorLoop:
    """One collector node's work. ``run`` may be called once."""

    def __init__(self, node: Node) -> None:
        self._node = node
        config = node.config.collector
        self._config = config
        devices = [
            node.create("device", node.config.device.plugin, node.config.device.options, index)
            for index in range(config.devices)
        ]
        tasks = node.create("task_source", node.config.tasks.plugin, node.config.tasks.options)
        self._collector: Collector = node.create(
            "collector", config.plugin, config.options, CollectorParts(devices, tasks, config.horizon)
        )
        self._outbox = Outbox(outbox_path(node.work_dir))
        self._pool = PolicyPool(node)
        self._follower = WeightsFollower(
            node.bus,
            node.codec,
            node.store,
            node.run,
            work_dir=node.work_dir,
            clock=node.clock,
            on_unreadable=node.writer.report,
        )
        self._nodes: LiveNodes | None = None
        """Open while this node waits in vain: every collector that always read every node's signs of life would be a load that
        grows with the square of their number."""
        self._watchdog = Watchdog(node.clock, bound_s=node.config.run.watchdog_seconds, board=node.activity)
        self._begun: dict[str, float] = {}
        """When the episodes in hand got their leave, monotonic seconds."""
        self._started = 0
        """Episodes started since the newest weight update was read; aborted ones are given back."""
        self._issued = 0
        self._open_demonstrations = deque(sorted(set(range(config.demonstrations)) - self._outbox.done()))
        """Numbers of those still to be recorded and not in hand."""
        self._numbers: dict[str, int] = {}
        """Numbers of the demonstrations in hand, by episode."""
        self._attempts: dict[int, int] = {}
        """How often each demonstration was begun in this start; another attempt is another task."""
        self._staleness = node.config.staleness(1)
        self._sender = OutboxSender(
            self._outbox,
            lambda identity, value: node.writer.send_framed("trajectories", identity.encode(), value),
            node.clock,
            delivered=self._on_delivered,
        )
        self._unobserved: dict[str, Trajectory] = {}

    def run(self) -> None:
        node = self._node
        self._recover()
        node.view.state = "running"
        node.view.needs_weights = self._collector.uses_weights
        deadline: float | None = None
        while True:
            if node.stop.is_set() and deadline is None:
                node.view.state = "draining"
                deadline = node.clock.monotonic() + self._config.stop_seconds
            if self._sender.failure is not None:
                raise self._sender.failure
            if self._collector.uses_weights and self._follower.poll(self._on_weights):
                self._started = 0
                self._watchdog.fed()
                self._forget_nodes()
            node.activity.came_round()
            ended = self._collector.advance(self._ticket)
            self._keep(ended)
            if self._collector.in_flight():
                node.activity.enter("busy")
                self._watchdog.fed()
            elif deadline is not None or self._finished():
                break
            elif not ended:
                self._wait()
            if deadline is not None and node.clock.monotonic() > deadline:
                log.warning("episodes in hand are given up", episodes=self._collector.in_flight())
                break
        node.view.state = "draining"
        self._keep(self._collector.close())
        if not self._sender.drain(self._config.stop_seconds):
            log.warning("episodes stay in the outbox for the next start", episodes=len(self._outbox))
            if node.drain:
                raise BusUnavailableError(
                    f"{len(self._outbox)} episodes could not be sent and stay in the outbox"
                ) from (self._sender.failure)

    def close(self) -> None:
        self._collector.close()
        self._sender.close()
        self._follower.close()
        self._forget_nodes()
        self._outbox.close()

    # --- starting episodes ------------------------------------------------------------------

    def _ticket(self) -> Ticket | None:
        if self._node.stop.is_set() or len(self._outbox) >= self._config.outbox_episodes:
            return None
        return self._policy_ticket() if self._collector.uses_weights else self._demonstration_ticket()

    def _policy_ticket(self) -> Ticket | None:
        update = self._follower.update
        if update is None or not self._staleness.may_start(update, self._started):
            return None
        self._started += 1
        self._issued += 1
        node = self._node
        episode = derived_id("episode", node.run, node.node_id, node.incarnation, str(self._issued))
        policy = self._pool.acquire(episode, update, self._follower)
        self._begun[episode] = node.clock.monotonic()
        return Ticket(
            episode=episode,
            seed=_seed(str(node.config.run.seed), node.node_id, str(node.start_number), str(self._issued)),
            policy=policy,
            epoch=update.epoch,
            version=update.version,
            traceparent=root_traceparent(episode),
        )

    def _demonstration_ticket(self) -> Ticket | None:
        """Demonstrations are numbered: a number is done once, whatever dies in between."""
        if not self._open_demonstrations:
            return None
        number = self._open_demonstrations.popleft()
        attempt = self._attempts[number] = self._attempts.get(number, 0) + 1
        if attempt > DEMONSTRATION_ATTEMPTS:
            raise TaskError(
                f"demonstration {number} was aborted {DEMONSTRATION_ATTEMPTS} times: the devices fail, or what the task source "
                "demonstrates does not solve its tasks; see the aborted trajectories"
            )
        self._issued += 1
        node = self._node
        episode = derived_id("demonstration", node.run, node.node_id, node.incarnation, str(self._issued))
        self._numbers[episode] = number
        self._begun[episode] = node.clock.monotonic()
        return Ticket(
            episode=episode,
            seed=_seed(str(node.config.run.seed), "demonstration", str(number), str(attempt)),
            policy=None,
            epoch=0,
            version=0,
            traceparent=root_traceparent(episode),
        )

    def _finished(self) -> bool:
        return not (self._collector.uses_weights or self._open_demonstrations or self._numbers)

    def _wait(self) -> None:
        """Nothing is in hand and nothing may start: say why, and not for ever."""
        node = self._node
        if (kept := len(self._outbox)) >= self._config.outbox_episodes:
            node.activity.enter("log")
            self._watchdog.hungry(lambda: Missing("log", f"the log does not take the {kept} episodes in the outbox"))
        elif not self._collector.uses_weights or self._staleness.may_start(self._follower.update, self._started):
            node.activity.enter("devices")
            words = "no device can start an episode (see `distrl doctor` and the warnings above)"
            self._watchdog.hungry(lambda: Missing("devices", words))
        else:
            node.activity.enter("weights" if self._follower.update is None else "allowance")
            self._watchdog.hungry(self._missing)
        node.clock.wait(node.stop, 0.02)

    def _missing(self) -> Missing | None:
        """Who is missing, if anybody is. A learner's updates are signs of life: only when none comes is it looked for among the nodes."""
        node = self._node
        if self._watchdog.waited_s < RENEWALS_MISSED * node.config.learner.renew_seconds:
            return None
        if self._nodes is None:
            self._nodes = LiveNodes(node.bus, node.codec, node.run, node.clock)
        self._nodes.poll()
        learners = self._nodes.alive("learner")
        if self._follower.update is not None and learners:
            return None
        what = "no weights have come" if self._follower.update is None else "there is no leave to start episodes"
        if not learners:
            return Missing("learner", f"{what}, and no learner is alive (start one: distrl-node --role learner)")
        return Missing("weights", f"{what}, although {told(learners)}")

    def _forget_nodes(self) -> None:
        if self._nodes is not None:
            self._nodes.close()
            self._nodes = None

    # --- ending episodes --------------------------------------------------------------------

    def _keep(self, ended: Sequence[Trajectory]) -> None:
        """Durable first, then the device is told, then the sender may have it."""
        if not ended:
            return
        node = self._node
        framed = [self._framed(item) for item in ended]
        ended = [item for item, _ in framed]
        done = [
            self._numbers[item.trajectory_id]
            for item in ended
            if item.outcome != "aborted" and item.trajectory_id in self._numbers
        ]
        began_ms = min(item.started_ms for item in ended)
        values = [(item.trajectory_id, value) for item, value in framed]
        self._once_there_is_room(lambda: self._outbox.put(values, done=done, began_ms=began_ms))
        for item in ended:
            if item.outcome != "aborted":
                self._once_there_is_room(partial(self._collector.confirm, item))
            if (begun := self._begun.pop(item.trajectory_id, None)) is not None:
                node.activity.took("episode", node.clock.monotonic() - begun)
            node.activity.count(EPISODES)
            if item.outcome == "aborted":
                node.activity.count(ABORTED)
            node.activity.count(STEPS, len(item.steps))
            self._pool.release(item.trajectory_id)
            self._unobserved[item.trajectory_id] = item
            self._settle(item)
        self._once_there_is_room(lambda: self._outbox.confirm([item.trajectory_id for item in ended]))
        self._tell_outbox()
        self._sender.notify()

    def _once_there_is_room(self, write: Callable[[], None]) -> None:
        """Nothing that is finished is lost to a full disk: it waits for space, as long as the node may take to stop."""
        node = self._node
        deadline: float | None = None
        while True:
            try:
                return write()
            except StoreFullError as error:
                if node.stop.is_set():
                    deadline = deadline or node.clock.monotonic() + self._config.stop_seconds
                    if node.clock.monotonic() > deadline:
                        raise
                log.warning("finished episodes wait for space on the disk", error=str(error))
            with node.activity.span("store"):
                node.clock.sleep(FULL_S)

    def _framed(self, item: Trajectory) -> tuple[Trajectory, bytes]:
        """The episode as it goes on the log. One that is too large is checked in; one that still does not fit, or that is no valid
        event, ends as aborted without its steps: it must not hold up the others."""
        frame, limit = self._node.writer.frame, self._node.config.bus.max_record_bytes - RECORD_OVERHEAD_BYTES
        item = replace(item, incarnation=self._node.incarnation)
        try:
            value = frame(item)
            if len(value) > limit:
                item = self._node.artefacts.check_in(item)
                value = frame(item)
            if len(value) <= limit:
                return item, value
            raise RecordTooLargeError(
                f"the episode takes {len(value)} bytes, bus.max_record_bytes allows {limit}: lower the horizon or raise the bound"
            )
        except (CodecError, RecordTooLargeError) as error:
            log.error("an episode cannot go on the log as it is", trajectory=item.trajectory_id, error=str(error))
            item = replace(
                item,
                outcome="aborted",
                steps=(),
                final_observation=None,
                environment_outcome=None,
                attributes={},
                error_class=type(error).__name__,
                error=str(error),
            )
            return item, frame(item)

    def _settle(self, item: Trajectory) -> None:
        """Give back what an aborted episode had taken."""
        number = self._numbers.pop(item.trajectory_id, None)
        if item.outcome != "aborted":
            return
        if number is not None:
            self._open_demonstrations.append(number)
        else:
            self._started = max(0, self._started - 1)

    def _recover(self) -> None:
        """Tell the devices of episodes that the last start kept but had not told them of."""
        while entries := self._outbox.entries(confirmed=False):
            for entry in entries:
                try:
                    item = self._node.codec.decode(entry.value, Trajectory)
                except CodecError as error:
                    log.error("the outbox holds bytes that are no episode", error=str(error))
                else:
                    if item.outcome != "aborted":
                        self._collector.confirm(item)
            self._outbox.confirm([entry.trajectory_id for entry in entries])
        self._tell_outbox()
        if left := len(self._outbox):
            log.info("episodes of the last start are sent first", episodes=left)
            self._sender.notify()

    def _on_delivered(self, identities: Sequence[str]) -> None:
        batch = [item for identity in identities if (item := self._unobserved.pop(identity, None)) is not None]
        self._tell_outbox()
        if batch:
            self._node.plugins.observe("distrl_on_trajectories", batch=batch)

    def _tell_outbox(self) -> None:
        """Others cannot see the outbox: what is in it must be known before garbage is collected."""
        began_ms = self._outbox.oldest_ms()
        self._node.activity.gauge(OUTBOX, len(self._outbox))
        self._node.view.outbox_since_ms = 0 if began_ms is None else max(began_ms, 1)

    def _on_weights(self, update: WeightsUpdate) -> None:
        self._node.view.has_weights = True
        self._node.view.epoch = update.epoch
        self._node.view.version = update.version
        log.debug("weights", version=update.version, epoch=update.epoch)
        self._node.plugins.observe("distrl_on_weights", update=update)


def _seed(*parts: str) -> int:
    return int(derived_id("seed", *parts)[:12], 16)
