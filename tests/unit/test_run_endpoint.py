"""What the supervisor serves of a run, and the file by which Prometheus finds its nodes."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from distrl.core.contracts.bus import Record
from distrl.core.contracts.events import Envelope, NodeStatus, Role
from distrl.core.contracts.metric import RUN_METRICS
from distrl.core.errors import ConfigError
from distrl.core.runtime.history import RunHistory
from distrl.core.runtime.liveness import Signs
from distrl.core.runtime.process import NodeProcess
from distrl.core.runtime.progress import Progress
from distrl.core.runtime.run_endpoint import RunEndpoint, targets_path
from distrl.testing import ManualClock

PROGRESS = Progress("training", 10.0, 0.5, 3, 1, 0.25, {}, 7, 8, 1.5, 5, 4, 3)
ROLES: tuple[Role, ...] = ("collector", "learner")


class Run:
    """A supervisor's view of a run of one collector and one learner."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clock = ManualClock()
        self.history = RunHistory("demo")
        self.signs = Signs(self.clock)
        self.signs.follow({})
        self.processes = [NodeProcess(f"{role}-0", role, [], directory / "out", {}, self.clock, 60.0) for role in ROLES]
        self.endpoint = RunEndpoint("127.0.0.1", 0, directory, run="demo", clock=self.clock, hang_s=60.0)

    def sign(self, role: Role, *, ready: bool = True, port: int = 4000, missing: str = "") -> None:
        name = f"{role}-0"
        now = self.clock.time_ms()
        status = NodeStatus(
            Envelope("e", "demo", name, now), role, "p", "running", "i", "h", 1, 0, 1000,
            missing=missing, ready=ready, http=f"127.0.0.1:{port}",
        )  # fmt: skip
        self.history.add("nodes", status, now)
        self.signs.heard(Record("distrl.demo.nodes", 0, 0, now, name.encode(), b""), status)

    def tell(self, progress: Progress = PROGRESS) -> None:
        self.endpoint.tell(progress, self.processes, self.history, self.signs)

    def ask(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://{self.endpoint.address}{path}", timeout=20) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def targets(self) -> dict[str, str]:
        document: list[dict[str, Any]] = json.loads(targets_path(self.directory).read_text())
        assert all(item["labels"]["run"] == "demo" for item in document)
        return {item["labels"]["node"]: item["targets"][0] for item in document}


@pytest.fixture
def run(tmp_path: Path) -> Any:
    current = Run(tmp_path)
    yield current
    current.endpoint.close()


def test_all_that_the_table_declares_is_served(run: Run) -> None:
    run.sign("collector")
    run.processes[0].restarts = 2
    run.tell()
    served = {family.name: family for family in parse(run.ask("/metrics")[1])}
    for metric in RUN_METRICS:
        family = served[metric.served.removesuffix("_total") if metric.kind == "counter" else metric.served]
        assert (family.type, family.documentation) == (metric.kind, metric.meaning)
        assert all(sample.labels["run"] == "demo" for sample in family.samples)
    alive = {sample.labels["role"]: sample.value for sample in served["distrl_run_nodes_alive"].samples}
    assert alive == {"collector": 1, "evaluator": 0, "prioritizer": 0, "learner": 0}
    restarts = {sample.labels["node"]: sample.value for sample in served["distrl_run_node_restarts"].samples}
    assert restarts == {"collector-0": 2, "learner-0": 0}
    assert served["distrl_run_success_ratio"].samples[0].value == 0.25


def test_the_targets_file_follows_the_nodes(run: Run) -> None:
    run.tell()
    own = {"supervisor": run.endpoint.address}
    assert run.targets() == own
    run.sign("collector", port=4000)
    run.sign("learner", port=4001)
    run.tell()
    assert run.targets() == {**own, "collector-0": "127.0.0.1:4000", "learner-0": "127.0.0.1:4001"}
    run.sign("collector", port=4002)  # started again
    run.clock.advance(60.0)  # dead, and to be alerted of
    run.tell()
    assert run.targets()["collector-0"] == "127.0.0.1:4002"
    run.history.node_left("collector-0")
    run.tell()
    assert run.targets().keys() == {"supervisor", "learner-0"}
    run.endpoint.close()
    assert run.targets() == {}
    assert [path.name for path in targets_path(run.directory).parent.iterdir()] == ["targets.json"]


def test_a_targets_file_that_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    (tmp_path / "prometheus").write_text("a file where a folder is due")
    run = Run(tmp_path)
    run.tell()
    assert run.ask("/metrics")[0] == 200
    run.endpoint.close()


def test_a_run_is_ready_when_all_its_nodes_take_part(run: Run) -> None:
    run.sign("collector")
    run.tell()
    status, text = run.ask("/health/ready")
    assert (status, json.loads(text)["lacking"]) == (503, {"learner-0": "has not shown itself"})
    run.sign("learner", ready=False, missing="no collector is alive")
    run.tell()
    assert json.loads(run.ask("/health/ready")[1])["lacking"] == {"learner-0": "no collector is alive"}
    run.sign("learner")
    run.tell()
    assert run.ask("/health/ready")[0] == 200
    run.tell(replace(PROGRESS, phase="draining"))
    assert run.ask("/health/ready")[0] == 503


def test_a_supervisor_whose_loop_hangs_is_not_live(run: Run) -> None:
    run.tell()
    run.clock.advance(60.0)
    assert run.ask("/health/live")[0] == 200
    run.clock.advance(1.0)
    assert run.ask("/health/live")[0] == 503


def test_a_taken_port_is_named(run: Run, tmp_path: Path) -> None:
    port = int(run.endpoint.address.rpartition(":")[2])
    with pytest.raises(ConfigError, match=f"run.http_port = {port}"):
        RunEndpoint("127.0.0.1", port, tmp_path, run="demo", clock=run.clock, hang_s=60.0)
