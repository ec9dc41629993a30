"""What a trajectory costs when a thousand collectors send it beside when a hundred do, at the same rate in all, on one broker.

    python benchmarks/many_collectors.py [--few 100] [--many 1000] [--rate 100] [--rounds 4] [--seconds 15]

Starts a Kafka broker, and for each number of collectors a few processes that hold them. A simulated collector is the collector's own
loop (``CollectorLoop``) in a thread, with all that a node holds open towards the log: a bus with connections of its own, an
outbox on disk and its sender, an event writer, a follower of the weights, signs of life with metrics at ``run.heartbeat_seconds``. In
place of phones it has a collector plugin whose steps take their time and do nothing; an episode has ten, so that a round of
the loop is a step here as there. Left out are what does not face the log: the endpoint of ``/metrics``, the store's pings, policies. A
publisher renews the collectors' leave as a waiting learner does.

Rounds of both take turns; who is not measured rests: its connections stay open, and it does nothing. Each is also measured
without signs of life, which says what share these have.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from pair import processor_seconds, spread, table
from safetensors.numpy import save_file
from trajectories import STEPS, stored, trajectory

sys.path.append(str(Path(__file__).resolve().parent.parent / "compose"))

from distrl.connectors import open_bus, open_store
from distrl.core.codec import Codec
from distrl.core.config import Config, parse_config
from distrl.core.contracts.bus import Bus
from distrl.core.contracts.clock import SystemClock
from distrl.core.contracts.events import Trajectory
from distrl.core.contracts.role import Ticket
from distrl.core.contracts.topic import TopicName
from distrl.core.runtime.activity import Activity
from distrl.core.runtime.collector import CollectorLoop
from distrl.core.runtime.event_writer import EventWriter
from distrl.core.runtime.health import Health
from distrl.core.runtime.heartbeat import Heartbeat
from distrl.core.runtime.log import configure_logging
from distrl.core.runtime.node import Node
from distrl.core.runtime.topic import declared_topics
from distrl.core.runtime.view import NodeView
from distrl.core.runtime.weights import WeightsFollower, WeightsPublisher
from distrl.testing import MemoryArtefacts

RUN = "many"
SETTLE_S = 4.0
"""Between the start of a round and of its measurement."""
OPEN_AT_ONCE = 2
"""Collectors that a process opens at a time."""
PATIENCE_S = 300.0
SWITCH_S = 0.1


class Gate:
    """Whether the collectors of this process work, and whether they give signs of life."""

    def __init__(self) -> None:
        self.works = threading.Event()
        self.beats = threading.Event()
        self.open()

    def open(self) -> None:
        """Everything goes on, so that it can end."""
        self.works.set()
        self.beats.set()

    def set(self, *, works: bool, beats: bool) -> None:
        for event, state in ((self.works, works), (self.beats, beats)):
            (event.set if state else event.clear)()


class GatedClock(SystemClock):
    """A wait lasts at least until the gate is open, and then some, so that a thousand do not go through it at once."""

    def __init__(self, gate: threading.Event) -> None:
        self._gate = gate

    def wait(self, event: threading.Event, seconds: float) -> bool:
        found = event.wait(seconds)
        if not self._gate.is_set():
            self._gate.wait()
            found = event.wait(random.random() * seconds)
        return found


class Steps:
    """A collector plugin whose device does nothing: each round takes a step's time, each tenth ends an episode."""

    uses_weights = True

    def __init__(self, node: str, period_s: float, gate: Gate, stop: threading.Event) -> None:
        self._node = node
        self._step_s = period_s / STEPS
        self._gate = gate
        self._stop = stop
        self._step = random.Random(node).randrange(STEPS)
        self._template = trajectory(0, stored)
        self._due = time.monotonic() + self._step_s * random.Random(node).random()
        self.episodes = 0

    def in_flight(self) -> int:
        return 0 if self._stop.is_set() else 1

    def advance(self, ticket: Callable[[], Ticket | None]) -> Sequence[Trajectory]:
        if not self._gate.works.is_set():
            self._gate.works.wait()
            self._due = time.monotonic() + self._step_s * random.random()
        self._stop.wait(max(0.0, self._due - time.monotonic()))
        self._due += self._step_s
        self._step += 1
        return [] if self._step % STEPS or self._stop.is_set() else [self.episode()]

    def episode(self) -> Trajectory:
        self.episodes += 1
        now = time.time_ns() // 1_000_000
        identity = f"{self._node}-{self.episodes}"
        envelope = replace(self._template.envelope, event_id=identity, run=RUN, node=self._node, time_ms=now)
        return replace(self._template, envelope=envelope, trajectory_id=identity, started_ms=now - 1000, ended_ms=now)

    def confirm(self, trajectory: Trajectory) -> None:
        """There is no ledger."""

    def close(self) -> Sequence[Trajectory]:
        return []


