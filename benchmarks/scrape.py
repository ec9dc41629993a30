"""What serving ``/metrics`` costs a collector: processor time of the same steps, scraped every second and not, side by side.

    python benchmarks/scrape.py [--rounds 8] [--seconds 4]

Rounds alternate, so other work on the machine falls on both alike; processor time, not the clock on the wall, is compared. The scraper
is a process of its own. The phones wait for nothing, so a step here costs far less than one of a real device, and the share of a scrape
is the largest that can be. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from distrl.connectors.simulated_phone.device import SimulatedPhone
from distrl.connectors.simulated_phone.option import PhoneOptions, TaskOptions
from distrl.connectors.simulated_phone.task import SimulatedTasks
from distrl.core.contracts.clock import SystemClock
from distrl.core.contracts.metric import EPISODES, HANDLERS, STEPS, STORE_REQUESTS, STORE_SECONDS
from distrl.core.contracts.role import RoleContext
from distrl.core.runtime.activity import Activity
from distrl.core.runtime.endpoint import Endpoint
from distrl.core.runtime.exporter import NodeCollector, scrape_route
from distrl.core.runtime.health import Health
from distrl.core.runtime.view import NodeView
from distrl.testing import MemoryArtefacts

SCRAPER = """
import sys, time, urllib.request
while True:
    urllib.request.urlopen(sys.argv[1], timeout=10).read()
    time.sleep(1.0)
"""


def cost_of_steps(context: RoleContext, activity: Activity, seconds: float, seed: int) -> float:
    """Processor microseconds of this process a step, over some seconds of episodes."""
    tasks = SimulatedTasks(TaskOptions(), context)
    phone = SimulatedPhone(PhoneOptions(), context, 0)
    steps, begun, spent = 0, time.monotonic(), time.process_time()
    while time.monotonic() - begun < seconds:
        seed += 1
        task = tasks.sample("train", seed)
        phone.reset(task, episode=str(seed))
        with activity.span("busy"), activity.timed("episode"):
            for action in tasks.demonstrate(task) or ():
                phone.step(action)
                activity.count(STEPS)
                steps += 1
        activity.count(EPISODES)
    phone.close()
    return (time.process_time() - spent) * 1e6 / max(steps, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=8, help="pairs of measurements")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    arguments = parser.parse_args()
    clock = SystemClock()
    activity, view = Activity(clock), NodeView(state="running", built=True, has_weights=True)
    for handler in HANDLERS:
        activity.took(handler, 0.1)
    for operation in ("put", "get", "stat"):
        activity.count(STORE_REQUESTS, 1, operation)
        activity.observe(STORE_SECONDS, 0.01, operation)
    health = Health(clock, activity, view, hang_s=300.0, queue_age_s=300.0, heartbeat_s=2.0)
    route = scrape_route(NodeCollector(activity, view, health, run="benchmark", role="collector", node="collector-0"))
    costs: dict[bool, list[float]] = {False: [], True: []}
    with tempfile.TemporaryDirectory() as directory, Endpoint("127.0.0.1", 0, {"/metrics": route}) as endpoint:
        context = RoleContext("benchmark", "node", 0, clock, random.Random(0), MemoryArtefacts(), Path(directory))
        for number in range(2 * arguments.rounds):
            scraped = number % 4 in (1, 2)  # no, yes, yes, no: a drift of the machine falls on both alike
            scraper = None
            if scraped:
                command = [sys.executable, "-c", SCRAPER, f"http://{endpoint.address}/metrics"]
                scraper = subprocess.Popen(command)
            try:
                costs[scraped].append(cost_of_steps(context, activity, arguments.seconds, number * 100_000))
            finally:
                if scraper is not None:
                    scraper.terminate()
                    scraper.wait()
        spent = time.process_time()
        for _ in range(100):
            body = route("").body
        per_scrape = (time.process_time() - spent) * 10
    result = {
        "cpu_us_per_step": round(statistics.median(costs[False]), 1),
        "cpu_us_per_step_scraped": round(statistics.median(costs[True]), 1),
        "ratio": round(statistics.median(costs[True]) / statistics.median(costs[False]), 4),
        "spread_of_unscraped": round(statistics.pstdev(costs[False]) / statistics.mean(costs[False]), 4),
        "cpu_ms_per_scrape": round(per_scrape, 2),
        "bytes_per_scrape": len(body),
    }
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
