"""What the embedded log costs over bare SQLite: both write the same batches, side by side, in one run.

    python benchmarks/embedded_log.py [--records N] [--bytes N]

Prints records a second and the ratio, for the write alone, for the whole way through a producer and a consumer, and the time
of single sends from hand-over to acknowledgement. The machine's own figure stands beside each of ours, so that
only the ratios are worth comparing between machines.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import sys
import tempfile
import time
from collections import deque
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path

from distrl.connectors.embedded import EmbeddedBus
from distrl.core.contracts.bus import RecordPosition, TopicSpec

BATCH = 500
SINGLE = 500


def bare(path: Path, records: int, value: bytes) -> tuple[float, float]:
    """Seconds that plain sqlite3 takes to write the records in batches of ``BATCH``, and to read them back."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(
            "CREATE TABLE records (position INTEGER PRIMARY KEY, timestamp_ms INTEGER, key BLOB, headers BLOB, value BLOB)"
        )
        began = time.perf_counter()
        for first in range(0, records, BATCH):
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(
                "INSERT INTO records VALUES (?, ?, ?, ?, ?)",
                [(first + index, 0, b"key", None, value) for index in range(min(BATCH, records - first))],
            )
            connection.execute("COMMIT")
        wrote = time.perf_counter()
        for first in range(0, records, BATCH):
            connection.execute(
                "SELECT * FROM records WHERE position >= ? ORDER BY position LIMIT ?", (first, BATCH)
            ).fetchall()
        return wrote - began, time.perf_counter() - wrote


def bare_single(path: Path, value: bytes) -> list[float]:
    """Seconds of transactions of one record."""
    taken: list[float] = []
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = NORMAL")
        for _ in range(SINGLE):
            began = time.perf_counter()
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO records (timestamp_ms, value) VALUES (0, ?)", (value,))
            connection.execute("COMMIT")
            taken.append(time.perf_counter() - began)
    return taken


def ours(bus: EmbeddedBus, records: int, value: bytes) -> tuple[float, float]:
    """Seconds to send the records until all are acknowledged, and to poll and acknowledge them in a group."""
    began = time.perf_counter()
    with bus.producer() as producer:
        futures: deque[Future[RecordPosition]] = deque(
            producer.send("benchmark", value, key=b"key") for _ in range(records)
        )
        for future in futures:
            future.result(60.0)
        wrote = time.perf_counter()
    left = records
    with bus.consumer(["benchmark"], group="benchmark") as consumer:
        while left:
            for record in consumer.poll(1.0, BATCH):
                consumer.ack(record)
                left -= 1
            consumer.commit()
        return wrote - began, time.perf_counter() - wrote


def ours_single(bus: EmbeddedBus, value: bytes) -> list[float]:
    """Seconds from ``send`` to the acknowledgement, one at a time."""
    taken: list[float] = []
    with bus.producer() as producer:
        for _ in range(SINGLE):
            began = time.perf_counter()
            producer.send("benchmark", value, key=b"key").result(60.0)
            taken.append(time.perf_counter() - began)
    return taken


def line(name: str, plain: float, embedded: float, unit: str, ratio: float) -> None:
    sys.stdout.write(f"{name:<28} {plain:>12,.2f} {embedded:>12,.2f} {unit:<10} {ratio:>6.2f}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--records", type=int, default=50_000)
    parser.add_argument("--bytes", type=int, default=1000)
    arguments = parser.parse_args()
    value = os.urandom(arguments.bytes)
    records: int = arguments.records
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bare.db"
        with EmbeddedBus(Path(folder) / "log") as bus:
            bus.admin().create([TopicSpec("benchmark", max_record_bytes=10_000_000)])
            plain_write, plain_read = bare(path, records, value)
            write, read = ours(bus, records, value)
            plain_single, single = sorted(bare_single(path, value)), sorted(ours_single(bus, value))
    sys.stdout.write(f"{records} records of {arguments.bytes} bytes\n")
    sys.stdout.write(f"{'':<28} {'sqlite3':>12} {'embedded':>12} {'':<10} {'ratio':>6}\n")
    line("write", records / plain_write, records / write, "records/s", plain_write / write)
    line("read", records / plain_read, records / read, "records/s", plain_read / read)
    for share, name in ((0.5, "median"), (0.99, "99th percentile")):
        at = int(share * SINGLE)
        line(f"one record, {name}", 1e3 * plain_single[at], 1e3 * single[at], "ms", single[at] / plain_single[at])


if __name__ == "__main__":
    main()
