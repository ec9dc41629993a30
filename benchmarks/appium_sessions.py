"""Episodes a second on MiniWoB++ with one, two and more browsers at once, in one run side by side.

``python benchmarks/appium_sessions.py [--seconds 15] [--sessions 1 2]`` starts an Appium server, gives each browser a thread
and random taps, and prints a table. Each number of sessions runs on fresh browsers, that are opened before the clock starts.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

sys.path.append(str(Path(__file__).resolve().parent.parent / "compose"))

from appium_server import start_appium

from distrl.connectors.appium.device import AppiumDevice
from distrl.connectors.appium.option import AppiumOptions
from distrl.connectors.miniwob.option import MiniWobOptions
from distrl.connectors.miniwob.task import MiniWobTasks
from distrl.core.contracts.action import Action
from distrl.core.contracts.clock import SystemClock
from distrl.core.contracts.role import Artefacts, RoleContext


def episodes(device: AppiumDevice, tasks: MiniWobTasks, rng: random.Random, stop: threading.Event) -> tuple[int, int]:
    """Random episodes until ``stop``; how many, and with how many steps."""
    count = steps = 0
    while not stop.is_set():
        task = tasks.sample("train", rng.getrandbits(30))
        device.reset(task, episode=f"{device.device_id}-{count}")
        for _ in range(task.horizon):
            steps += 1
            if device.step(Action("tap", point=(rng.random(), rng.random()))).done:
                break
        count += 1
    return count, steps


def measure(server: str, sessions: int, seconds: float, work_dir: Path) -> tuple[float, float]:
    """Episodes and steps a second of so many browsers together."""
    context = RoleContext("bench", "bench", 0, SystemClock(), random.Random(0), cast(Artefacts, None), work_dir)
    tasks = MiniWobTasks(MiniWobOptions(), context)
    devices = [AppiumDevice(AppiumOptions(servers=(server,)), context, index) for index in range(sessions)]
    stop = threading.Event()
    try:
        for device in devices:
            device.reset(tasks.sample("train", 0), episode="warm")
        with ThreadPoolExecutor(sessions) as pool:
            began = time.perf_counter()
            runs = [pool.submit(episodes, device, tasks, random.Random(i), stop) for i, device in enumerate(devices)]
            stop.wait(seconds)
            stop.set()
            counts = [run.result() for run in runs]
            took = time.perf_counter() - began
    finally:
        for device in devices:
            device.close()
    return sum(count for count, _ in counts) / took, sum(steps for _, steps in counts) / took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each measurement")
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 2], help="browsers at once")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, start_appium(Path(folder) / "appium") as server:
        rows = [(n, *measure(server.url, n, arguments.seconds, Path(folder) / "work")) for n in arguments.sessions]
    first = rows[0][1]
    print("| sessions | episodes/s | steps/s | against the first |\n| --- | --- | --- | --- |")  # noqa: T201
    for sessions, episode_rate, step_rate in rows:
        print(f"| {sessions} | {episode_rate:.2f} | {step_rate:.1f} | {episode_rate / first:.2f} |")  # noqa: T201


if __name__ == "__main__":
    main()
