"""All roles of a run on this machine: makes the topics, starts the nodes, restarts what dies, and at the budget drains,
evaluates and reports. Called by ``distrl run`` and ``distrl demo``. Imports no torch: nodes are processes of their own.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

import structlog
import tomli_w

from distrl.connectors import open_bus, open_store
from distrl.core.config import ENVIRONMENT_PREFIX, Config
from distrl.core.contracts.bus import Bus
from distrl.core.contracts.clock import Clock, SystemClock
from distrl.core.contracts.events import Role
from distrl.core.contracts.store import BlobStore
from distrl.core.contracts.topic import TopicName
from distrl.core.errors import ConfigError, DistrlError, RunFailedError
from distrl.core.runtime.codec import open_codec
from distrl.core.runtime.command import start_command
from distrl.core.runtime.janitor import Janitor
from distrl.core.runtime.lock import held
from distrl.core.runtime.log import configure_logging
from distrl.core.runtime.node import SUPERVISOR_PID
from distrl.core.runtime.outbox import Outbox, outbox_path
from distrl.core.runtime.process import NodeProcess
from distrl.core.runtime.progress import NodeLine, Phase, Progress
from distrl.core.runtime.rate import EvaluationResult, Rate
from distrl.core.runtime.redaction import without_secrets
from distrl.core.runtime.report import write_report
from distrl.core.runtime.run_endpoint import RunEndpoint
from distrl.core.runtime.runs import remove_run
from distrl.core.runtime.summary import Summary, make_summary, write_summary
from distrl.core.runtime.tail import RunTail
from distrl.core.runtime.topic import declared_topics
from distrl.core.runtime.watchdog import Missing, Watchdog
from distrl.plugins.manager import PluginManager, load_plugins

log = structlog.get_logger(__name__)
TICK_S = 0.25
STOP_S = 30.0
"""Longest time that a node may take to stop, on top of a collector's own."""
EVALUATION_S = 900.0
"""Longest time of one evaluation."""
SUCCESS_WINDOW = 200
"""Verdicts that ``budget.until_success`` must stand on."""
QUIET_S = 10.0
"""A drain in which some records went to the dead letters is over when nothing has changed for this long."""
OnProgress = Callable[[Progress], None]


def supervise(
    config: Config,
    *,
    plugin_files: Sequence[Path] = (),
    fresh: bool = False,
    on_progress: OnProgress | None = None,
    config_source: Path | None = None,
    clock: Clock | None = None,
) -> Summary:
    """Run until the budget is met and return the summary, which is also written with the report.

    ``fresh`` first forgets what the run has done so far. Raises ``KeyboardInterrupt`` after an orderly stop by SIGINT or SIGTERM
    (the run can be resumed), ``RunFailedError`` when a role keeps dying or the drain does not end.
    """
    clock = clock or SystemClock()
    plugins = load_plugins([*config.run.plugins, *plugin_files])  # a plugin that does not import is said here, once
    _refuse_deadlock(config, plugins)
    directory = config.run_directory
    with ExitStack() as stack:
        lock_file = config.run.directory / f".{config.run.name}.lock"
        stack.enter_context(held(lock_file, f"run {config.run.name!r}", clock=clock, wait_s=0.0))
        bus = stack.enter_context(open_bus(config.bus, clock=clock, client_id="supervisor"))
        bus.ping(10.0)
        store = stack.enter_context(open_store(config.store))
        store.ping()
        if fresh:
            forget(config, bus, store)
        (directory / "logs").mkdir(parents=True, exist_ok=True)
        configure_logging("warning", file=directory / "logs" / "supervisor.log", node="supervisor", role="supervisor")
        _write_config(config, directory / "config.toml", plugin_files)
        bus.admin().create(declared_topics(config))
        supervisor = Supervisor(config, bus, store, stack, on_progress or (lambda _: None), clock)
        log.info("supervising", run=config.run.name, source=str(config_source or ""))
        return supervisor.run()


