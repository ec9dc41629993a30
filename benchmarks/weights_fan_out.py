"""Weights from publish to verified and parsed in many subscribers, against the bare store client doing the same reads.

    python benchmarks/weights_fan_out.py [--subscribers 64] [--processes 4] [--megabytes 30] [--rounds 7]

Starts a Kafka broker and an S3 server. Each subscriber is a ``WeightsFollower`` with connections of its own to log and store, as each
collector has one; a few processes hold them all. It hears of the weights on the log, streams them into a file that appears when they
are verified, and parses that. The bare way puts the same file with the ``minio`` client, tells the same processes by a pipe, and as
many clients of their own each read the object whole into memory, compute its SHA-256 and parse it there: no log, no file,
and a put that nobody can announce twice or verify. Both ways take turns, a round each. What is compared is the time from the
start of publishing until the last subscriber has parsed, and the processor time of all that took part, servers included.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from minio import Minio
from pair import Cost, in_turns, processor_seconds, spread, table
from safetensors.numpy import load, load_file, save_file

sys.path.append(str(Path(__file__).resolve().parent.parent / "compose"))

from distrl.connectors import open_bus, open_store
from distrl.core.codec import Codec
from distrl.core.config import Config, parse_config
from distrl.core.contracts.bus import Bus
from distrl.core.contracts.clock import SystemClock
from distrl.core.runtime.activity import Activity
from distrl.core.runtime.event_writer import EventWriter
from distrl.core.runtime.topic import declared_topics
from distrl.core.runtime.weights import WeightsFollower, WeightsPublisher

RUN = "fan-out"
BUCKET = "bench"
POLL_S = 0.02
"""How often a waiting collector's loop comes round."""
PATIENCE_S = 120.0


class Weights:
    """Stands in for a policy: what a publisher asks of one."""

    base_model: ClassVar[str] = ""

    def __init__(self, megabytes: int) -> None:
        self._tensors = {
            f"layer.{index}": np.random.default_rng(index).random((256, 1024), np.float32) for index in range(megabytes)
        }

    def save(self, path: Path) -> None:
        save_file(self._tensors, path)


def subscribe(pipe: Connection, settings: dict[str, Any], count: int, folder: Path) -> None:
    """A process that holds ``count`` subscribers of each way, and does as the pipe says."""
    config = parse_config(settings)
    clock = SystemClock()
    buses = [open_bus(config.bus, clock=clock, client_id=f"subscriber-{index}") for index in range(count)]
    followers = [
        WeightsFollower(bus, Codec(), open_store(config.store), RUN, work_dir=folder / str(index), clock=clock)
        for index, bus in enumerate(buses)
    ]
    clients = [client(config) for _ in range(count)]

    def ours(index: int, version: int) -> None:
        follower, deadline = followers[index], time.monotonic() + PATIENCE_S
        while follower.update is None or follower.update.version < version:
            follower.poll()
            if time.monotonic() > deadline:
                raise TimeoutError(f"version {version} did not come")
            time.sleep(POLL_S)
        load_file(follower.path)

    def bare(index: int, key: str, sha256: str) -> None:
        response = clients[index].get_object(BUCKET, key)
        try:
            data = response.read()
        finally:
            response.close()
            response.release_conn()
        if hashlib.sha256(data).hexdigest() != sha256:
            raise RuntimeError("corrupt")
        load(data)

    while (order := pipe.recv()) is not None:
        began = time.process_time()
        way, *arguments = order
        if way == "bare":
            arguments = pipe.recv()
        done: list[int] = []

        def work(index: int, way: str = way, arguments: list[Any] = arguments, done: list[int] = done) -> None:
            (ours if way == "ours" else bare)(index, *arguments)
            done.append(index)

        threads = [threading.Thread(target=work, args=(index,)) for index in range(count)]
        for thread in threads:
            thread.start()
        if way == "ours":
            pipe.send("listening")
        for thread in threads:
            thread.join()
        pipe.send((len(done), time.process_time() - began))
    for follower in followers:
        follower.close()
    for bus in buses:
        bus.close()


def client(config: Config) -> Minio:
    store = config.store
    return Minio(
        store.endpoint,
        access_key=store.access_key,
        secret_key=store.secret_key.get_secret_value(),
        secure=False,
        region=store.region,
    )


class Began(NamedTuple):
    """The clock, and processor seconds so far."""

    clock: float
    publisher: float
    log: float
    store: float


