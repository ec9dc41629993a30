"""A long run with small bounds: what log, store and outbox take on disk, again and again, until the episodes are through.

    python benchmarks/disk_use.py [--episodes N] [--retention-bytes N] [--screen-bytes N]

Collectors send episodes whose screens lie in the store, the embedded log retains so many bytes a partition, a learner publishes
versions and keeps checkpoints, and garbage is collected beside it. Prints bytes after each tenth of the episodes: after the first few
they must not grow. Ages are told in seconds where a run's are hours, so that minutes show what days do.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from distrl.connectors.embedded import EmbeddedBus
from distrl.connectors.embedded import producer as embedded_producer
from distrl.connectors.folder import FolderStore
from distrl.core.codec import Codec
from distrl.core.config import parse_config
from distrl.core.contracts.bus import TopicPartition
from distrl.core.contracts.clock import SystemClock
from distrl.core.contracts.events import WeightsUpdate
from distrl.core.contracts.topic import TopicName
from distrl.core.runtime.blob import stored_blob
from distrl.core.runtime.checkpoint import Checkpoints, Covered
from distrl.core.runtime.garbage import collect
from distrl.core.runtime.outbox import Outbox, outbox_path
from distrl.core.runtime.topic import declared_topics
from distrl.core.runtime.weights import dispensable
from distrl.testing import make_envelope, make_step, make_trajectory

GRACE_S = 5.0
WEIGHTS_BYTES = 200_000
STEPS = 5


def taken(folder: Path) -> int:
    """Bytes of all files below ``folder``."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--episodes", type=int, default=5000)
    parser.add_argument("--retention-bytes", type=int, default=2_000_000)
    parser.add_argument("--screen-bytes", type=int, default=10_000)
    arguments = parser.parse_args()
    embedded_producer.TEND_S = 0.5
    codec, clock = Codec(), SystemClock()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = parse_config(
            {
                "run": {"name": "disk", "directory": str(folder / "runs")},
                "bus": {"partitions": 2, "retention_bytes": arguments.retention_bytes},
                "learner": {"weights_kept": 20},
            }
        )
        config = config.model_copy(update={"store": config.store.model_copy(update={"grace_hours": GRACE_S / 3600})})
        store = FolderStore(folder / "store")
        topic = TopicName("disk")
        checkpoints = Checkpoints(store, "disk", kept=2)
        work = folder / "runs" / "disk" / "nodes" / "learner-0" / "checkpoint"
        outbox_file = outbox_path(folder / "runs" / "disk" / "nodes" / "collector-0")
        put = removed = 0
        with EmbeddedBus(folder / "log") as bus, bus.producer() as producer, closing(Outbox(outbox_file)) as outbox:
            bus.admin().create(declared_topics(config))
            began = time.monotonic()
            sys.stdout.write(
                f"{'episodes':>9} {'seconds':>8} {'log':>10} {'store':>10} {'outbox':>9} {'put':>10} {'removed':>8}  (MB)\n"
            )
            for number in range(arguments.episodes):
                look = make_step().observation
                screens = [
                    store.put_content("disk/artefacts", os.urandom(arguments.screen_bytes), media_type="image/png")
                    for _ in range(STEPS)
                ]
                put += STEPS * arguments.screen_bytes
                identity = f"t-{number}"
                event = make_trajectory(
                    identity,
                    envelope=make_envelope(identity, run="disk"),
                    steps=[make_step(observation=replace(look, screenshot=stored_blob(ref))) for ref in screens],
                )
                outbox.put([(identity, codec.encode(event))])
                producer.send(topic("trajectories"), codec.encode(event), key=identity.encode()).result(60.0)
                outbox.remove([identity])
                if number % 20 == 0:
                    version = number // 20
                    key = f"disk/weights/{version:08d}-1.safetensors"
                    ref = store.put(key, os.urandom(WEIGHTS_BYTES), media_type="application/vnd.safetensors")
                    put += WEIGHTS_BYTES
                    update = WeightsUpdate(
                        make_envelope(f"w-{version}", run="disk"), "p", 1, version, 0, stored_blob(ref)
                    )
                    for name_ in ("weights", "weights-latest"):
                        producer.send(topic(name_), codec.encode(update), key=b"p").result(60.0)
                    for stat in dispensable(list(store.list("disk/weights/")), kept=config.learner.weights_kept):
                        store.delete(stat.key)
                if number % 100 == 0:
                    covered = Covered(1, 1, number, {TopicPartition(topic("trajectories"), 0): 0}, {})
                    checkpoints.save(covered, lambda place: _write(place / "state", os.urandom(500_000)), work)
                    removed += collect(config, bus, store, codec, clock).removed["artefacts"].bytes
                if (number + 1) % max(1, arguments.episodes // 10) == 0:
                    figures = (
                        taken(folder / "log"), taken(folder / "store"), taken(outbox_file.parent), put, removed
                    )  # fmt: skip
                    numbers = " ".join(
                        f"{value / 1e6:>{width}.1f}" for value, width in zip(figures, (10, 10, 9, 10, 8), strict=True)
                    )
                    sys.stdout.write(f"{number + 1:>9} {time.monotonic() - began:>8.0f} {numbers}\n")
                    sys.stdout.flush()


def _write(path: Path, data: bytes) -> None:
    path.write_bytes(data)


if __name__ == "__main__":
    main()
