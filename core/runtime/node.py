"""One node: what every role shares. ``run_node`` is what ``distrl-node`` calls; the loops stand beside this module.

A node opens the log and the store, loads plugins, keeps signs of life, and runs its role's loop until it is told to
stop (SIGTERM, SIGINT, or the supervisor's end), then finishes or hands back what it has in hand.
"""

from __future__ import annotations

import importlib
import os
import random
import signal
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import structlog

from distrl.connectors import open_bus, open_store
from distrl.core.codec import Codec, derived_id
from distrl.core.config import Config, RetrySection
from distrl.core.contracts.bus import Bus, Consumer
from distrl.core.contracts.clock import Clock, SystemClock
from distrl.core.contracts.events import Role
from distrl.core.contracts.role import RoleContext
from distrl.core.contracts.store import BlobStore
from distrl.core.contracts.topic import TopicName
from distrl.core.runtime.activity import Activity
from distrl.core.runtime.artefact import StoredArtefacts, renewal_s
from distrl.core.runtime.codec import open_codec
from distrl.core.runtime.disk import writing
from distrl.core.runtime.endpoint import Endpoint, Route
from distrl.core.runtime.event_reader import EventReader
from distrl.core.runtime.event_writer import EventWriter
from distrl.core.runtime.exporter import NodeCollector, scrape_route
from distrl.core.runtime.health import Health, live_route, ready_route
from distrl.core.runtime.heartbeat import Heartbeat
from distrl.core.runtime.lock import held
from distrl.core.runtime.log import configure_logging
from distrl.core.runtime.metered_store import metered
from distrl.core.runtime.retry import Retries
from distrl.core.runtime.view import NodeView
from distrl.plugins.manager import Kind, PluginManager, load_plugins

log = structlog.get_logger(__name__)
SUPERVISOR_PID = "DISTRL_SUPERVISOR_PID"
"""Environment variable: the process whose end is this node's end too."""
LOOPS: dict[Role, str] = {
    "collector": "distrl.core.runtime.collector",
    "evaluator": "distrl.core.runtime.evaluator",
    "prioritizer": "distrl.core.runtime.prioritizer",
    "learner": "distrl.core.runtime.learner",
}
"""Where each role's ``run(node)`` is; imported when it is needed."""


@dataclass(slots=True)
class Node:
    """What a role's loop works with."""

    config: Config
    role: Role
    node_id: str
    start_number: int
    """How often this node id has started in its folder, from 1: seeds derive from it."""
    incarnation: str
    """Unique to this start wherever and whenever it is: ids derive from it, and outlive the loss of the folder."""
    clock: Clock
    random: random.Random
    stop: threading.Event
    bus: Bus
    store: BlobStore
    codec: Codec
    plugins: PluginManager
    artefacts: StoredArtefacts
    activity: Activity
    view: NodeView
    writer: EventWriter
    work_dir: Path
    drain: bool = False
    """It only sends what its outbox holds, and failing at that is its failure."""

    @property
    def run(self) -> str:
        return self.config.run.name

    @property
    def topic(self) -> TopicName:
        return TopicName(self.run)

    def group(self, plugin: str) -> str:
        """The consumer group of this role: run, role and plugin, so two plugins of one role each see everything."""
        return f"distrl.{self.run}.{self.role}.{plugin}"

    def reader(self, consumer: Consumer, config: RetrySection, *, writer: EventWriter | None = None) -> EventReader:
        """Reads a role's events from ``consumer``; ``config`` is the role's section. What cannot be handled is told of by ``writer``, the
        node's own if there is none."""
        return EventReader(
            consumer,
            self.codec,
            writer or self.writer,
            run=self.run,
            clock=self.clock,
            activity=self.activity,
            retries=Retries(
                self.clock,
                attempts=config.retry_attempts,
                patience_s=config.retry_seconds,
                outage_s=self.config.run.watchdog_seconds,
            ),
        )

    def context(self) -> RoleContext:
        return RoleContext(
            run=self.run,
            node=self.node_id,
            seed=self.config.run.seed,
            clock=self.clock,
            random=self.random,
            artefacts=self.artefacts,
            work_dir=self.work_dir,
        )

    def create(self, kind: Kind, name: str, options: dict[str, Any], *arguments: Any) -> Any:
        """Build a plugin's thing by its registered name."""
        thing = self.plugins.create(kind, name, options, self.context(), *arguments)
        if kind == self.role:
            self.view.built = True
        return thing


def default_node_id(role: Role) -> str:
    """Stable over restarts on one machine; give an id of its own to each of several nodes of a role."""
    return f"{role}-{socket.gethostname()}"


