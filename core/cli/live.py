"""Shows a run while it goes on: a live panel on a terminal, a line every ten seconds elsewhere. Used by ``run`` and ``demo``.

Written to stderr, so that stdout holds the summary alone.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from distrl.core.cli.table import cell, console, table
from distrl.core.contracts.clock import Clock, SystemClock
from distrl.core.runtime.progress import Progress

LINE_SECONDS = 10.0


class ProgressView:
    """Takes ``Progress`` as it comes; call it, or pass it as ``on_progress``."""

    def __init__(self, run: str, *, output: Console | None = None, clock: Clock | None = None) -> None:
        self._run = run
        self._console = output or console(stderr=True)
        self._clock = clock or SystemClock()
        self._live: Live | None = None
        self._next_line = 0.0
        self._phase = ""

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(console=self._console, refresh_per_second=4, transient=False)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, progress: Progress) -> None:
        if self._live is not None:
            self._live.update(panel(self._run, progress))
            return
        now = self._clock.monotonic()
        if now >= self._next_line or progress.phase != self._phase:
            self._phase = progress.phase
            self._next_line = now + LINE_SECONDS
            self._console.print(Text(line(progress)), soft_wrap=True)


def line(progress: Progress) -> str:
    """One line for a log."""
    kinds = " ".join(f"{kind}={_share(value)}" for kind, value in sorted(progress.success_by_kind.items()))
    waits = sorted({f"{node.role}->{node.waiting_for}" for node in progress.nodes if node.waiting_for})
    budget = f" budget={_share(progress.budget_fraction)}" if progress.budget_fraction is not None else ""
    return cell(
        f"{progress.phase:<10} {progress.seconds:6.0f}s{budget} episodes={progress.episodes} aborted={progress.aborted} "
        f"ingested={progress.ingested}/{progress.collected} success={_share(progress.success)}{f' ({kinds})' if kinds else ''} version={progress.version} "
        f"staleness={_number(progress.staleness_mean)} nodes={_alive(progress)}/{len(progress.nodes)}"
        f"{f' waits: {chr(44).join(waits)}' if waits else ''}"
    ).plain


def panel(run: str, progress: Progress) -> RenderableType:
    """All of it, for a terminal."""
    facts = Table.grid(padding=(0, 3))
    for _ in range(4):
        facts.add_column()
    facts.add_row(
        _fact("episodes", progress.episodes),
        _fact("aborted", progress.aborted),
        _fact("success", _share(progress.success)),
        _fact("time", f"{progress.seconds:.0f} s"),
    )
    facts.add_row(
        _fact("version", progress.version),
        _fact("published", progress.versions),
        _fact("staleness", _number(progress.staleness_mean)),
        _fact("judged / ingested", f"{progress.evaluated} / {progress.ingested} of {progress.collected}"),
    )
    parts: list[RenderableType] = [facts]
    if progress.budget_fraction is not None:
        parts.append(ProgressBar(total=1.0, completed=min(progress.budget_fraction, 1.0)))
    if progress.success_by_kind:
        kinds = [{"task": kind, "success": _share(value)} for kind, value in sorted(progress.success_by_kind.items())]
        parts += [Text(), table(("task", "success"), kinds)]
    if progress.nodes:
        nodes = [
            {
                "node": node.node,
                "role": node.role,
                "state": node.state,
                "waits for": node.waiting_for,
                "version": node.version,
                "restarts": node.restarts,
            }
            for node in progress.nodes
        ]
        parts += [Text(), table(("node", "role", "state", "waits for", "version", "restarts"), nodes)]
    if progress.lag:
        parts += [Text(), _fact("lag", ", ".join(f"{name} {lag}" for name, lag in progress.lag.items()))]
    return Panel(Group(*parts), title=Text(f"{run}: {progress.phase}"), title_align="left")


def _fact(name: str, value: object) -> Text:
    return Text.assemble((f"{name} ", "dim"), cell(str(value)))


def _alive(progress: Progress) -> int:
    return sum(node.state != "stopped" for node in progress.nodes)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
