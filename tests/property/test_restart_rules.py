"""When a dead node is started again and when it is given up: the rules, against a history of deaths told in plain words."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distrl.core.errors import (
    ConfigError,
    DistrlError,
    FencedError,
    MissingServiceError,
    RunFailedError,
    StarvedError,
)
from distrl.core.runtime import process as rules
from distrl.core.runtime.process import NodeProcess
from distrl.testing import ManualClock

PATIENCE_S = 60.0
LIVES = st.sampled_from([0.0, 1.0, 14.0, rules.STABLE_S, 100.0])
"""Seconds that a node lived."""
DEATHS = st.sampled_from(["crash", "killed", "config", "service", "starved", "fenced", "clean"])
CODES = {"crash": 4, "killed": -9, "config": 2, "service": 3, "starved": 4, "fenced": 4, "clean": 0}
WORDS = {"starved": f"error [{StarvedError.code}]: x", "fenced": f"error [{FencedError.code}]: x"}


class Ended:
    """A process that has ended."""

    def __init__(self, code: int) -> None:
        self.returncode = code

    def poll(self) -> int:
        return self.returncode


def fates(deaths: list[tuple[str, float]]) -> list[type[DistrlError] | str]:
    """What each death leads to, by the rules as people are told them; ends where the node is given up."""
    found: list[type[DistrlError] | str] = []
    in_a_row, starved, fenced, stable_at, now = 0, 0, 0, None, 0.0
    for what, lived in deaths:
        now += lived
        if lived >= rules.STABLE_S:
            in_a_row, stable_at = 0, now
        in_a_row += 1
        if what == "fenced":
            fenced = fenced + 1 if lived < rules.FENCED_S else 1
            found.append("finished" if fenced >= rules.FENCED_IN_A_ROW else "again")
        elif what == "config":
            found.append(ConfigError)
        elif what == "service":
            was_well = stable_at is not None and now - stable_at < PATIENCE_S
            found.append("again" if was_well or in_a_row < rules.DEATHS_IN_A_ROW else MissingServiceError)
        else:
            starved = starved + 1 if what == "starved" else 0
            given_up = in_a_row >= rules.DEATHS_IN_A_ROW or starved >= rules.STARVED_IN_A_ROW
            found.append(RunFailedError if given_up else "again")
        if found[-1] != "again":
            break
        now += pause(in_a_row)
    return found


def pause(deaths: int) -> float:
    """Seconds before a start: twice as long each time, up to a bound."""
    return float(min(rules.RESTART_S * 2 ** (deaths - 1), rules.RESTART_MOST_S))


@given(st.lists(st.tuples(DEATHS, LIVES), min_size=1, max_size=12))
def test_a_node_is_started_again_as_long_as_the_rules_say(deaths: list[tuple[str, float]]) -> None:
    clock, starts = ManualClock(), list[float]()
    with tempfile.TemporaryDirectory() as name:
        output = Path(name) / "node.txt"

        class Node(NodeProcess):
            """Starts nothing: it dies as the history says."""

            def start(self, *extra: str) -> None:
                what, lived = deaths[len(starts)]
                starts.append(clock.monotonic())
                self._started = clock.monotonic()
                clock.advance(lived)
                output.write_text(WORDS.get(what, "a last word"))
                ended: Any = Ended(CODES[what])
                self._process = ended

        node = Node("n-0", "collector", (), output, {}, clock, PATIENCE_S)
        for number, fate in enumerate(fates(deaths)):
            node.start() if number == 0 else wait(node, clock, starts, number)
            assert len(starts) == number + 1
            died = clock.monotonic()
            if isinstance(fate, type):
                with pytest.raises(fate):
                    node.watch()
                return
            node.watch()
            assert fate == ("finished" if node.finished else "again")
            if number + 1 < len(deaths) and fate == "again":
                assert node._due - died <= rules.RESTART_MOST_S
            if number + 1 == len(deaths) or node.finished:
                break
        if node.finished:
            clock.advance(1000.0)
            node.watch()
            assert len(starts) <= len(deaths), "it is not started any more"
        assert node.restarts == len(starts) - 1


def wait(node: NodeProcess, clock: ManualClock, starts: list[float], number: int) -> None:
    """Until the node's pause is over, and not a moment less."""
    clock.advance(max(0.0, node._due - clock.monotonic() - 0.001))
    node.watch()
    assert len(starts) == number, "it was started before its pause was over"
    clock.advance(0.001 + (node._due - clock.monotonic()))
    node.watch()


def test_a_demonstrator_that_has_done_its_work_is_not_started_again() -> None:
    with tempfile.TemporaryDirectory() as name:
        node = NodeProcess("d", "collector", ("-c", "pass"), Path(name) / "o", {}, ManualClock(), PATIENCE_S, once=True)
        ended: Any = Ended(0)
        node._process = ended
        node.watch()
        assert node.finished
        node.watch()
        assert node.pid is None
