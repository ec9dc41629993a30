"""What the command line shows: tables, live progress and status, with text from events made harmless."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.console import Console, RenderableType

from distrl.core.cli.live import ProgressView, line
from distrl.core.cli.status import render, status, summary
from distrl.core.cli.table import plain, show, table
from distrl.core.contracts.bus import Record
from distrl.core.contracts.events import Blob, Envelope, Metrics, NodeStatus, WeightsUpdate
from distrl.core.runtime.history import RunHistory
from distrl.core.runtime.liveness import Signs
from distrl.core.runtime.progress import NodeLine, Progress
from distrl.testing import ManualClock

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


class Run:
    """A run as ``distrl status`` sees it."""

    def __init__(self) -> None:
        self.clock = ManualClock(T0)
        self.history = RunHistory("demo")
        self.signs = Signs(self.clock)
        self.signs.follow({})

    def node(self, name: str, role: str, *, waits_for: str = "", version: int = 0, **facts: Any) -> None:
        status = NodeStatus(
            Envelope(name, "demo", name, T0), role, "plugin", "running", "i", "h", 1, T0, 1000, 1, version, waits_for,  # type: ignore[arg-type]
            **facts,
        )  # fmt: skip
        self.history.add("nodes", status, T0)
        self.signs.heard(Record("distrl.demo.nodes", 0, 0, self.clock.time_ms(), name.encode(), b""), status)

    def metrics(self, name: str, role: str, values: dict[str, float]) -> None:
        event = Metrics(Envelope(f"m {name}", "demo", name, T0), role, 1000, values)  # type: ignore[arg-type]
        self.history.add("metrics", event, T0)

    def status(self) -> dict[str, Any]:
        return status(self.history, self.signs, self.clock.time_ms())


def test_status_says_who_waits_for_whom_and_who_is_missing() -> None:
    run = Run()
    run.node("l0", "learner")
    run.clock.advance(60.0)
    run.node("c0", "collector", waits_for="allowance", version=3, http="127.0.0.1:4000")
    run.node("c1", "collector", waits_for="allowance", version=4, missing="no learner is alive", ready=False)
    run.node("c2", "collector", version=4)
    weights = WeightsUpdate(Envelope("w", "demo", "l0", T0), "p", 1, 4, 0, Blob("x", 1, "0" * 64), ingested=64)
    run.history.add("weights", weights, T0)
    run.metrics(
        "c0", "collector", {"busy_share": 0.5, "lag.weights-latest": 2, "queue_age_ms": 1500, "in_flight_records": 3}
    )
    state = run.status()
    assert state["waits"] == [{"role": "collector", "waits_for": "allowance", "nodes": 2}]
    assert state["versions_in_use"] == {"3": 1, "4": 2}
    nodes = {node["node"]: node for node in state["nodes"]}
    assert {name: (node["state"], node["ready"]) for name, node in nodes.items()} == {
        "c0": ("running", True),
        "c1": ("running", False),
        "c2": ("running", True),
        "l0": ("dead", False),
    }
    assert nodes["c0"]["http"] == "127.0.0.1:4000"
    assert state["missing"] == [{"node": "c1", "missing": "no learner is alive"}]
    assert state["lag"] == {"collector weights-latest": 2}
    assert state["queue_age"] == {"collector": 1.5}
    assert state["in_flight"] == {"collector": {"records": 3, "bytes": 0}}
    assert state["busy"] == {"collector": 0.5}
    text = shown(render(json.loads(json.dumps(state)), 160))
    for fact in ("collector for allowance (2)", "version 4 (epoch 1)", "c1 misses", "3 by 1 collector (1 behind)"):
        assert fact in text
    assert (
        "No learner is alive; of 3 collectors 1 works, 2 wait for the learner's leave to start episodes; "
        "no evaluator is alive; no prioritizer is alive."
    ) in text


def test_status_of_a_run_that_nobody_has_joined() -> None:
    text = shown(render(Run().status(), 160))
    assert "no node has shown itself" in text
    assert "No node is alive." in text


@pytest.mark.parametrize("width", [60, 80, 104, 130])
def test_status_fits_its_terminal_and_leaves_nothing_out(width: int) -> None:
    run = Run()
    for role in ("collector", "evaluator", "prioritizer", "learner"):
        run.node(
            f"{role}-0", role, waits_for="demonstrations", version=12345, http="127.0.0.1:34567", missing="word " * 40
        )
    output = io.StringIO()
    Console(file=output, width=width, markup=False).print(render(run.status(), width))
    lines = output.getvalue().splitlines()
    assert max(len(line) for line in lines) <= width
    text = " ".join(output.getvalue().split())
    if width >= 80:
        for fact in ("prioritizer-0", "demonstrations", "127.0.0.1:34567", "12345"):
            assert fact in text
        assert "\u2026" not in text
    assert text.count("word") == 160


def test_status_says_what_each_side_does() -> None:
    def one(role: str, waits_for: str = "") -> NodeStatus:
        return NodeStatus(Envelope("e", "r", role, T0), role, "p", "running", "i", "h", 1, T0, 1000, 1, 1, waits_for)  # type: ignore[arg-type]

    rest = [one("evaluator"), one("prioritizer")]
    assert summary([one("learner", "verdicts"), one("collector"), *rest]) == (
        "The learner waits for the evaluators' verdicts; the collector works."
    )
    assert summary([one("learner"), one("collector", "weights"), one("collector", "weights"), *rest]) == (
        "The learner works; 2 collectors wait for the learner's weights."
    )


@pytest.mark.parametrize("width", [30, 50, 80])
def test_a_table_leaves_nothing_out_where_there_is_no_room(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    rows = [
        {"topic": "distrl.a-run.weights-latest", "state": "as declared", "objects": 12345, "message": "free text " * 5}
    ]
    show(("topic", "state", "objects", "message"), rows, as_json=False)
    printed = "".join(capsys.readouterr().out.split())
    for character in "distrl.a-run.weights-latestasdeclared12345" + "freetext" * 5:
        assert printed.count(character) >= 1
    assert (
        sum(map(len, printed.split()))
        == len("topicstateobjectsmessage" + "distrl.a-run.weights-latestasdeclared12345") + 40
    )