def forget(config: Config, bus: Bus, store: BlobStore) -> None:
    """Remove all that a run has left: topics, groups, objects and its folder."""
    remove_run(bus, store, config.run.name)
    shutil.rmtree(config.run_directory, ignore_errors=True)


class Supervisor:
    """One supervised run. ``run`` may be called once."""

    def __init__(
        self,
        config: Config,
        bus: Bus,
        store: BlobStore,
        stack: ExitStack,
        on_progress: OnProgress,
        clock: Clock,
    ) -> None:
        self._config = config
        self._bus = bus
        self._store = store
        self._directory = config.run_directory
        self._on_progress = on_progress
        self._clock = clock
        self._started = clock.monotonic()
        self._stop = threading.Event()
        self._phase: Phase = "starting"
        codec = open_codec(config, clock=clock)
        self._tail = RunTail(bus, codec, config.run.name, evaluator=config.training_evaluator, clock=clock)
        stack.callback(self._tail.close)
        self._history = self._tail.history
        self._unsent = False
        """Whether episodes had to be left in an outbox."""
        self._behind = True
        """Whether the log held more than was read, at the last look."""
        self._watchdog = Watchdog(clock, bound_s=config.run.watchdog_seconds)
        # Its nodes end their own waits with an error; a policy that is long in the making is none.
        self._start_watchdog = Watchdog(clock, bound_s=config.run.watchdog_seconds, ends=False)
        # A fixed port is the supervisor's own: nodes of one machine cannot share it, so they take free ones.
        self._endpoint = RunEndpoint(
            config.run.http_host,
            config.run.http_port,
            self._directory,
            run=config.run.name,
            clock=clock,
            hang_s=config.run.hang_seconds,
        )
        stack.enter_context(self._endpoint)
        self._earlier_seconds = _earlier_seconds(self._directory / "summary.json")
        environment = child_environment(config)
        config_file = self._directory / "config.toml"

        def node(role: Role, name: str, *extra: str, once: bool = False) -> NodeProcess:
            return NodeProcess(
                node_id=name,
                role=role,
                arguments=["--role", role, "--config", str(config_file), "--set", "run.http_port=0", *extra],
                output=self._directory / "logs" / f"{name}.out",
                environment=environment,
                clock=clock,
                patience_s=config.run.watchdog_seconds,
                once=once,
            )

        self._environment = environment
        self._config_file = config_file
        self._janitor = Janitor(
            config_file, self._directory / "logs", environment, clock, every_hours=config.store.gc_hours
        )
        stack.callback(self._janitor.close)
        self._learner = [node("learner", "learner-0")]
        self._judges = [
            *(node("evaluator", f"evaluator-{index}") for index in range(config.evaluator.nodes)),
            *(node("prioritizer", f"prioritizer-{index}") for index in range(config.prioritizer.nodes)),
        ]
        self._collectors = [node("collector", f"collector-{index}") for index in range(config.collector.nodes)]
        if config.collector.demonstrations:
            plugin = f"collector.plugin={json.dumps(config.collector.demonstrator)}"
            self._collectors.append(node("collector", "demonstrator-0", "--set", plugin, once=True))

    @property
    def nodes(self) -> list[NodeProcess]:
        """All nodes, in the order in which data flows backwards: who consumes is there first."""
        return [*self._learner, *self._judges, *self._collectors]

    def run(self) -> Summary:
        with self._signals():
            try:
                for process in self.nodes:
                    process.start()
                self._train()
                if self._stop.is_set():
                    self._halt()
                    raise KeyboardInterrupt
                drained = self._drain()
                self._halt()
                if self._stop.is_set():
                    raise KeyboardInterrupt
                return self._finish(drained)
            finally:
                for process in self.nodes:
                    process.kill()

    # --- phases -----------------------------------------------------------------------------

    def _train(self) -> None:
        begun: float | None = None
        while not self._stop.is_set():
            self._tick(watch=self.nodes)
            if begun is None and self._history.newest is not None:
                # The clock of the budget starts when there is a policy: what comes before is starting processes.
                begun = self._clock.monotonic()
                self._phase = "training"
            elif begun is None:
                self._start_watchdog.hungry(lambda: Missing("weights", f"no weights have come: {self._learner_does()}"))
            spent = self._spent(0.0 if begun is None else self._clock.monotonic() - begun)
            self._tell(spent)
            if spent is not None and spent >= 1.0:
                return
            self._clock.wait(self._stop, TICK_S)

    def _spent(self, seconds: float) -> float | None:
        """Share of the nearest budget that is spent; ``None`` without a budget."""
        budget = self._config.budget
        shares: list[float] = []
        if budget.minutes:
            shares.append(seconds / 60 / budget.minutes)
        if budget.episodes:
            shares.append(self._history.episodes / budget.episodes)
        if budget.until_success:
            success = self._history.recent_success
            if success is not None and self._history.recent_count >= SUCCESS_WINDOW:
                shares.append(1.0 if success >= budget.until_success else min(success / budget.until_success, 0.99))
        return max(shares, default=None)

    def _drain(self) -> bool:
        """Stop the collectors, then wait until all that they collected is evaluated and ingested."""
        self._phase = "draining"
        self._stop_collectors()
        changed = self._clock.monotonic()
        deadline = changed + self._config.budget.drain_seconds
        former: object = None
        while not self._stop.is_set():
            self._tick(watch=[*self._learner, *self._judges])
            total = self._history.total
            if total.collected == total.evaluated == total.ingested and not self._behind:
                return not self._unsent
            state = (total, self._history.dead_letters)
            if state != former:
                former, changed = state, self._clock.monotonic()
            if (
                total.collected - total.ingested <= self._history.given_up
                and self._clock.monotonic() - changed >= QUIET_S
            ):
                # What is missing lies in the dead letters, and nothing more comes.
                return not self._unsent
            if self._clock.monotonic() > deadline:
                log.error(
                    "the drain did not end in time",
                    missing=self._unfinished(),
                    collected=total.collected,
                    evaluated=total.evaluated,
                    ingested=total.ingested,
                )
                return False
            self._tell(1.0)
            self._clock.wait(self._stop, TICK_S)
        return False

    def _stop_collectors(self) -> None:
        """Ask collectors to finish; one that died instead is started once more to send what its outbox holds."""
        for process in self._collectors:
            process.ask_to_stop()
        deadline = self._clock.monotonic() + 2 * self._config.collector.stop_seconds + STOP_S
        left = {process.node_id: process for process in self._collectors if not process.finished}
        tries = dict.fromkeys(left, 0)
        while left and self._clock.monotonic() < deadline:
            for name, process in list(left.items()):
                if process.running:
                    continue
                if self._outbox_is_empty(name):
                    del left[name]
                elif tries[name] >= 3:
                    log.error("an outbox could not be emptied; run again to send it", ended=name)
                    self._unsent = True
                    del left[name]
                else:
                    tries[name] += 1
                    process.start("--drain")
            self._tick(watch=[*self._learner, *self._judges])
            self._tell(1.0)
            self._clock.sleep(TICK_S)
        for process in left.values():
            log.warning("a collector did not stop in time", ended=process.node_id)
            process.kill()

    def _outbox_is_empty(self, name: str) -> bool:
        path = outbox_path(self._directory / "nodes" / name)
        if not path.exists():
            return True
        outbox = Outbox(path)
        try:
            return len(outbox) == 0
        finally:
            outbox.close()

    def _halt(self) -> None:
        """Stop everything that still runs, in good order as far as it goes."""
        for process in self.nodes:
            process.ask_to_stop()
        deadline = self._clock.monotonic() + self._config.collector.stop_seconds + STOP_S
        while any(process.running for process in self.nodes) and self._clock.monotonic() < deadline:
            self._observe(limit=2000)
            self._tell(1.0)
            self._clock.sleep(TICK_S)
        for process in self.nodes:
            process.kill()

    def _finish(self, drained: bool) -> Summary:
        self._tail.catch_up()
        seconds = self._clock.monotonic() - self._started + self._earlier_seconds
        first, last = self._evaluate()
        summary = make_summary(self._history, self._config, seconds, first, last, **self._bytes())
        write_summary(self._directory / "summary.json", summary)
        write_report(self._directory / "report.html", self._history, summary, self._config)
        self._phase = "done"
        self._tell(1.0)
        if not drained:
            raise RunFailedError(
                f"the drain did not end within {self._config.budget.drain_seconds:.0f} s ({self._unfinished()}): collected {summary['collected']}, "
                f"evaluated {summary['evaluated']}, ingested {summary['ingested']}, dead letters {summary['dead_letters']}"
            )
        return summary

    def _bytes(self) -> dict[str, int | None]:
        """What the run takes by now; ``None`` where that cannot be told."""

        def total(sizes: Callable[[], Iterable[int]]) -> int | None:
            try:
                return sum(sizes())
            except DistrlError as error:
                log.warning("what the run takes on disk is not known", error=str(error))
                return None

        run = self._config.run.name
        return {
            "log_bytes": total(lambda: self._bus.admin().sizes(TopicName.prefix(run)).values()),
            "store_bytes": total(lambda: (stat.size for stat in self._store.list(f"{run}/"))),
        }

    # --- evaluation -------------------------------------------------------------------------

    def _evaluate(self) -> tuple[EvaluationResult | None, EvaluationResult | None]:
        """The first and the newest weights on unseen tasks, side by side, in processes of their own."""
        tasks = self._config.budget.evaluation_tasks
        newest = self._history.newest
        if not tasks or newest is None:
            return None, None
        self._phase = "evaluating"
        versions = sorted({0, newest.version})
        running = {version: self._start_evaluation(version, tasks) for version in versions}
        deadline = self._clock.monotonic() + EVALUATION_S
        results: dict[int, EvaluationResult | None] = {}
        try:
            while any(process.poll() is None for process, _ in running.values()):
                self._tell(1.0)
                if self._stop.is_set():
                    raise KeyboardInterrupt
                if self._clock.monotonic() > deadline:
                    break
                self._clock.wait(self._stop, TICK_S)
        finally:
            for version, (process, path) in running.items():
                if process.poll() is None:
                    process.kill()
                    process.wait()
                results[version] = _read_evaluation(path) if process.returncode == 0 else None
                if results[version] is None:
                    log.error("an evaluation failed", version=version, exit_code=process.returncode, see=str(path))
        return results.get(0), results.get(newest.version)

    def _start_evaluation(self, version: int, tasks: int) -> tuple[subprocess.Popen[bytes], Path]:
        path = self._directory / "logs" / f"evaluate-{version}.json"
        arguments = ["evaluate", "--config", str(self._config_file), "--weights", str(version), "--tasks", str(tasks)]
        return start_command(arguments, path, self._environment), path

    # --- telling ----------------------------------------------------------------------------

    def _tick(self, *, watch: Sequence[NodeProcess]) -> None:
        self._observe(limit=5000)
        for process in watch:
            process.watch()
        self._janitor.tick()

    def _observe(self, *, limit: int) -> None:
        """Take in what the log has. A log that is away for a while is the nodes' business: they keep their work and go on."""
        try:
            self._tail.catch_up(limit=limit)
            self._behind = self._tail.behind()
        except DistrlError as error:
            if not error.retriable:
                raise
            self._behind = True
            missing = Missing("log", f"the log does not answer: {error.message}")
            self._watchdog.hungry(lambda: missing)
        else:
            self._watchdog.fed()

    def _learner_does(self) -> str:
        """What the learner does, for a message."""
        [learner] = self._learner
        record = self._history.nodes.get(learner.node_id)
        if record is None or not self._tail.signs.is_alive(learner.node_id):
            return f"{learner.node_id} shows no sign of life; see {learner.output}"
        return f"{learner.node_id} is {record.status.state}"

    def _unfinished(self) -> str:
        """Which side a drain still waits for."""
        total = self._history.total
        if total.evaluated < total.collected:
            return f"{total.collected - total.evaluated} trajectories wait for the evaluators"
        if total.ingested < total.collected:
            return f"{total.collected - total.ingested} trajectories wait for the learner"
        return "episodes stay in an outbox" if self._unsent else "the log holds more than was read"

    def _tell(self, spent: float | None) -> None:
        history = self._history
        signs = {name: record.status for name, record in history.nodes.items()}
        lines = []
        for process in self.nodes:
            sign = signs.get(process.node_id)
            lines.append(
                NodeLine(
                    process.node_id,
                    process.role,
                    (sign.state if sign else "starting") if process.running else "stopped",
                    waiting_for=sign.waiting_for if sign and process.running else "",
                    version=sign.version if sign else 0,
                    restarts=process.restarts,
                )
            )
        total = history.total
        progress = Progress(
            phase=self._phase,
            seconds=self._clock.monotonic() - self._started,
            budget_fraction=None if spent is None else min(spent, 1.0),
            episodes=history.episodes,
            aborted=total.aborted,
            success=history.recent_success,
            success_by_kind=history.recent_success_by_kind,
            version=history.newest.version if history.newest else 0,
            versions=history.weight_versions,
            staleness_mean=history.staleness_mean,
            collected=total.collected,
            evaluated=total.evaluated,
            ingested=total.ingested,
            lag=history.lag(),
            nodes=tuple(lines),
        )
        self._endpoint.tell(progress, self.nodes, history, self._tail.signs)
        self._on_progress(progress)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGINT and SIGTERM ask for an orderly stop; a second one raises at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def on_signal(_number: int, _frame: FrameType | None) -> None:
            if self._stop.is_set():
                raise KeyboardInterrupt
            self._stop.set()

        former = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in former.items():
                signal.signal(number, handler)


