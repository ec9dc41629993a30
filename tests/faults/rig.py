"""A supervised run with its servers, set up to be broken: real processes, real servers, a disk of its own. Used by the fault
campaign.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal, Self

from census import Census
from relay import Relay

from distrl.core.config import Config, load_config
from distrl.core.contracts.clock import SystemClock
from distrl.core.runtime.codec import open_codec

if TYPE_CHECKING:
    from apicurio import RegistryServer
    from kafka_broker import KafkaServer
    from seaweedfs import S3Server

Log = Literal["embedded", "kafka"]
CLOCK_SOURCE = Path(__file__).with_name("wall_clock.c")
DISK_MEGABYTES = 512
DELIVERY_S = 8.0
NODES = {"collector": 2, "evaluator": 2, "prioritizer": 2, "learner": 1}
"""How many of each role the run keeps up."""
STOP_S = 180.0

CONFIG = """
[run]
name = "{name}"
directory = "{disk}/runs"
seed = {seed}
heartbeat_seconds = 0.5
watchdog_seconds = 180
[bus]
session_seconds = 3
delivery_seconds = {delivery}
send_seconds = 5
{bus}
{registry}
[store]
inline_bytes = 0
cache_bytes = 0
{store}
[tasks]
options.kinds = ["open", "toggle"]
[device]
options.latency = {{ kind = "lognormal", median_ms = 60 }}
[collector]
nodes = 2
devices = 2
demonstrations = 6
stop_seconds = 15
[evaluator]
nodes = 2
[prioritizer]
nodes = 2
[learner]
max_lag = 4
checkpoint_seconds = 5
renew_seconds = 1
options.demonstrations = 6
options.clone_updates = 5
[budget]
evaluation_tasks = 0
drain_seconds = 120
"""


class Rig:
    """One run under way. A context manager: what it started it ends by pid, and its disk is unmounted."""

    def __init__(self, folder: Path, log: Log, *, seed: int = 0, name: str = "faults", outage_s: float = 60.0) -> None:
        """``outage_s``: how long a store stays down."""
        self.folder = folder
        self.log = log
        self.outage_s = outage_s
        self.name = name
        self._seed = seed
        self._stack = ExitStack()
        self.disk = folder / "disk"
        """A small file system that holds the run's folder and, for the embedded log, the log and the store."""
        self.clock_file = folder / "clock"
        self.output = folder / "output.txt"
        self.kafka: KafkaServer | None = None
        self.s3: S3Server | None = None
        self.registry: RegistryServer | None = None
        self.relay: Relay | None = None
        """Between the run and the S3 server."""
        self.lost: set[str] = set()
        """Episodes that a former fault has cost: that one is told of them, not those that follow."""

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(mounted(self.disk, DISK_MEGABYTES))
            bus, store, registry = self._servers(stack)
            self.file = self.folder / "run.toml"
            self.file.write_text(
                CONFIG.format(
                    name=self.name,
                    disk=self.disk,
                    seed=self._seed,
                    bus=bus,
                    store=store,
                    registry=registry,
                    delivery=DELIVERY_S,
                )
            )
            self.file.chmod(0o600)
            self.config: Config = load_config(self.file, environment={})
            self.runs = self.disk / "runs"
            observer = self.config.run.model_copy(update={"directory": self.folder / "observer"})
            self.codec = open_codec(self.config.model_copy(update={"run": observer}), clock=SystemClock())
            self.environment = {**os.environ, **self._faked_clock()}
            self.process = self._start_run(stack)
            self.census = Census(self.config, self.folder, self.codec)
            stack.callback(self.census.close)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def _servers(self, stack: ExitStack) -> tuple[str, str, str]:
        """Starts what the run needs; what points at it in ``[bus]``, ``[store]`` and for the registry."""
        if self.log == "embedded":
            return f'kind = "embedded"\npath = "{self.disk}/log"', f'kind = "folder"\npath = "{self.disk}/store"', ""
        from apicurio import start_registry
        from kafka_broker import start_kafka
        from seaweedfs import start_s3

        self.kafka = stack.enter_context(start_kafka(self.folder / "kafka"))
        self.s3 = stack.enter_context(start_s3(self.folder / "s3"))
        self.relay = stack.enter_context(Relay(self.s3.endpoint))
        self.registry = stack.enter_context(start_registry(self.folder / "registry"))
        return (
            f'kind = "kafka"\nbootstrap = ["{self.kafka.bootstrap}"]',
            f'kind = "s3"\nendpoint = "{self.relay.address}"\nbucket = "faults"\ntimeout_seconds = 5\n'
            f'access_key = "{self.s3.access_key}"\nsecret_key = "{self.s3.credentials.secret_key}"',
            f'[registry]\nkind = "confluent"\nurl = "{self.registry.url}"\ntimeout_seconds = 3',
        )

    def _faked_clock(self) -> dict[str, str]:
        """Every process of the run reads the wall clock through a library that a fault can shift."""
        library = self.folder / "wall_clock.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", str(library), str(CLOCK_SOURCE)], check=True)
        self.clock_file.write_bytes(bytes(8))
        return {"LD_PRELOAD": str(library), "DISTRL_TEST_CLOCK": str(self.clock_file)}

    def set_clock(self, seconds: int) -> None:
        """Shift the wall clock of all processes of the run, in one step; their monotonic clock goes on."""
        with self.clock_file.open("r+b", buffering=0) as file:
            file.write(struct.pack("=q", seconds))

    def _start_run(self, stack: ExitStack) -> subprocess.Popen[bytes]:
        process = self._run(stack.enter_context(self.output.open("ab")))
        stack.callback(_end, process)
        return process

    def _run(self, output: IO[bytes], *arguments: str) -> subprocess.Popen[bytes]:
        return self._spawn(output, "main", "run", "--config", str(self.file), "--json", *arguments)

    def _spawn(self, output: IO[bytes], program: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start ``distrl`` (``main``) or ``distrl-node`` (``node``) on this rig's machine."""
        return subprocess.Popen(
            [sys.executable, "-m", f"distrl.core.cli.{program}", *arguments],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=self.environment,
            start_new_session=True,
        )

    # --- what a fault uses ------------------------------------------------------------------------

    def check(self) -> None:
        """Raise if the run has ended."""
        if self.process.poll() is not None:
            raise AssertionError(f"the run ended with status {self.process.returncode}: {self.tail()}")

    def tail(self, lines: int = 15) -> str:
        """The end of what the run wrote."""
        return "\n".join(self.output.read_text(errors="replace").splitlines()[-lines:])

    def pid(self, role: str, index: int = 0, *, timeout_s: float = 60.0) -> int:
        """Process id of a living node of the role."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            self.check()
            nodes = sorted(self.census.nodes(role), key=lambda status: status.envelope.node)
            for status in nodes[index % len(nodes) :] if nodes else []:
                with contextlib.suppress(OSError):
                    if b"distrl.core.cli.node" in Path(f"/proc/{status.pid}/cmdline").read_bytes():
                        return status.pid
            time.sleep(0.1)
        raise AssertionError(f"no {role} is alive: {self.tail()}")

    @contextlib.contextmanager
    def second_node(self, role: str, node_id: str, machine: str) -> Iterator[subprocess.Popen[bytes]]:
        """A node that another machine (another run folder) starts; asked to stop at the end, and waited for."""
        folder = self.folder / "machines" / machine
        folder.mkdir(parents=True, exist_ok=True)
        arguments = ["--role", role, "--config", str(self.file), "--node-id", node_id]
        arguments += ["--set", f"run.directory={json.dumps(str(folder))}"]
        with (folder / f"{node_id}.out").open("ab") as output:
            process = self._spawn(output, "node", *arguments)
            try:
                yield process
            finally:
                process.send_signal(signal.SIGTERM)
                _wait(process, 60.0)
                if role == "collector":
                    # Its machine sends what its outbox still holds, as an engineer would have it do.
                    _wait(self._spawn(output, "node", *arguments, "--drain"), 60.0)

    def redrive(self, code: str) -> int:
        """Send back what lies in the dead letters with this code, as an engineer does once the cause is gone; returns how many."""
        arguments = ["dead-letters", "redrive", "--code", code, "--yes", "--json", "--config", str(self.file)]
        done = subprocess.run(
            [sys.executable, "-m", "distrl.core.cli.main", *arguments],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if done.returncode != 0:
            raise AssertionError(f"redriving ended with status {done.returncode}: {done.stderr[-500:]}")
        return len(json.loads(done.stdout))

    def finish(self) -> dict[str, object]:
        """Stop the run in good order, then run it again to drain and to end at a budget that is met; returns its summary."""
        self.check()
        self.process.send_signal(signal.SIGTERM)
        _wait(self.process, STOP_S)
        with self.output.open("ab") as output:
            again = self._run(output, "--episodes", "1")
            try:
                again.wait(timeout=STOP_S + 120)
            finally:
                _end(again)
        if again.returncode != 0:
            raise AssertionError(f"the last part ended with status {again.returncode}: {self.tail()}")
        summary: dict[str, object] = json.loads((self.runs / self.name / "summary.json").read_text())
        return summary


@contextlib.contextmanager
def mounted(folder: Path, megabytes: int) -> Iterator[None]:
    """A file system of that size in memory: what is full there is full for the run alone. Needs root."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
        shutil.rmtree(folder, ignore_errors=True)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=60)
            return
        process.kill()
        process.wait()


def _wait(process: subprocess.Popen[bytes], seconds: float) -> None:
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
