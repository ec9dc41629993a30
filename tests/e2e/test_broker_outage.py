"""The broker dies in the middle of a run and comes back: the run goes on and ends with nothing lost."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from distrl.connectors.ledger import read_ledger

if TYPE_CHECKING:
    from conftest import StartRun

pytestmark = [pytest.mark.torch, pytest.mark.kafka, pytest.mark.timeout(420)]


def test_a_run_outlives_a_killed_broker(start_run: StartRun, tmp_path: Path) -> None:
    from kafka_broker import start_kafka

    with start_kafka(tmp_path / "kafka") as server:
        run = start_run(f'kind = "kafka"\nbootstrap = ["{server.bootstrap}"]')
        run.wait_for("trajectories", 60)
        server.kill()
        time.sleep(5.0)  # the outage: long enough that nodes run into it
        server.restart()
        summary = run.finish()
        collected = run.ids("trajectories")
        assert read_ledger(run.nodes).finished == collected
        assert run.ids("rewards") == collected
        assert run.ids("feedback") == collected
        assert summary["collected"] == summary["evaluated"] == summary["ingested"] == len(collected)
        assert summary["dead_letters"] == 0
