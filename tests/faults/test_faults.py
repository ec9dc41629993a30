"""The fault campaign in its shortest form: one fault of each kind that no other end-to-end test has, in one run over each log.
``make faults`` is the long form.
"""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest
from campaign import campaign, plan
from fault import FAULTS
from rig import Log

pytestmark = [
    pytest.mark.torch,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(os.geteuid() != 0, reason="a disk of its own is mounted for the run: needs root"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="the shifted clock is compiled: needs a C compiler"),
]


@pytest.mark.parametrize("log", ["embedded", pytest.param("kafka", marks=[pytest.mark.kafka, pytest.mark.s3])])
def test_one_fault_of_each_kind_loses_nothing(log: Log, tmp_path: Path) -> None:
    faults = [fault for fault in plan(log, 1, random.Random(20_261_201)) if "killed" not in fault.name]
    verdict = campaign(log, faults, tmp_path / "rig", seed=1, outage_s=10.0, tell=print)
    assert [outcome.fault for outcome in verdict.outcomes] == [fault.name for fault in faults]
    assert [(outcome.fault, outcome.detail, outcome.problems) for outcome in verdict.outcomes if outcome.problems] == []
    assert verdict.problems == []
    assert verdict.episodes > 50


def test_every_kind_is_tried_on_some_log() -> None:
    assert {fault.name for log in ("embedded", "kafka") for fault in plan(log, 2, random.Random(0))} == {
        fault.name for fault in FAULTS
    }