class FanOut:
    """The publishing side of both ways."""

    def __init__(
        self,
        config: Config,
        bus: Bus,
        pipes: list[Connection],
        servers: Sequence[int],
        expected: int,
        megabytes: int,
        folder: Path,
    ) -> None:
        """``servers``: process ids of log and store."""
        clock = SystemClock()
        self._servers = servers
        self.shares: dict[str, list[tuple[float, ...]]] = {"ours": [], "bare": []}
        """Processor seconds of subscribers, publisher, log and store, round by round."""
        self._pipes = pipes
        self._expected = expected
        self._weights = Weights(megabytes)
        self._client = client(config)
        self._file = folder / "bare.safetensors"
        self._version = 0
        writer = EventWriter(
            bus.producer(),
            Codec(),
            run=RUN,
            node="publisher",
            role="learner",
            clock=clock,
            activity=Activity(clock),
            stop=threading.Event(),
            patience_s=PATIENCE_S,
        )
        self._publisher = WeightsPublisher(
            open_store(config.store),
            writer,
            run=RUN,
            policy="factored",
            epoch=1,
            options="{}",
            work_dir=folder,
            patience_s=PATIENCE_S,
            kept=4,
        )

    def ours(self) -> Cost:
        self._version += 1
        self._tell("ours", self._version)
        for pipe in self._pipes:
            assert pipe.recv() == "listening"
        began = self._now()
        self._publisher.publish(
            self._weights,
            self._version,
            ingested=0,
            allowance=-1,
            live_collectors=0,
            max_lag=0,  # type: ignore[arg-type]
        )
        return self._all_parsed("ours", began)

    def bare(self) -> Cost:
        self._tell("bare")
        began = self._now()
        self._weights.save(self._file)
        sha256 = hashlib.sha256(self._file.read_bytes()).hexdigest()
        key = f"bare/{time.time_ns()}"
        self._client.fput_object(BUCKET, key, str(self._file))
        for pipe in self._pipes:
            pipe.send([key, sha256])
        return self._all_parsed("bare", began)

    def _tell(self, *order: object) -> None:
        for pipe in self._pipes:
            pipe.send(order)

    def _now(self) -> Began:
        return Began(time.perf_counter(), time.process_time(), *map(processor_seconds, self._servers))

    def _all_parsed(self, way: str, began: Began) -> Cost:
        answers = [pipe.recv() for pipe in self._pipes]
        spent = [after - before for after, before in zip(self._now(), began, strict=True)]
        parsed = sum(count for count, _ in answers)
        if parsed != self._expected:
            raise RuntimeError(f"{parsed} of {self._expected} subscribers parsed the weights")
        shares = (sum(seconds for _, seconds in answers), *spent[1:])
        self.shares[way].append(shares)
        return Cost(spent[0], sum(shares))


def measure(
    settings: dict[str, Any],
    servers: Sequence[int],
    *,
    subscribers: int,
    processes: int,
    megabytes: int,
    rounds: int,
    folder: Path,
) -> str:
    """The table of one run."""
    config = parse_config(settings)
    share = subscribers // processes
    spawn = multiprocessing.get_context("spawn")
    with open_bus(config.bus, clock=SystemClock(), client_id="publisher") as bus:
        bus.admin().create(declared_topics(config))
        pipes: list[Connection] = []
        children = []
        for number in range(processes):
            here, there = spawn.Pipe()
            children.append(
                spawn.Process(target=subscribe, args=(there, settings, share, folder / f"process-{number}"))
            )
            pipes.append(here)
        for child in children:
            child.start()
        try:
            fan_out = FanOut(config, bus, pipes, servers, share * processes, megabytes, folder)
            ways: tuple[Callable[[], Cost], Callable[[], Cost]] = (fan_out.ours, fan_out.bare)
            in_turns(1, *ways)  # connects, and makes the bucket
            costs = in_turns(rounds, *ways)
        finally:
            for pipe in pipes:
                pipe.send(None)
            for child in children:
                child.join(timeout=60)
                child.kill()
    head = [f"{share * processes} subscribers, {megabytes} MB, {rounds} rounds", "ours", "bare client", "ours / bare"]
    rows = [
        [
            name,
            *(spread([pair[index][place] for pair in costs]) for index in (0, 1)),
            spread([ours[place] / bare[place] for ours, bare in costs]),
        ]
        for place, name in enumerate(("seconds until all have parsed", "processor seconds of all"))
    ]
    for place, name in enumerate(("subscribers", "publisher", "log", "store")):
        ours, bare = ([shares[place] for shares in fan_out.shares[way][1:]] for way in ("ours", "bare"))
        rows.append([f"… of them {name}", spread(ours), spread(bare), ""])
    return table(head, rows) + f"\nLoad average {os.getloadavg()[0]:.0f}.\n"


def main() -> None:
    from kafka_broker import start_kafka
    from seaweedfs import start_s3

    parser = argparse.ArgumentParser(description="Weights from publish to parsed in many subscribers.")
    parser.add_argument("--subscribers", type=int, default=64)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--megabytes", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as temporary,
        start_kafka(Path(temporary) / "kafka") as kafka,
        start_s3(Path(temporary) / "s3") as s3,
    ):
        settings = {
            "run": {"name": RUN},
            "bus": {"kind": "kafka", "bootstrap": [kafka.bootstrap]},
            "store": {
                "kind": "s3",
                "endpoint": s3.endpoint,
                "bucket": BUCKET,
                "access_key": s3.access_key,
                "secret_key": s3.credentials.secret_key,
            },
        }
        sys.stdout.write(measure(settings, (kafka.pid, s3.pid), folder=Path(temporary) / "files", **vars(arguments)))


if __name__ == "__main__":
    main()
