"""Prints finished runs side by side as a Markdown table, from their ``summary.json``.

``python benchmarks/result_table.py runs/demo runs/demo-1 …``
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def row(summary: dict[str, Any], kinds: list[str]) -> list[str]:
    """One run's cells. ``nothing lost``: what was collected was evaluated and ingested, each once."""
    whole = summary["collected"] == summary["evaluated"] == summary["ingested"]
    return [
        summary["run"],
        str(summary["seed"]),
        str(summary["episodes"]),
        f"{summary['seconds']:.0f}",
        _share(summary["eval_start"]),
        _share(summary["eval_success"]),
        *(_share(summary["eval_by_task"].get(kind)) for kind in kinds),
        f"{_share(summary['success_first'])} to {_share(summary['success_last'])}",
        str(summary["weight_versions"]),
        f"{summary['staleness_mean']:.2f}, {summary['staleness_max']}",
        f"{summary['collected']}" if whole else "LOST",
    ]


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def main(directories: list[str]) -> None:
    summaries = [json.loads((Path(name) / "summary.json").read_text(encoding="utf-8")) for name in directories]
    kinds = sorted({kind for summary in summaries for kind in summary["eval_by_task"]})
    head = ["run", "seed", "episodes", "seconds", "unseen, untrained", "unseen, trained", *kinds]
    head += ["first to last 200", "versions", "staleness mean, most", "collected = evaluated = ingested"]
    for cells in (head, ["---"] * len(head), *(row(summary, kinds) for summary in summaries)):
        print(f"| {' | '.join(cells)} |")  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
