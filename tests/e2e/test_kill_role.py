"""``kill -9`` of any role during a run, on both logs: the run goes on, and what the phones finished is what was learned from.

Loss is measured against the simulated phones' own ledgers, which they write outside the log.
"""

from __future__ import annotations

import os
import random
import signal
from typing import TYPE_CHECKING

import pytest

from distrl.connectors.ledger import read_ledger
from distrl.core.contracts.events import ROLES

if TYPE_CHECKING:
    from conftest import StartRun
    from kafka_broker import KafkaServer

pytestmark = [pytest.mark.torch, pytest.mark.timeout(420)]


@pytest.fixture(params=["embedded", pytest.param("kafka", marks=pytest.mark.kafka)])
def bus(request: pytest.FixtureRequest) -> str:
    """The ``[bus]`` of the run, in TOML."""
    if request.param == "embedded":
        return 'kind = "embedded"'
    server: KafkaServer = request.getfixturevalue("kafka_server")
    return f'kind = "kafka"\nbootstrap = ["{server.bootstrap}"]'


@pytest.mark.parametrize("role", ROLES)
def test_a_killed_role_loses_nothing(start_run: StartRun, bus: str, role: str) -> None:
    run = start_run(bus)
    run.wait_for("trajectories", 60)
    victim = run.pid(role)
    os.kill(victim, signal.SIGKILL)
    summary = run.finish()

    ledger = read_ledger(run.nodes)
    collected = run.ids("trajectories")
    assert ledger.finished == collected
    assert run.ids("rewards") == collected
    assert run.ids("feedback") == collected
    assert summary["collected"] == summary["evaluated"] == summary["ingested"] == len(collected)
    assert summary["dead_letters"] == 0
    starts = [int(path.read_text()) for path in run.nodes.glob("*/starts") if path.parent.name.startswith(role)]
    assert max(starts) >= 2, "the killed node was started again"


def test_groups_of_two_lose_nothing_when_members_are_killed(start_run: StartRun, bus: str) -> None:
    chance = random.Random(5)
    run = start_run(bus, "--set", "evaluator.nodes=2", "--set", "prioritizer.nodes=2")
    for count in (40, 90, 140):
        run.wait_for("trajectories", count)
        for role in ("evaluator", "prioritizer"):
            os.kill(run.pid(f"{role}-{chance.randrange(2)}"), signal.SIGKILL)
    summary = run.finish()

    collected = run.ids("trajectories")
    assert read_ledger(run.nodes).finished == collected
    assert run.ids("rewards") == run.ids("feedback") == collected
    assert run.ids("priorities") >= collected
    assert summary["collected"] == summary["evaluated"] == summary["ingested"] == len(collected)
    assert summary["dead_letters"] == 0
