"""Steps a second of the simulated phone: alone, and through the episode collector with eight of them.

    python benchmarks/simulated_phone.py [--seconds 3]

The policy in the collector is a script that taps at random and costs next to nothing, and observations are hashed but kept nowhere, so the
figure is the collector's own: threads, batching, bookkeeping. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import random
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from distrl.connectors.simulated_phone.device import SimulatedPhone
from distrl.connectors.simulated_phone.option import PhoneOptions, TaskOptions
from distrl.connectors.simulated_phone.task import SimulatedTasks
from distrl.core.contracts.action import Action
from distrl.core.contracts.clock import SystemClock
from distrl.core.contracts.events import Blob, ObservationRecord
from distrl.core.contracts.observation import Observation
from distrl.core.contracts.policy import PolicyAction, PolicyInput
from distrl.core.contracts.role import CollectorParts, RoleContext, Ticket
from distrl.plugins.builtin.collector.episode import EpisodeCollector
from distrl.plugins.builtin.collector.episode_options import EpisodeOptions

DEVICES = 8


class HashingArtefacts:
    """Hashes what it is given, as every store does first, and keeps nothing."""

    def record(self, observation: Observation) -> ObservationRecord:
        screenshot = observation.screenshot
        if screenshot is None:
            return ObservationRecord(observation.time_ms, 0, 0)
        digest = hashlib.sha256(screenshot.data).hexdigest()
        blob = Blob(screenshot.media_type, len(screenshot.data), digest, key=digest)
        return ObservationRecord(observation.time_ms, screenshot.width, screenshot.height, blob)

    def read(self, blob: Blob) -> bytes:
        raise NotImplementedError("nothing is kept here")

    def observation(self, record: ObservationRecord) -> Observation:
        raise NotImplementedError("nothing is kept here")


class RandomTaps:
    """A policy that taps anywhere."""

    name = "random-taps"
    base_model = ""

    def __init__(self) -> None:
        self._random = random.Random(0)

    @property
    def sampling(self) -> Mapping[str, float]:
        return {}

    def act(self, batch: Sequence[PolicyInput], *, greedy: bool = False) -> Sequence[PolicyAction]:
        del greedy
        return [PolicyAction(_tap(self._random), (0,), (0.0,), 0.0) for _ in batch]

    def load(self, path: Path) -> None:
        """It has no weights."""

    def save(self, path: Path) -> None:
        """It has no weights."""


def _tap(rng: random.Random) -> str:
    return str(Action("tap", point=(rng.random(), rng.random())))


def phone_alone(context: RoleContext, seconds: float) -> float:
    """Steps a second of one phone, resets and task draws included."""
    tasks = SimulatedTasks(TaskOptions(), context)
    phone = SimulatedPhone(PhoneOptions(), context, 0)
    steps, start = 0, time.perf_counter()
    for seed in itertools.count():
        task = tasks.sample("train", seed)
        phone.reset(task, episode=str(seed))
        for action in tasks.demonstrate(task) or ():
            phone.step(action)
            steps += 1
        if (elapsed := time.perf_counter() - start) > seconds:
            break
    phone.close()
    return steps / elapsed


def through_collector(context: RoleContext, seconds: float) -> tuple[float, float]:
    """Steps and episodes a second of the episode collector with eight phones."""
    devices = [SimulatedPhone(PhoneOptions(), context, index) for index in range(DEVICES)]
    parts = CollectorParts(devices, SimulatedTasks(TaskOptions(), context), None)
    collector = EpisodeCollector(EpisodeOptions(), context, parts)
    policy, numbers = RandomTaps(), itertools.count()

    def ticket() -> Ticket:
        number = next(numbers)
        return Ticket(f"episode-{number}", number, policy, 1, 1)

    steps = episodes = 0
    start = time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        for trajectory in collector.advance(ticket):
            collector.confirm(trajectory)
            episodes += 1
            steps += len(trajectory.steps)
    collector.close()
    return steps / elapsed, episodes / elapsed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory() as directory:
        context = RoleContext(
            "benchmark", "node", 0, SystemClock(), random.Random(0), HashingArtefacts(), Path(directory)
        )
        alone = phone_alone(context, seconds)
        steps, episodes = through_collector(context, seconds)
    result = {
        "phone_steps_per_s": round(alone),
        "collector_steps_per_s": round(steps),
        "collector_episodes_per_s": round(episodes),
        "devices": DEVICES,
    }
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
