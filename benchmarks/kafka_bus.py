"""What the Kafka connector costs over bare kafka-python: both send and read the same records on one broker, in one run.

    python benchmarks/kafka_bus.py

Starts a broker of its own. Bare kafka-python is given the same settings as the connector (batches of 1 MB, 5 ms
linger, acks of all, idempotence), and no bound on what it holds in memory. Each is measured in turn, three times, and the best
of each counts; only the ratios are worth comparing between machines.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from distrl.connectors.kafka import KafkaBus
from distrl.core.config import BusConfig
from distrl.core.contracts.bus import Bus, TopicSpec
from distrl.core.contracts.clock import SystemClock

sys.path.append(str(Path(__file__).resolve().parent.parent / "compose"))

ROUNDS = 3
SINGLE = 200
SIZES = {1_000: 30_000, 100_000: 1_500}
"""Bytes of a record, and how many are sent."""


def new_topic(bus: Bus) -> str:
    name = f"benchmark-{uuid.uuid4().hex[:8]}"
    bus.admin().create([TopicSpec(name)])
    return name


def bare_write(bootstrap: str, topic: str, records: int, value: bytes) -> float:
    """Seconds until kafka-python has every acknowledgement."""
    producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all", batch_size=1_000_000, linger_ms=5)
    producer.send(topic, value).get(60)
    began = time.perf_counter()
    futures = [producer.send(topic, value, key=b"key") for _ in range(records)]
    for future in futures:
        future.get(60)
    taken = time.perf_counter() - began
    producer.close()
    return taken


def our_write(bus: Bus, topic: str, records: int, value: bytes) -> float:
    """Seconds until the connector has resolved every future."""
    with bus.producer() as producer:
        producer.send(topic, value).result(60)
        began = time.perf_counter()
        futures = [producer.send(topic, value, key=b"key") for _ in range(records)]
        for future in futures:
            future.result(60)
        return time.perf_counter() - began


def bare_read(bootstrap: str, topic: str, records: int) -> float:
    """Seconds for kafka-python to read and commit them as the only member of a group."""
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap, group_id=topic + "-bare", auto_offset_reset="earliest", enable_auto_commit=False
    )
    consumer.subscribe([topic])
    while not consumer.assignment():
        consumer.poll(timeout_ms=100, max_records=1)
    consumer.seek(TopicPartition(topic, 0), 0)
    left = records
    began = time.perf_counter()
    while left > 0:
        batches = consumer.poll(timeout_ms=1000, max_records=500)
        left -= sum(len(batch) for batch in batches.values())
        consumer.commit()
    taken = time.perf_counter() - began
    consumer.close()
    return taken


def our_read(bus: Bus, topic: str, records: int) -> float:
    """Seconds to poll, acknowledge one by one and commit them as the only member of a group."""
    with bus.consumer([topic], group=topic + "-ours") as consumer:
        while not consumer.assignment():
            consumer.poll(0.1, max_records=1)
        (partition,) = consumer.assignment()
        consumer.seek(partition, 0)
        left = records
        began = time.perf_counter()
        while left > 0:
            for record in consumer.poll(1.0, max_records=500):
                consumer.ack(record)
                left -= 1
            consumer.commit()
        return time.perf_counter() - began


def through(bus: Bus, topic: str, value: bytes) -> list[float]:
    """Seconds from ``send`` until a reader that waits has the record, one at a time."""
    taken: list[float] = []
    with bus.producer() as producer, bus.consumer([topic]) as consumer:
        for partition, end in consumer.end_offsets().items():
            consumer.seek(partition, end)
        consumer.poll(0.5)
        for _ in range(SINGLE):
            began = time.perf_counter()
            producer.send(topic, value)
            while not consumer.poll(1.0):
                pass
            taken.append(time.perf_counter() - began)
    return sorted(taken)


def best(*calls: Callable[[], float]) -> list[float]:
    """The shortest time of each call over ``ROUNDS``, the calls taking turns."""
    rounds = [[call() for call in calls] for _ in range(ROUNDS)]
    return [min(times) for times in zip(*rounds, strict=True)]


def line(name: str, bare: float, ours: float, unit: str, ratio: float) -> None:
    sys.stdout.write(f"{name:<26} {bare:>12,.1f} {ours:>12,.1f} {unit:<8} {ratio:>6.2f}\n")
    sys.stdout.flush()


def main() -> None:
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    from kafka_broker import start_kafka

    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        with start_kafka(Path(folder) / "state") as server:
            sys.stdout.write(f"broker started in {time.perf_counter() - began:.1f} s\n")
            config = BusConfig(kind="kafka", bootstrap=(server.bootstrap,))
            with KafkaBus(config, clock=SystemClock(), client_id="benchmark") as bus:
                sys.stdout.write(f"{'':<26} {'kafka-python':>12} {'distrl':>12} {'':<8} {'ratio':>6}\n")
                for size, records in SIZES.items():
                    value, topic, megabytes = os.urandom(size), new_topic(bus), size * records / 1e6
                    bare, ours = best(
                        lambda n=records, v=value: bare_write(server.bootstrap, new_topic(bus), n, v),
                        lambda n=records, v=value: our_write(bus, new_topic(bus), n, v),
                    )
                    line(f"write {size // 1000} KB", megabytes / bare, megabytes / ours, "MB/s", bare / ours)
                    our_write(bus, topic, records, value)
                    bare, ours = best(
                        lambda t=topic, n=records: bare_read(server.bootstrap, t, n),
                        lambda t=topic, n=records: our_read(bus, t, n),
                    )
                    line(f"read {size // 1000} KB", megabytes / bare, megabytes / ours, "MB/s", bare / ours)
                times = through(bus, new_topic(bus), os.urandom(1000))
                sys.stdout.write(
                    f"one record from send to poll: median {1e3 * times[SINGLE // 2]:.1f} ms, "
                    f"99th percentile {1e3 * times[int(0.99 * SINGLE)]:.1f} ms\n"
                )


if __name__ == "__main__":
    main()
