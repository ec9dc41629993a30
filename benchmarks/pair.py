"""Two ways to do the same work, measured in turns. Used by the benchmarks of this folder.

On a machine that others use too, only what is measured side by side says something: each round runs both, the rounds begin
with one and the other in turn, and what counts is the ratio within a round: its median, and its quartiles for the spread.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple


class Cost(NamedTuple):
    """Seconds that passed, and seconds of all processors that this process took."""

    wall: float
    processor: float

    @classmethod
    def now(cls) -> Cost:
        return cls(time.perf_counter(), time.process_time())

    def since(self, began: Cost) -> Cost:
        return Cost(self.wall - began.wall, self.processor - began.processor)


def processor_seconds(pid: int) -> float:
    """Of another process, by what the kernel counts: its ticks in user and system mode."""
    ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def in_turns(rounds: int, first: Callable[[], Cost], second: Callable[[], Cost]) -> list[tuple[Cost, Cost]]:
    """The costs of both, round by round."""
    costs: list[tuple[Cost, Cost]] = []
    for number in range(rounds):
        if number % 2 == 0:
            costs.append((first(), second()))
        else:
            later = second()
            costs.append((first(), later))
    return costs


def spread(values: Sequence[float], form: str = ".2f") -> str:
    """The median, with the quartiles in parentheses."""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{middle:{form}} ({low:{form}} to {high:{form}})"


def median(values: Sequence[float], form: str) -> str:
    return f"{statistics.median(values):{form}}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