class Plugins:
    """Stands in for the plugin manager."""

    def __init__(self, collector: Steps) -> None:
        self._collector = collector

    def create(self, kind: str, *_: object) -> object:
        return self._collector if kind == "collector" else object()

    def observe(self, *_: object, **__: object) -> None:
        """No plugin looks on."""


class SimulatedCollector(threading.Thread):
    """One node, but for its process."""

    def __init__(self, config: Config, node: str, period_s: float, gate: Gate, opening: threading.Semaphore) -> None:
        super().__init__(name=node, daemon=True)
        self._config = config
        self._node = node
        self._gate = gate
        self._opening = opening
        self.stop = threading.Event()
        self.steps = Steps(node, period_s, gate, self.stop)
        self.opened = threading.Event()
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            self._collect()
        except BaseException as error:
            self.failure = error
            self.opened.set()

    def _collect(self) -> None:
        config, clock = self._config, GatedClock(self._gate.works)
        activity, view = Activity(clock), NodeView()
        health = Health(
            clock, activity, view, hang_s=300.0, queue_age_s=300.0, heartbeat_s=config.run.heartbeat_seconds
        )
        with open_bus(config.bus, clock=SystemClock(), client_id=self._node) as bus, open_store(config.store) as store:
            writer = EventWriter(
                bus.producer(),
                Codec(),
                run=RUN,
                node=self._node,
                role="collector",
                clock=clock,
                activity=activity,
                stop=self.stop,
                patience_s=PATIENCE_S,
            )
            node = Node(
                config=config,
                role="collector",
                node_id=self._node,
                start_number=1,
                incarnation=self._node,
                clock=clock,
                random=random.Random(0),
                stop=self.stop,
                bus=bus,
                store=store,
                codec=Codec(),
                plugins=cast(Any, Plugins(self.steps)),
                artefacts=cast(Any, MemoryArtefacts()),
                activity=activity,
                view=view,
                writer=writer,
                work_dir=config.run_directory / "nodes" / self._node,
            )
            with self._opening:
                loop = CollectorLoop(node)
                writer.send(self.steps.episode()).result(PATIENCE_S)  # connects
            heartbeat = Heartbeat(
                writer,
                activity,
                view,
                health,
                node=self._node,
                role="collector",
                plugin=config.collector.plugin,
                incarnation=self._node,
                clock=GatedClock(self._gate.beats),
                interval_s=config.run.heartbeat_seconds,
                http="",
                on_beat=lambda: None,
            )
            self.opened.set()
            clock.sleep(
                random.Random(self._node).random() * config.run.heartbeat_seconds
            )  # as nodes start, not at once
            heartbeat.start()
            try:
                loop.run()
            finally:
                loop.close()
                heartbeat.close(leaving=True)


class Opened(NamedTuple):
    """What opening the collectors of one process took."""

    megabytes: float
    processor: float
    threads: int


def hold(pipe: Connection, settings: dict[str, Any], names: list[str], period_s: float) -> None:
    """A process that holds collectors, and does as the pipe says."""
    config, gate, opening = parse_config(settings), Gate(), threading.Semaphore(OPEN_AT_ONCE)
    configure_logging("warning", None, "many", "collector")
    # Threads that wait for the interpreter wake up this often to ask for it: thousands in one process would do nothing else.
    # Nodes are processes of their own, with a handful of threads.
    sys.setswitchinterval(SWITCH_S)
    gate.set(works=False, beats=False)
    began, size = time.process_time(), resident_megabytes()
    collectors = [SimulatedCollector(config, name, period_s, gate, opening) for name in names]
    for collector in collectors:
        collector.start()
    for collector in collectors:
        if not collector.opened.wait(PATIENCE_S) or collector.failure is not None:
            raise RuntimeError(f"{collector.name} did not open") from collector.failure
    pipe.send(Opened(resident_megabytes() - size, time.process_time() - began, threading.active_count()))
    while (order := pipe.recv()) is not None:
        if order != "processor":
            gate.set(**order)
        pipe.send(time.process_time())
    gate.open()
    for collector in collectors:
        collector.stop.set()
    for collector in collectors:
        collector.join(PATIENCE_S)
    failures = [f"{collector.name}: {collector.failure!r}" for collector in collectors if collector.failure is not None]
    pipe.send((sum(collector.steps.episodes for collector in collectors), failures))


