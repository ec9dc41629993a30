"""What the command line shows: tables, live progress and status, with text from events made harmless."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console, RenderableType

from distrl.core.cli.live import ProgressView, line
from distrl.core.cli.status import render, status
from distrl.core.cli.table import plain, show, table
from distrl.core.cli.topics import difference
from distrl.core.contracts.bus import TopicSpec
from distrl.core.contracts.events import Blob, Envelope, Metrics, NodeStatus, WeightsUpdate
from distrl.core.runtime.history import RunHistory
from distrl.core.runtime.progress import NodeLine, Progress

ESCAPE = "\x1b]0;title\x07[bold]x[/bold]"
T0 = 1_790_000_000_000


def shown(item: RenderableType) -> str:
    output = io.StringIO()
    Console(file=output, width=160, markup=False).print(item)
    return output.getvalue()


def progress(phase: str = "training") -> Progress:
    nodes = (NodeLine("c0", "collector", "waiting", "weights", 3, 1), NodeLine("l0", "learner", "running"))
    return Progress(
        phase=phase,  # type: ignore[arg-type]
        seconds=61.0,
        budget_fraction=0.25,
        episodes=120,
        aborted=2,
        success=0.5,
        success_by_kind={ESCAPE: 0.25, "open": 1.0},
        version=7,
        versions=8,
        staleness_mean=1.5,
        nodes=nodes,
        lag={"evaluator trajectories": 4},
    )


class Ticking:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


def test_cells_carry_neither_markup_nor_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(table(("name", "share"), [{"name": ESCAPE, "share": 0.12345}, {"name": None, "share": 2.0}]))
    assert "\x1b" not in text
    assert "[bold]x[/bold]" in text
    assert "0.123" in text
    assert plain("a\u202eb\n") == "a\\u202eb\n"
    show(("a",), [{"a": 1, "hidden": 2}], as_json=True)
    assert json.loads(capsys.readouterr().out) == [{"a": 1, "hidden": 2}]


def test_without_a_terminal_a_line_comes_every_ten_seconds_and_at_each_phase() -> None:
    output, clock = io.StringIO(), Ticking()
    view = ProgressView("demo", output=Console(file=output, width=60), clock=clock)  # type: ignore[arg-type]
    with view:
        for _ in range(25):
            view(progress())
            clock.now += 1.0
        view(progress("draining"))
    lines = output.getvalue().splitlines()
    assert [text.split()[0] for text in lines] == ["training", "training", "training", "draining"]
    assert "\x1b" not in output.getvalue()
    for fact in ("episodes=120", "success=50.0%", "version=7", "waits: collector->weights", "nodes=2/2", "open=100.0%"):
        assert fact in lines[0]


def test_a_terminal_gets_a_panel() -> None:
    output = io.StringIO()
    with ProgressView("demo", output=Console(file=output, width=120, force_terminal=True)) as view:
        view(progress())
    text = output.getvalue()
    assert "demo: training" in text
    assert "\x1b]0;title" not in text
    assert "evaluator trajectories 4" in text


def test_a_line_of_an_empty_run() -> None:
    assert "success=-" in line(Progress("starting", 0.0))


def test_status_says_who_waits_for_whom() -> None:
    history = RunHistory("demo")

    def envelope(name: str, node: str) -> Envelope:
        return Envelope(name, "demo", node, T0)

    for node, waiting, version in (("c0", "allowance", 3), ("c1", "allowance", 4), ("c2", "", 4)):
        history.add(
            "nodes",
            NodeStatus(
                envelope(node, node), "collector", "episodes", "waiting", "i", "h", 1, T0, 1000, 1, version, waiting
            ),
            T0,
        )
    dead = NodeStatus(envelope("l0", "l0"), "learner", "a-ride", "running", "i", "h", 1, T0 - 60_000, 1000)
    history.add("nodes", dead, T0 - 60_000)
    history.add("weights", WeightsUpdate(envelope("w", "l0"), "p", 1, 4, 0, Blob("x", 1, "0" * 64), ingested=64), T0)
    history.add(
        "metrics",
        Metrics(
            envelope("m", "c0"), "collector", 1000, {"busy_share": 0.5, "lag.weights-latest": 2, "queue_age_ms": 1500}
        ),
        T0,
    )
    state = status(history, T0 + 1000)
    assert state["waits"] == [{"role": "collector", "waits_for": "allowance", "nodes": 2}]
    assert state["versions_in_use"] == {"3": 1, "4": 2}
    assert {node["node"]: node["state"] for node in state["nodes"]} == {
        "c0": "waiting",
        "c1": "waiting",
        "c2": "waiting",
        "l0": "dead",
    }
    assert state["lag"] == {"collector weights-latest": 2}
    assert state["queue_age"] == {"collector": 1.5}
    assert state["busy"] == {"collector": 0.5}
    text = shown(render(json.loads(json.dumps(state))))
    assert "collector for allowance (2)" in text
    assert "version 4 (epoch 1)" in text
    assert "no node has shown itself" in shown(render(status(RunHistory("r"), T0)))


def test_a_topic_that_differs_is_named() -> None:
    declared = TopicSpec("t", partitions=4)
    assert difference(declared, None) == "missing"
    assert difference(declared, declared) == "as declared"
    assert difference(declared, TopicSpec("t", partitions=3)) == "partitions 3, declared 4"
