"""What a rebalance costs, on both logs: how long until a dead member's partitions are read again, and what is read twice when
a member joins and leaves, cooperatively and together.

    python benchmarks/rebalance.py

Starts a broker of its own. Seconds are the median of three; records read twice do not depend on the machine.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import ExitStack
from pathlib import Path

from distrl.connectors import open_bus
from distrl.core.config import BusConfig
from distrl.core.contracts.bus import Assignment, Consumer, Record, TopicPartition, TopicSpec
from distrl.core.contracts.clock import SystemClock

sys.path.append(str(Path(__file__).resolve().parent.parent / "compose"))

PARTITIONS = 8
RECORDS = 400
"""Sent to each partition; the member that is there has read all and acknowledged the first half when another joins."""
ROUNDS = 3
SESSION_S = 3.0

VICTIM = """
import sys
from distrl.connectors import open_bus
from distrl.core.config import BusConfig
from distrl.core.contracts.clock import SystemClock

config, topic, group = sys.argv[1:]
consumer = open_bus(BusConfig.model_validate_json(config), clock=SystemClock(), client_id="victim").consumer(
    [topic], group=group, member="victim", assignment="cooperative"
)
said = False
while True:
    consumer.poll(0.1)
    if consumer.assignment() and not said:
        print("mine", flush=True)
        said = True
"""


class Stage:
    """A log with topics of its own."""

    def __init__(self, config: BusConfig, stack: ExitStack) -> None:
        self.config = config
        self._stack = stack
        self.bus = stack.enter_context(open_bus(config, clock=SystemClock(), client_id="benchmark"))

    def topic(self) -> str:
        name = f"distrl.benchmark-{uuid.uuid4().hex[:8]}.records"
        admin = self.bus.admin()
        admin.create([TopicSpec(name, partitions=PARTITIONS)])
        self._stack.callback(admin.delete, [name])
        return name

    def fill(self, topic: str, count: int) -> None:
        with self.bus.producer() as producer:
            for number in range(count):
                for partition in range(PARTITIONS):
                    producer.send(topic, b"%d" % number, partition=partition)
            producer.flush(60.0)

    def member(self, topic: str, assignment: Assignment, name: str | None = None) -> Consumer:
        bus = self._stack.enter_context(open_bus(self.config, clock=SystemClock(), client_id="member"))
        return bus.consumer([topic], group=topic, member=name, assignment=assignment)


def read_twice(stage: Stage, assignment: Assignment) -> int:
    """Records that are delivered again because a second member joins and leaves."""
    topic = stage.topic()
    stage.fill(topic, RECORDS)
    first = stage.member(topic, assignment)
    seen: set[tuple[int, int]] = set()
    again = 0

    def take(records: list[Record], *, fresh: bool = False) -> int:
        new = {(record.partition, record.offset) for record in records}
        repeated = 0 if fresh else len(new & seen)
        seen.update(new)
        return repeated

    records: list[Record] = []
    while len(records) < RECORDS * PARTITIONS:
        records += first.poll(0.1)
    take(records, fresh=True)
    for record in records:
        if record.offset < RECORDS // 2:  # the others are still being worked on
            first.ack(record)
    second = stage.member(topic, assignment)
    for wanted in (PARTITIONS // 2, PARTITIONS):
        while len(first.assignment()) != wanted or (wanted < PARTITIONS and len(second.assignment()) != wanted):
            again += take(first.poll(0.05))
            if wanted < PARTITIONS:
                again += take(second.poll(0.05))
        for _ in range(20):
            again += take(first.poll(0.05))
            if wanted < PARTITIONS:
                again += take(second.poll(0.05))
        second.close()
    first.close()
    return again


def take_over(stage: Stage, how: str) -> float:
    """Seconds from a member's end until another one has all partitions."""
    topic = stage.topic()
    other = stage.member(topic, "cooperative")
    everything = {TopicPartition(topic, number) for number in range(PARTITIONS)}
    command = [sys.executable, "-c", VICTIM, stage.config.model_dump_json(), topic, topic]
    if how == "killed":
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            while len(other.assignment()) != PARTITIONS // 2:
                other.poll(0.05)
            process.stdout.readline()
            process.kill()
            begun = time.perf_counter()
    else:
        leaver = stage.member(topic, "cooperative")
        while not len(other.assignment()) == len(leaver.assignment()) == PARTITIONS // 2:
            other.poll(0.05)
            leaver.poll(0.05)
        begun = time.perf_counter()
        leaver.close()
    while other.assignment() != everything:
        other.poll(0.05)
    seconds = time.perf_counter() - begun
    other.close()
    return seconds


def main() -> None:
    from kafka_broker import start_kafka

    sys.stdout.write(
        "| log | killed: read by another after | left: after | read twice, together | read twice, cooperative |\n"
        "| --- | --- | --- | --- | --- |\n"
    )
    with tempfile.TemporaryDirectory() as directory, start_kafka(Path(directory) / "kafka") as server:
        embedded = BusConfig(kind="embedded", path=Path(directory) / "log", session_seconds=SESSION_S)
        kafka = BusConfig(kind="kafka", bootstrap=(server.bootstrap,), session_seconds=SESSION_S)
        for config in (embedded, kafka):
            with ExitStack() as stack:
                stage = Stage(config, stack)
                killed = statistics.median(take_over(stage, "killed") for _ in range(ROUNDS))
                left = statistics.median(take_over(stage, "left") for _ in range(ROUNDS))
                together, cooperative = read_twice(stage, "together"), read_twice(stage, "cooperative")
            sys.stdout.write(f"| {config.kind} | {killed:.1f} s | {left:.1f} s | {together:,} | {cooperative:,} |\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