class Group:
    """As many collectors as are to be measured together, in processes of their own."""

    def __init__(self, settings: dict[str, Any], count: int, processes: int, rate: float) -> None:
        self.count = count
        self._pipes: list[Connection] = []
        self._children: list[multiprocessing.process.BaseProcess] = []
        spawn = multiprocessing.get_context("spawn")
        names = [f"collector-{count}-{index}" for index in range(count)]
        for number in range(processes):
            here, there = spawn.Pipe()
            child = spawn.Process(
                target=hold, args=(there, settings, names[number::processes], count / rate), daemon=True
            )
            child.start()
            there.close()
            self._children.append(child)
            self._pipes.append(here)
        began = time.perf_counter()
        opened: list[Opened] = [pipe.recv() for pipe in self._pipes]
        self.opened_s = time.perf_counter() - began
        self.opened = Opened(*(sum(column) / count for column in zip(*opened, strict=True)))  # type: ignore[arg-type]
        """For one collector."""

    def set(self, *, works: bool, beats: bool) -> None:
        self._ask({"works": works, "beats": beats})

    def processor(self) -> float:
        """Seconds of all its processes so far."""
        return self._ask("processor")

    def end(self) -> int:
        """Have the collectors send what they have and leave; the number of their episodes."""
        for pipe in self._pipes:
            pipe.send(None)
        answers = [pipe.recv() for pipe in self._pipes]
        for child in self._children:
            child.join(60)
        if failures := [failure for _, some in answers for failure in some]:
            raise RuntimeError("; ".join(failures[:5]))
        return sum(episodes for episodes, _ in answers)

    def _ask(self, order: object) -> float:
        for pipe in self._pipes:
            pipe.send(order)
        return sum(cast(float, pipe.recv()) for pipe in self._pipes)


class Renewals(threading.Thread):
    """Publishes weights once, then renews the collectors' leave; one more follower sees how long an announcement takes."""

    def __init__(self, config: Config, bus: Bus, folder: Path) -> None:
        super().__init__(name="renewals", daemon=True)
        clock, store = SystemClock(), open_store(config.store)
        folder.mkdir()
        writer = EventWriter(
            bus.producer(),
            Codec(),
            run=RUN,
            node="learner",
            role="learner",
            clock=clock,
            activity=Activity(clock),
            stop=threading.Event(),
            patience_s=PATIENCE_S,
        )
        self._publisher = WeightsPublisher(
            store,
            writer,
            run=RUN,
            policy="factored",
            epoch=1,
            options="{}",
            work_dir=folder,
            patience_s=PATIENCE_S,
            kept=4,
        )
        self._publisher.publish(cast(Any, Policy()), 1, ingested=0, allowance=-1, live_collectors=0, max_lag=0)
        self._follower = WeightsFollower(bus, Codec(), store, RUN, work_dir=folder / "follower", clock=clock)
        self._every_s = config.learner.renew_seconds
        self._closed = threading.Event()
        self.taken_s: list[float] = []

    def run(self) -> None:
        while not self._closed.wait(self._every_s):
            began = time.perf_counter()
            sender = threading.Thread(
                target=self._publisher.renew, kwargs={"ingested": 0, "allowance": -1, "live_collectors": 0}
            )
            sender.start()
            while not self._follower.poll():
                time.sleep(0.001)
            self.taken_s.append(time.perf_counter() - began)
            sender.join()

    def close(self) -> None:
        self._closed.set()
        self.join()
        self._follower.close()


class Policy:
    """What the publisher asks of a policy."""

    base_model = ""

    def save(self, path: Path) -> None:
        save_file({"weight": np.zeros(4096, np.float32)}, path)


class Costs(NamedTuple):
    """Processor milliseconds a trajectory."""

    clients: float
    broker: float


