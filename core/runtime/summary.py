"""The summary of a run: the numbers that scripts and people compare. Written by the supervisor as ``summary.json``."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

from distrl.core.config import Config
from distrl.core.runtime.history import WINDOW, RunHistory
from distrl.core.runtime.rate import EvaluationResult, Rate


class Summary(TypedDict):
    """Keys of ``summary.json``. Shares are from 0 to 1; ``None`` where nothing was measured."""

    run: str
    seed: int
    seconds: float
    episodes: int
    """Finished episodes of the policy."""
    aborted: int
    success_first: float | None
    """Over the first 200 judged episodes of the policy (fewer if there are fewer)."""
    success_last: float | None
    eval_start: float | None
    """On unseen tasks, version 0, greedy."""
    eval_success: float | None
    """The same, the last version."""
    eval_by_task: dict[str, float]
    """The last version, a kind of task."""
    weight_versions: int
    staleness_mean: float | None
    """Versions that policy trajectories lagged when they were ingested."""
    staleness_max: int | None
    collected: int
    evaluated: int
    ingested: int
    """Distinct trajectories that were not aborted; equal after a drain."""
    withheld: int
    duplicates_dropped: int
    dead_letters: int
    learner_busy: float | None
    collector_busy: float | None
    log_bytes: int | None
    """That the run's topics take on disk at the end, all copies together."""
    store_bytes: int | None
    """The same for its objects."""


def make_summary(
    history: RunHistory,
    config: Config,
    seconds: float,
    eval_first: EvaluationResult | None,
    eval_last: EvaluationResult | None,
    *,
    log_bytes: int | None = None,
    store_bytes: int | None = None,
) -> Summary:
    """The summary of what ``history`` has seen. ``seconds``: how long the run took, all its parts together."""
    success = [episode.success for episode in history.judged()]
    total = history.total
    return Summary(
        run=config.run.name,
        seed=config.run.seed,
        seconds=round(seconds, 3),
        episodes=history.episodes,
        aborted=total.aborted,
        success_first=_mean(success[:WINDOW]),
        success_last=_mean(success[-WINDOW:]),
        eval_start=share(eval_first.total) if eval_first else None,
        eval_success=share(eval_last.total) if eval_last else None,
        eval_by_task=_by_kind(eval_last),
        weight_versions=history.weight_versions,
        staleness_mean=history.staleness_mean,
        staleness_max=history.staleness_max,
        collected=total.collected,
        evaluated=total.evaluated,
        ingested=total.ingested,
        withheld=history.withheld,
        duplicates_dropped=history.duplicates_dropped,
        dead_letters=history.dead_letters,
        learner_busy=history.busy("learner"),
        collector_busy=history.busy("collector"),
        log_bytes=log_bytes,
        store_bytes=store_bytes,
    )


def write_summary(path: Path, summary: Mapping[str, Any]) -> None:
    """Write ``summary.json`` whole or not at all: a reader never sees half of it."""
    write_atomically(path, json.dumps(summary, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_atomically(path: Path, text: str) -> None:
    """Replace ``path`` by ``text`` in one step, durable over a crash. Raises ``OSError``."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def share(rate: Rate) -> float | None:
    """Successes by trials; ``None`` without a trial."""
    return rate.successes / rate.trials if rate.trials else None


def _by_kind(evaluation: EvaluationResult | None) -> dict[str, float]:
    if evaluation is None:
        return {}
    return {kind: value for kind, rate in sorted(evaluation.by_kind.items()) if (value := share(rate)) is not None}


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