def child_environment(config: Config) -> dict[str, str]:
    """The environment of nodes: this process's own, with the settings as used (they stand in the file) and the secrets.

    Secrets reach nodes by environment alone, never by a file or a command line.
    """
    environment = {
        name: value for name, value in os.environ.items() if not (name.startswith(ENVIRONMENT_PREFIX) and "__" in name)
    }
    environment |= without_secrets(config)[1]
    environment[SUPERVISOR_PID] = str(os.getpid())
    environment.setdefault("OMP_NUM_THREADS", "1")  # several processes with several threads each fight over the cores
    return environment


def _refuse_deadlock(config: Config, plugins: PluginManager) -> None:
    """Refuse a configuration in which one side would wait for ever for what no other brings."""
    options = plugins.options("learner", config.learner.plugin, dict(config.learner.options))
    wanted = getattr(options, "demonstrations", 0)
    if wanted > config.collector.demonstrations:
        raise ConfigError(
            f"learner.options.demonstrations = {wanted} but collector.demonstrations = {config.collector.demonstrations}: "
            "the learner would wait for ever; record at least as many as are to be cloned"
        )


def _write_config(config: Config, path: Path, plugin_files: Sequence[Path]) -> None:
    """The configuration as used, with absolute plugin files, for the nodes and for people.

    Secrets are left out, those of plugins' options as far as a name tells them, so the file is its owner's alone.
    """
    table, _ = without_secrets(config)
    table["run"]["plugins"] = [str(file.resolve()) for file in (*config.run.plugins, *plugin_files)]
    temporary = path.with_suffix(".new")
    temporary.unlink(missing_ok=True)
    temporary.touch(mode=0o600)
    temporary.write_text(tomli_w.dumps(table), encoding="utf-8")
    temporary.replace(path)


def _earlier_seconds(path: Path) -> float:
    """How long the run took before it is resumed now."""
    try:
        return float(json.loads(path.read_text(encoding="utf-8"))["seconds"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return 0.0


def _read_evaluation(path: Path) -> EvaluationResult | None:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        rates = {row["task"]: Rate(int(row["successes"]), int(row["trials"])) for row in document["tasks"]}
        return EvaluationResult(int(document["version"]), rates, rates.pop("all"))
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