def measure(group: Group, bus: Bus, broker: int, seconds: float, *, beats: bool) -> Costs:
    """One round."""
    group.set(works=True, beats=beats)
    time.sleep(SETTLE_S)
    clients, broker_s, written = group.processor(), processor_seconds(broker), on_log(bus)
    time.sleep(seconds)
    clients, broker_s, written = (
        group.processor() - clients,
        processor_seconds(broker) - broker_s,
        on_log(bus) - written,
    )
    group.set(works=False, beats=False)
    return Costs(1e3 * clients / written, 1e3 * broker_s / written)


def on_log(bus: Bus) -> int:
    return sum(bus.admin().end_offsets([TopicName(RUN)("trajectories")]).values())


def resident_megabytes() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--few", type=int, default=100)
    parser.add_argument("--many", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=100.0, help="trajectories a second, of all collectors together")
    parser.add_argument("--processes", type=int, default=4, help="that hold the collectors, for each number of them")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each measurement")
    parser.add_argument("--heartbeat", type=float, help="run.heartbeat_seconds, if not its default")
    arguments = parser.parse_args()
    from kafka_broker import start_kafka

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # broker and processes inherit it
    with tempfile.TemporaryDirectory() as temporary, start_kafka(Path(temporary) / "kafka") as kafka:
        folder = Path(temporary)
        settings: dict[str, Any] = {
            "run": {"name": RUN, "directory": str(folder / "runs")},
            "bus": {"kind": "kafka", "bootstrap": [kafka.bootstrap]},
            "store": {"kind": "folder", "path": str(folder / "store")},
        }
        if arguments.heartbeat:
            settings["run"]["heartbeat_seconds"] = arguments.heartbeat
        config = parse_config(settings)
        with open_bus(config.bus, clock=SystemClock(), client_id="benchmark") as bus:
            bus.admin().create(declared_topics(config))
            renewals = Renewals(config, bus, folder / "learner")
            groups = [
                Group(settings, count, arguments.processes, arguments.rate) for count in (arguments.few, arguments.many)
            ]
            renewals.start()
            costs: dict[tuple[int, bool], list[Costs]] = {
                (group.count, beats): [] for group in groups for beats in (True, False)
            }
            for number in range(arguments.rounds):
                for beats in (True, False):
                    for group in groups if number % 2 == 0 else groups[::-1]:
                        costs[group.count, beats].append(measure(group, bus, kafka.pid, arguments.seconds, beats=beats))
            renewals.close()
            episodes = sum(group.end() for group in groups)
            lost = episodes - on_log(bus)
    sys.stdout.write(report(groups, costs) + "\n")
    taken = sorted(renewals.taken_s)
    sys.stdout.write(
        f"{arguments.rounds} rounds of {arguments.seconds:g} s, {arguments.rate:g} trajectories a second, signs of life every "
        f"{config.run.heartbeat_seconds:g} s; of {episodes} episodes {lost} are not on the log.\n"
        f"A renewed leave reached a follower after {1e3 * taken[len(taken) // 2]:.0f} ms (median), {1e3 * taken[-1]:.0f} ms at most, "
        f"of {len(taken)}. Load average {os.getloadavg()[0]:.0f}.\n"
    )


def report(groups: Sequence[Group], costs: dict[tuple[int, bool], list[Costs]]) -> str:
    few, many = (group.count for group in groups)
    rows = []
    for beats, name in ((True, "all that a node does"), (False, "without signs of life")):
        for place, who in enumerate(Costs._fields):
            one, other = ([cost[place] for cost in costs[count, beats]] for count in (few, many))
            ratios = [there / here for here, there in zip(one, other, strict=True)]
            rows.append([f"{who}, {name}", spread(one), spread(other), spread(ratios)])
    head = ["processor ms a trajectory", f"{few} collectors", f"{many} collectors", "ratio"]
    opened = [
        [
            str(group.count),
            f"{group.opened_s:.0f}",
            f"{1e3 * group.opened.processor:.0f}",
            f"{group.opened.megabytes:.1f}",
            f"{group.opened.threads:.0f}",
        ]
        for group in groups
    ]
    titles = ["collectors", "seconds to open all", "processor ms to open one", "MB of one", "threads of one"]
    return table(head, rows) + "\n" + table(titles, opened)


if __name__ == "__main__":
    main()
