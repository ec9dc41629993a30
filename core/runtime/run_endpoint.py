"""What ``distrl run`` serves of the run as a whole, and the file that tells a Prometheus where all its nodes are.

``<run directory>/prometheus/targets.json`` is a file of Prometheus' file-based service discovery. It names every node that has not
left, those that do not answer included, so that an alert on ``up`` sees them; it is empty once the run has ended.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self, get_args

import structlog

from distrl.core.contracts.clock import Clock
from distrl.core.contracts.events import Role
from distrl.core.runtime.endpoint import Answer, Endpoint, json_answer
from distrl.core.runtime.exporter import RunCollector, Sample, scrape_route
from distrl.core.runtime.history import RunHistory
from distrl.core.runtime.liveness import Signs
from distrl.core.runtime.process import NodeProcess
from distrl.core.runtime.progress import Phase, Progress

log = structlog.get_logger(__name__)
SUPERVISOR = "supervisor"


def targets_path(run_directory: Path) -> Path:
    """Where a run's targets file is."""
    return run_directory / "prometheus" / "targets.json"


class RunEndpoint:
    """The supervisor's. ``tell`` is called from its loop, requests are answered from what was told last."""

    def __init__(self, host: str, port: int, directory: Path, *, run: str, clock: Clock, hang_s: float) -> None:
        self._run = run
        self._clock = clock
        self._hang_s = hang_s
        self._targets_file = targets_path(directory)
        self._targets: list[dict[str, Any]] | None = None
        self._collector = RunCollector(run)
        self._told = clock.monotonic()
        self._phase: Phase = "starting"
        self._lacking: dict[str, str] = {}
        """Nodes that should take part and do not, with what they do instead."""
        routes = {
            "/metrics": scrape_route(self._collector),
            "/health/live": self._live,
            "/health/ready": self._ready,
        }
        self._endpoint = Endpoint(host, port, routes)
        log.info("serving the run's numbers", http=self._endpoint.address, targets=str(self._targets_file))

    @property
    def address(self) -> str:
        """``host:port`` for others to call."""
        return self._endpoint.address

    def tell(self, progress: Progress, processes: Sequence[NodeProcess], history: RunHistory, signs: Signs) -> None:
        """Take over where the run stands now."""
        alive = Counter(status.role for status in signs.alive())
        expected = Counter(process.role for process in processes if not process.finished)
        self._lacking = {
            process.node_id: _doing(process.node_id, history, signs)
            for process in processes
            if not process.finished
            and not (signs.is_alive(process.node_id) and history.nodes[process.node_id].status.ready)
        }
        self._phase = progress.phase
        self._told = self._clock.monotonic()
        roles = [role for role in get_args(Role) if role != SUPERVISOR]
        samples: dict[str, Sequence[Sample]] = {
            "distrl_run_nodes_alive": [(role, alive[role]) for role in roles],
            "distrl_run_nodes_expected": [(role, expected[role]) for role in roles],
            "distrl_run_node_restarts_total": [(process.node_id, process.restarts) for process in processes],
            "distrl_run_collected_total": [("", progress.collected)],
            "distrl_run_evaluated_total": [("", progress.evaluated)],
            "distrl_run_ingested_total": [("", progress.ingested)],
            "distrl_run_aborted_total": [("", progress.aborted)],
            "distrl_run_dead_letters": [("", history.dead_letters)],
            "distrl_run_weights_version": [("", progress.version)] if progress.versions else [],
            "distrl_run_success_ratio": _known(progress.success),
            "distrl_run_staleness_versions": _known(progress.staleness_mean),
            "distrl_run_budget_ratio": _known(progress.budget_fraction),
            "distrl_run_phase": [(phase, float(phase == progress.phase)) for phase in get_args(Phase)],
        }
        self._collector.update(samples)
        self._write_targets(history)

    def close(self) -> None:
        """Stop serving, and leave a targets file without targets. Idempotent."""
        self._endpoint.close()
        self._replace([])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _write_targets(self, history: RunHistory) -> None:
        targets = [self._target(self.address, SUPERVISOR, SUPERVISOR)]
        for name, record in sorted(history.nodes.items()):
            if not record.left and record.status.http:
                targets.append(self._target(record.status.http, record.status.role, name))
        self._replace(targets)

    def _target(self, address: str, role: str, node: str) -> dict[str, Any]:
        return {"targets": [address], "labels": {"run": self._run, "role": role, "node": node}}

    def _replace(self, targets: list[dict[str, Any]]) -> None:
        """Write the file anew if anything changed, at once and whole: Prometheus may read it at any time."""
        if targets == self._targets:
            return
        temporary = self._targets_file.with_suffix(".new")
        try:
            self._targets_file.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(targets, indent=2) + "\n", encoding="utf-8")
            temporary.replace(self._targets_file)
        except OSError as error:
            # Watching must not end what is watched: a full disk shows elsewhere.
            log.warning("the targets file cannot be written", path=str(self._targets_file), error=str(error))
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            return
        self._targets = targets

    def _live(self, _accept: str) -> Answer:
        age = self._clock.monotonic() - self._told
        return json_answer(
            {"live": age <= self._hang_s, "phase": self._phase, "age": round(age, 1)}, ok=age <= self._hang_s
        )

    def _ready(self, _accept: str) -> Answer:
        lacking = dict(self._lacking)
        ready = not lacking and self._phase == "training"
        return json_answer({"ready": ready, "phase": self._phase, "lacking": lacking}, ok=ready)


def _doing(node: str, history: RunHistory, signs: Signs) -> str:
    """What a node does that does not take part."""
    record = history.nodes.get(node)
    if record is None:
        return "has not shown itself"
    if not signs.is_alive(node):
        return "shows no sign of life"
    return record.status.missing or f"not ready ({record.status.state})"


def _known(value: float | None) -> list[Sample]:
    return [] if value is None else [("", value)]