def run_node(
    config: Config,
    role: Role,
    *,
    node_id: str | None = None,
    plugin_files: Sequence[Path] = (),
    drain: bool = False,
    stop: threading.Event | None = None,
    clock: Clock | None = None,
) -> int:
    """Run one role until it is told to stop; returns the exit code 0. Failures are raised as ``DistrlError``.

    With ``drain`` it stops at once, which makes a collector send what its outbox holds and nothing else.
    """
    node_id = node_id or default_node_id(role)
    clock = clock or SystemClock()
    stop = stop or threading.Event()
    work_dir = config.run_directory / "nodes" / node_id
    work_dir.mkdir(parents=True, exist_ok=True)
    configure_logging(
        config.run.log_level, file=config.run_directory / "logs" / f"{node_id}.log", node=node_id, role=role
    )
    if threading.current_thread() is threading.main_thread():
        _install_signals(stop)
    if drain:
        stop.set()
    plugins = load_plugins([*config.run.plugins, *plugin_files])
    plugin = getattr(config, role).plugin
    with ExitStack() as stack:
        # The outbox and the ledgers in the folder are one process's alone. A former one may still be handing back its work.
        lock = held(
            work_dir / "lock", f"node {node_id!r}", clock=clock, wait_s=2 * config.collector.stop_seconds + 30.0
        )
        stack.enter_context(lock)
        start_number = _count_start(work_dir)
        incarnation = derived_id(
            node_id, str(start_number), str(clock.time_ms()), str(os.getpid()), os.urandom(8).hex()
        )
        activity = Activity(clock)
        view = NodeView()
        health = Health(
            clock,
            activity,
            view,
            hang_s=config.run.hang_seconds,
            queue_age_s=config.run.queue_age_seconds,
            heartbeat_s=config.run.heartbeat_seconds,
        )
        numbers = NodeCollector(activity, view, health, run=config.run.name, role=role, node=node_id)
        routes: dict[str, Route] = {
            "/metrics": scrape_route(numbers),
            "/health/live": live_route(health),
            "/health/ready": ready_route(health),
        }
        endpoint = stack.enter_context(Endpoint(config.run.http_host, config.run.http_port, routes))
        log.info("starting", plugin=plugin, run=config.run.name, start=start_number, http=endpoint.address)
        bus = stack.enter_context(open_bus(config.bus, clock=clock, client_id=node_id))
        bus.ping(10.0)
        store = metered(stack.enter_context(open_store(config.store)), activity, health, clock)
        store.ping()
        health.start(store.ping)
        stack.callback(health.close)
        codec = open_codec(config, clock=clock)
        codec.prepare()
        writer = EventWriter(
            stack.enter_context(bus.producer()),
            codec,
            run=config.run.name,
            node=node_id,
            role=role,
            clock=clock,
            activity=activity,
            stop=stop,
            patience_s=config.run.watchdog_seconds,
        )
        node = Node(
            config=config,
            role=role,
            node_id=node_id,
            start_number=start_number,
            incarnation=incarnation,
            clock=clock,
            random=random.Random(derived_id(str(config.run.seed), node_id, str(start_number))),
            stop=stop,
            bus=bus,
            store=store,
            codec=codec,
            plugins=plugins,
            artefacts=StoredArtefacts(
                store,
                prefix=f"{config.run.name}/artefacts",
                inline_bytes=config.store.inline_bytes,
                cache_bytes=config.store.cache_bytes,
                clock=clock,
                stop=stop,
                renew_s=renewal_s(config.store.grace_hours),
            ),
            activity=activity,
            view=view,
            writer=writer,
            work_dir=work_dir,
            drain=drain,
        )
        heartbeat = Heartbeat(
            writer,
            activity,
            view,
            health,
            node=node_id,
            role=role,
            plugin=plugin,
            incarnation=incarnation,
            clock=clock,
            interval_s=config.run.heartbeat_seconds,
            http=endpoint.address,
            on_beat=_supervisor_watch(stop),
        )
        heartbeat.start()
        leaving = False
        try:
            importlib.import_module(LOOPS[role]).run(node)
            leaving = True
        finally:
            view.state = "stopped"
            activity.enter("")
            heartbeat.close(leaving=leaving)
    log.info("stopped")
    return 0


def _install_signals(stop: threading.Event) -> None:
    """The first signal asks to stop in good order, a second one ends the process at once."""

    asked = False

    def on_signal(number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            os._exit(128 + number)
        asked = True
        stop.set()

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)


def _supervisor_watch(stop: threading.Event) -> Callable[[], None]:
    """A node that a supervisor started does not outlive it."""
    expected = os.environ.get(SUPERVISOR_PID)
    if not expected:
        return lambda: None

    def watch() -> None:
        if os.getppid() != int(expected) and not stop.is_set():
            log.warning("the supervisor is gone; stopping")
            stop.set()

    return watch


def _count_start(work_dir: Path) -> int:
    """Count this start durably, so that ids and seeds of an earlier start of the node are never used again."""
    path = work_dir / "starts"
    try:
        number = int(path.read_text(encoding="ascii")) + 1
    except (FileNotFoundError, ValueError):
        number = 1
    temporary = path.with_suffix(".new")
    with writing("the number of this start", work_dir):
        with temporary.open("w", encoding="ascii") as file:
            file.write(str(number))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    return number
