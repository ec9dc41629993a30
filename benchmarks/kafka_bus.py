"""What the Kafka connector costs beside bare kafka-python: both send and read the same records on one broker, in one run.

    python benchmarks/kafka_bus.py [--rounds 9]

Starts a broker of its own. Bare kafka-python is used as a careful user would: with ``crc32c``, the connector's settings (acks of
all, idempotence, batches of 1 MB, 5 ms linger, the same fetches, read committed), the same headers on every record, and a
semaphore that bounds what is in flight to as many records and bytes as the connector does. Both end with the last
acknowledgement, or the last commit. A ratio is ours over bare: above 1 is faster, or cheaper.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from pair import Cost, in_turns, median, spread, table

from distrl.connectors.kafka import KafkaBus
from distrl.connectors.kafka.connection import BATCH_BYTES, FETCH_WAIT_MS, LINGER_MS, REQUEST_BYTES
from distrl.connectors.kafka.consumer import PARTITION_FETCH_BYTES
from distrl.core.config import BusConfig
from distrl.core.contracts.bus import Bus, TopicSpec
from distrl.core.contracts.clock import SystemClock
from distrl.core.contracts.events import Envelope, Reward
from distrl.core.runtime.header import EventHeaders

sys.path.append(str(Path(__file__).resolve().parent.parent / "compose"))

SINGLE = 200
SIZES = {1_000: 20_000, 100_000: 1_000}
"""Bytes of a record, and how many are sent."""
POLL = 500
HEADERS = EventHeaders(run="benchmark", role="evaluator", node="evaluator-1").of(
    Reward(Envelope("reward-1", "benchmark", "evaluator-1", 1_735_689_600_000), "trajectory-1", "state", "1", 1.0)
)


def new_topic(bus: Bus) -> str:
    name = f"benchmark-{uuid.uuid4().hex[:8]}"
    bus.admin().create([TopicSpec(name)])
    return name


def bare_producer(config: BusConfig) -> Any:
    return KafkaProducer(
        bootstrap_servers=list(config.bootstrap),
        acks="all",
        enable_idempotence=True,
        batch_size=BATCH_BYTES,
        linger_ms=LINGER_MS,
        max_request_size=REQUEST_BYTES,
        metrics_enabled=False,
    )


def bare_write(config: BusConfig, topic: str, values: list[bytes]) -> Cost:
    """Until kafka-python has every acknowledgement."""
    producer = bare_producer(config)
    producer.send(topic, values[0]).get(60)
    room = threading.Semaphore(min(config.in_flight_records, max(1, config.in_flight_bytes // len(values[0]))))
    headers = list(HEADERS)

    def done(_: object) -> None:
        room.release()

    began = Cost.now()
    futures = []
    for value in values:
        room.acquire()
        future = producer.send(topic, value, key=b"key", headers=headers)
        future.add_callback(done)
        future.add_errback(done)
        futures.append(future)
    for future in futures:
        future.get(60)
    cost = Cost.now().since(began)
    producer.close()
    return cost


def our_write(bus: Bus, topic: str, values: list[bytes]) -> Cost:
    """Until the connector has resolved every future."""
    with bus.producer() as producer:
        producer.send(topic, values[0]).result(60)
        began = Cost.now()
        futures = [producer.send(topic, value, key=b"key", headers=HEADERS) for value in values]
        for future in futures:
            future.result(60)
        return Cost.now().since(began)


def bare_consumer(config: BusConfig, topic: str) -> Any:
    consumer = KafkaConsumer(
        bootstrap_servers=list(config.bootstrap),
        group_id=f"{topic}-{uuid.uuid4().hex[:8]}",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed",
        max_partition_fetch_bytes=PARTITION_FETCH_BYTES,
        fetch_max_wait_ms=FETCH_WAIT_MS,
        metrics_enabled=False,
    )
    consumer.subscribe([topic])
    while not consumer.assignment():
        consumer.poll(timeout_ms=10_000, max_records=1)  # kafka-python forgets a join that outlasts one poll
    consumer.seek(TopicPartition(topic, 0), 0)
    return consumer


def bare_read(config: BusConfig, topic: str, records: int) -> Cost:
    """Until kafka-python has read and committed them as the only member of a group."""
    consumer = bare_consumer(config, topic)
    began = Cost.now()
    left = records
    while left > 0:
        left -= sum(map(len, consumer.poll(timeout_ms=1000, max_records=POLL).values()))
        consumer.commit()
    cost = Cost.now().since(began)
    consumer.close()
    return cost


def our_read(bus: Bus, topic: str, records: int) -> Cost:
    """Until they are polled, acknowledged one by one and committed by the only member of a group."""
    with bus.consumer([topic], group=f"{topic}-{uuid.uuid4().hex[:8]}") as consumer:
        while not consumer.assignment():
            consumer.poll(0.1, max_records=1)
        (partition,) = consumer.assignment()
        consumer.seek(partition, 0)
        began = Cost.now()
        left = records
        while left > 0:
            for record in consumer.poll(1.0, max_records=POLL):
                consumer.ack(record)
                left -= 1
            consumer.commit()
        return Cost.now().since(began)


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


def row(name: str, size: int, records: int, costs: list[tuple[Cost, Cost]]) -> list[str]:
    megabytes = size * records / 1e6
    return [
        f"{name}, {size // 1000} KB",
        *(median([megabytes / pair[index].wall for pair in costs], ".1f") for index in (0, 1)),
        spread([bare.wall / ours.wall for bare, ours in costs]),
        *(median([1e6 * pair[index].processor / records for pair in costs], ".1f") for index in (0, 1)),
        spread([bare.processor / ours.processor for bare, ours in costs]),
    ]


def measure(bus: Bus, config: BusConfig, rounds: int) -> list[list[str]]:
    rows: list[list[str]] = []
    for size, records in SIZES.items():
        values = [os.urandom(size)] * records
        costs = in_turns(
            rounds,
            lambda v=values: bare_write(config, new_topic(bus), v),
            lambda v=values: our_write(bus, new_topic(bus), v),
        )
        rows.append(row("write", size, records, costs))
        topic = new_topic(bus)
        our_write(bus, topic, values)
        costs = in_turns(
            rounds,
            lambda t=topic, n=records: bare_read(config, t, n),
            lambda t=topic, n=records: our_read(bus, t, n),
        )
        rows.append(row("read", size, records, costs))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    rounds: int = parser.parse_args().rounds
    from kafka_broker import start_kafka

    with tempfile.TemporaryDirectory() as folder, start_kafka(Path(folder) / "state") as server:
        config = BusConfig(kind="kafka", bootstrap=(server.bootstrap,))
        with KafkaBus(config, clock=SystemClock(), client_id="benchmark") as bus:
            rows = measure(bus, config, rounds)
            times = through(bus, new_topic(bus), os.urandom(1000))
    head = ["", "bare MB/s", "ours MB/s", "ratio", "bare processor us a record", "ours", "ratio"]
    sys.stdout.write(table(head, rows))
    sys.stdout.write(
        f"{rounds} rounds, load average {os.getloadavg()[0]:.0f}; one record from send to poll: median "
        f"{1e3 * times[SINGLE // 2]:.1f} ms, 99th percentile {1e3 * times[int(0.99 * SINGLE)]:.1f} ms\n"
    )


if __name__ == "__main__":
    main()
