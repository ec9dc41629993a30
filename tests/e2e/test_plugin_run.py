"""A stranger's plugin for each of the four roles runs in a real pipeline: as single files, and as a package of its own."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from distrl.core.contracts.events import Metrics, Priority, Reward, Trajectory

if TYPE_CHECKING:
    from conftest import StartRun, SupervisedRun

ROOT = Path(__file__).resolve().parent.parent.parent
pytestmark = [pytest.mark.torch, pytest.mark.timeout(420)]


def check(run: SupervisedRun, *, evaluator: str, prioritizer: str) -> None:
    """The named plugins did the work, and nothing was lost on the way."""
    summary = run.finish()
    assert summary["collected"] == summary["evaluated"] == summary["ingested"]
    assert summary["dead_letters"] == 0
    assert {event.evaluator for event in run.events("rewards") if isinstance(event, Reward)} == {evaluator}
    assert {event.prioritizer for event in run.events("priorities") if isinstance(event, Priority)} == {prioritizer}


def numbers(run: SupervisedRun) -> set[str]:
    """Names of all that nodes reported."""
    return {name for event in run.events("metrics") if isinstance(event, Metrics) for name in event.values}


def test_one_file_plugins_of_all_roles(start_run: StartRun) -> None:
    arguments: list[str] = []
    names = {
        "collector": "timed-episodes",
        "evaluator": "state-strict",
        "prioritizer": "surprise",
        "learner": "a-ride-by-kind",
    }
    for role, name in names.items():
        arguments += ["--plugin", str(ROOT / "examples" / "plugins" / f"{role}.py"), "--set", f"{role}.plugin={name}"]
    run = start_run('kind = "embedded"', *arguments, "--episodes", "60")
    check(run, evaluator="state-strict", prioritizer="surprise")
    policy = [
        event for event in run.events("trajectories") if isinstance(event, Trajectory) and event.origin == "policy"
    ]
    assert policy
    assert all("device_ms" in event.attributes for event in policy)
    assert any(name.startswith("learner.success.") for name in numbers(run))


def test_a_separately_installed_package_of_all_roles(start_run: StartRun, tmp_path: Path) -> None:
    site = tmp_path / "site"
    install(ROOT / "tests" / "data" / "plugins" / "distrl-example-plugins", site, tmp_path / "build")
    names = {
        "collector": "example-episodes",
        "evaluator": "example-state",
        "prioritizer": "example-recent",
        "learner": "example-a-ride",
    }
    arguments = [word for role, name in names.items() for word in ("--set", f"{role}.plugin={name}")]
    run = start_run('kind = "embedded"', *arguments, "--episodes", "60", environment={"PYTHONPATH": str(site)})
    check(run, evaluator="example-state", prioritizer="example-recent")
    assert "learner.example.updates" in numbers(run)
    policy = [
        event for event in run.events("trajectories") if isinstance(event, Trajectory) and event.origin == "policy"
    ]
    assert policy
    assert all("label" in event.attributes for event in policy)


def install(package: Path, site: Path, work: Path) -> None:
    """Build the package's wheel and unpack it, which is all that an installation of pure Python is."""
    source = work / "source"
    shutil.copytree(package, source)
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel"], cwd=source, check=True, timeout=120)
    [wheel] = (source / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
