"""Trajectories a second through codec and log, on both logs, and what compressing them on Kafka saves and costs.

    python benchmarks/trajectories.py [--rounds 7] [--records 1500]

Writing is encode, send, acknowledged; reading is poll, decode, acknowledge, in a group. Each is measured beside the same bytes
without the codec, in turns on one log (``pair``), so the ratio says what the codec leaves of the log's speed. Then one round
for each ``bus.compression``: bytes in the broker's segments, and processor time of the client.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import statistics
import sys
import tempfile
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING

from pair import Cost, in_turns, median, spread, table

from distrl.connectors import open_bus
from distrl.core.codec import Codec
from distrl.core.config import BusConfig
from distrl.core.contracts.bus import Bus, Record, RecordPosition, TopicSpec
from distrl.core.contracts.clock import SystemClock
from distrl.core.contracts.events import Blob, Envelope, ObservationRecord, StepRecord, Trajectory
from distrl.core.runtime.header import EventHeaders

sys.path.append(str(Path(__file__).resolve().parent.parent / "compose"))

if TYPE_CHECKING:
    from kafka_broker import KafkaServer

STEPS = 10
COMPRESSIONS = ("none", "auto", "gzip", "lz4", "zstd")
HEADERS = EventHeaders(run="benchmark", role="collector", node="collector-1")
_random = random.Random(5)


def trajectory(number: int, look: Callable[[], ObservationRecord]) -> Trajectory:
    """Ten steps, each with a look of its own."""
    steps = tuple(
        StepRecord(look(), "tap 0.250 0.125", (0, 37, number % 300), -1.25, (-0.5, -0.25, -0.5), 0.75, 0.5)
        for _ in range(STEPS)
    )
    return Trajectory(
        Envelope(f"id-{number}", "benchmark", "collector-1", 1_735_689_600_000 + number),
        *(f"trajectory-{number}", "policy", f"search-{number}", "search", "train", "Search for milk", "[]", 1, STEPS),
        *("phone-0", "factored", 1, 41, "", '{"temperature": 1.0}', "finished"),
        *(1_735_689_600_000, 1_735_689_601_000),
        steps=steps,
        final_observation=look(),
    )


def stored() -> ObservationRecord:
    """Screenshot and tree in the object store."""
    digests = [hashlib.sha256(_random.randbytes(8)).hexdigest() for _ in range(2)]
    screen, tree = (
        Blob(kind, size, digest, "distrl", f"benchmark/{digest}")
        for kind, size, digest in (("image/png", 20_480, digests[0]), ("application/json", 900, digests[1]))
    )
    return ObservationRecord(1_735_689_600_000, 1080, 2400, screen, tree)


def with_tree() -> ObservationRecord:
    """The tree inside the event, as small ones are."""
    nodes = [
        {
            "class": "android.widget.TextView",
            "text": f"row {_random.randrange(1000)}",
            "bounds": [0, row, 1080, row + 90],
        }
        for row in range(0, 1800, 90)
    ]
    data = json.dumps(nodes).encode()
    tree = Blob("application/json", len(data), hashlib.sha256(data).hexdigest(), inline=data)
    return ObservationRecord(1_735_689_600_000, 1080, 2400, stored().screenshot, tree)


def with_screen() -> ObservationRecord:
    """The screenshot inside the event: noise stands for PNG and JPEG, which leave nothing to compress."""
    data = _random.randbytes(20_000)
    screen = Blob("image/png", len(data), hashlib.sha256(data).hexdigest(), inline=data)
    return ObservationRecord(1_735_689_600_000, 1080, 2400, screen, None)


KINDS = {"all in the store": stored, "trees inside": with_tree, "screens inside": with_screen}


def new_topic(bus: Bus) -> str:
    name = f"benchmark-{uuid.uuid4().hex[:8]}"
    bus.admin().create([TopicSpec(name)])
    return name


def write(bus: Bus, topic: str, events: Sequence[Trajectory], values: Sequence[bytes] | None) -> Cost:
    """Until all are acknowledged. With ``values`` the events are not encoded but sent as these."""
    codec = Codec()
    with bus.producer() as producer:
        producer.send(topic, codec.encode(events[0])).result(60)
        began = Cost.now()
        futures: deque[Future[RecordPosition]] = deque()
        for number, event in enumerate(events):
            value = codec.encode(event) if values is None else values[number]
            futures.append(producer.send(topic, value, key=b"key", headers=HEADERS.of(event)))
        for future in futures:
            future.result(60)
        return Cost.now().since(began)


def read(bus: Bus, topic: str, records: int, decode: Callable[[bytes], object]) -> Cost:
    """Until all are polled, decoded, acknowledged and committed."""
    with bus.consumer([topic], group=f"{topic}-{uuid.uuid4().hex[:8]}") as consumer:
        while not consumer.assignment():
            consumer.poll(0.1, max_records=1)
        (partition,) = consumer.assignment()
        consumer.seek(partition, 1)
        began = Cost.now()
        left = records
        while left > 0:
            batch: list[Record] = consumer.poll(1.0)
            for record in batch:
                decode(record.value or b"")
                consumer.ack(record)
            left -= len(batch)
            consumer.commit()
        return Cost.now().since(began)


def row(name: str, records: int, costs: list[tuple[Cost, Cost]]) -> list[str]:
    share = statistics.median(1 - plain.processor / whole.processor for plain, whole in costs)
    return [
        name,
        *(median([records / pair[index].wall for pair in costs], ",.0f") for index in (0, 1)),
        spread([plain.wall / whole.wall for plain, whole in costs]),
        f"{max(0.0, share):.0%}",
    ]


def through(bus: Bus, name: str, records: int, rounds: int) -> list[list[str]]:
    codec = Codec()
    rows = []
    for kind in ("all in the store", "trees inside"):
        events = [trajectory(number, KINDS[kind]) for number in range(records)]
        values = [codec.encode(event) for event in events]
        costs = in_turns(
            rounds,
            lambda e=events, v=values: write(bus, new_topic(bus), e, v),
            lambda e=events: write(bus, new_topic(bus), e, None),
        )
        rows.append(row(f"{name}, write, {kind}", records, costs))
        topic = new_topic(bus)
        write(bus, topic, events, values)
        costs = in_turns(
            rounds,
            lambda t=topic: read(bus, t, records, lambda value: value),
            lambda t=topic: read(bus, t, records, lambda value: codec.decode(value, Trajectory)),
        )
        rows.append(row(f"{name}, read, {kind}", records, costs))
    return rows


def compressed(server: KafkaServer, records: int) -> list[list[str]]:
    rows = []
    for kind, look in KINDS.items():
        count = records if kind != "screens inside" else records // 10
        events = [trajectory(number, look) for number in range(count)]
        values = [Codec().encode(event) for event in events]
        for name in COMPRESSIONS:
            config = BusConfig(kind="kafka", bootstrap=(server.bootstrap,), compression=name)
            with open_bus(config, clock=SystemClock(), client_id="benchmark") as bus:
                topic = new_topic(bus)
                wrote = [write(bus, topic, events, values) for _ in range(3)]
                took = [read(bus, topic, count, lambda value: value) for _ in range(3)]
            on_disk = sum(file.stat().st_size for file in (server.state_dir / "data" / f"{topic}-0").glob("*.log"))
            rows.append(
                [
                    kind,
                    name,
                    f"{sum(map(len, values)) / count:,.0f}",
                    f"{on_disk / len(wrote) / count:,.0f}",
                    f"{1e6 * min(cost.processor for cost in wrote) / count:.0f}",
                    f"{1e6 * min(cost.processor for cost in took) / count:.0f}",
                ]
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--records", type=int, default=1500)
    arguments = parser.parse_args()
    from kafka_broker import start_kafka

    clock = SystemClock()
    with tempfile.TemporaryDirectory() as folder, start_kafka(Path(folder) / "state") as server:
        rows: list[list[str]] = []
        for config in (
            BusConfig(kind="embedded", path=Path(folder) / "log"),
            BusConfig(kind="kafka", bootstrap=(server.bootstrap,)),
        ):
            with open_bus(config, clock=clock, client_id="benchmark") as bus:
                rows += through(bus, config.kind, arguments.records, arguments.rounds)
        sys.stdout.write(table(["", "bytes alone a second", "trajectories a second", "ratio", "codec's share"], rows))
        head = ["trajectories", "bus.compression", "bytes each", "on disk", "processor us to write", "to read"]
        sys.stdout.write("\n" + table(head, compressed(server, arguments.records)))
    sys.stdout.write(f"\n{arguments.rounds} rounds, load average {os.getloadavg()[0]:.0f}\n")


if __name__ == "__main__":
    main()
