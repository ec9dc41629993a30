"""The supervisor's hold on one node: restarted when it dies, given up when it cannot live, ended by its own pid."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from distrl.core.errors import ConfigError, MissingServiceError, RunFailedError
from distrl.core.runtime import process as process_module
from distrl.core.runtime.process import FENCED_S, STABLE_S, NodeProcess
from distrl.testing import ManualClock


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], NodeProcess]:
    """A node whose program is a shell script: what matters here is how it ends."""

    def build(script: str, *, once: bool = False) -> NodeProcess:
        program = tmp_path / "program"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setattr(process_module.sys, "executable", str(program))
        return NodeProcess(
            node_id="node-0",
            role="evaluator",
            arguments=["--role", "evaluator"],
            output=tmp_path / "node.out",
            environment=dict(os.environ),
            clock=ManualClock(),
            patience_s=120.0,
            once=once,
        )

    return build  # type: ignore[return-value]


def ended(node: NodeProcess) -> None:
    deadline = time.monotonic() + 30.0
    while node.running:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def die_in_a_row(node: NodeProcess, times: int) -> None:
    """Let it die and be restarted ``times`` times."""
    clock = node.clock
    assert isinstance(clock, ManualClock)
    node.start()
    for _ in range(times):
        ended(node)
        node.watch()
        clock.advance(15.0)
        node.watch()


def test_one_that_died_is_started_again_after_a_pause(make: Callable[[str], NodeProcess]) -> None:
    node = make("exit 4")
    node.start()
    ended(node)
    node.watch()
    node.watch()
    assert node.restarts == 0
    assert isinstance(node.clock, ManualClock)
    node.clock.advance(15.0)
    node.watch()
    assert node.restarts == 1
    node.kill()


def test_one_that_keeps_dying_ends_the_run_with_its_last_words(make: Callable[[str], NodeProcess]) -> None:
    node = make("echo the dog ate it; exit 4")
    with pytest.raises(RunFailedError, match="the dog ate it"):
        die_in_a_row(node, 6)


def test_a_bad_configuration_ends_the_run_at_once(make: Callable[[str], NodeProcess]) -> None:
    node = make("echo unknown key; exit 2")
    with pytest.raises(ConfigError, match="unknown key"):
        die_in_a_row(node, 1)


def test_a_service_that_never_was_there_ends_the_run(make: Callable[[str], NodeProcess]) -> None:
    node = make("echo no broker; exit 3")
    with pytest.raises(MissingServiceError, match="no broker"):
        die_in_a_row(node, 6)


def test_a_service_that_is_away_for_a_while_does_not(make: Callable[[str], NodeProcess]) -> None:
    node = make("exit 3")
    assert isinstance(node.clock, ManualClock)
    node.start()
    node.clock.advance(STABLE_S)
    for _ in range(7):
        ended(node)
        node.watch()
        node.clock.advance(11.0)
        node.watch()
    assert node.restarts >= 6
    node.kill()
    with pytest.raises(MissingServiceError):
        die_in_a_row(node, 8)


def test_a_demonstrator_that_is_done_stays_done(make: Callable[..., NodeProcess]) -> None:
    node = make("exit 0", once=True)
    node.start()
    ended(node)
    node.watch()
    assert node.finished
    node.watch()
    assert node.restarts == 0


def test_kill_takes_what_the_node_had_started(make: Callable[[str], NodeProcess], tmp_path: Path) -> None:
    node = make(f"sleep 300 & echo $! > {tmp_path}/child; wait")
    node.start()
    deadline = time.monotonic() + 30.0
    while not (tmp_path / "child").exists() or not (tmp_path / "child").read_text().strip():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    child = int((tmp_path / "child").read_text())
    node.kill()
    assert not node.running
    while Path(f"/proc/{child}/stat").exists() and Path(f"/proc/{child}/stat").read_text().split()[2] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_wait_that_found_its_end_twice_ends_the_run(make: Callable[[str], NodeProcess]) -> None:
    node = make("echo 'error [DISTRL-700]: waited 120 s in vain: no collector is alive'; exit 4")
    assert isinstance(node.clock, ManualClock)
    node.start()
    node.clock.advance(STABLE_S * 6)
    ended(node)
    node.watch()
    node.clock.advance(15.0)
    node.watch()
    node.clock.advance(STABLE_S * 6)
    ended(node)
    with pytest.raises(RunFailedError, match="no collector is alive"):
        node.watch()


def test_one_that_is_replaced_again_and_again_leaves_it_to_the_other(make: Callable[[str], NodeProcess]) -> None:
    node = make("echo 'error [DISTRL-304]: another process has joined as node-0'; exit 4")
    clock = node.clock
    assert isinstance(clock, ManualClock)

    def lives(seconds: float) -> None:
        clock.advance(seconds)
        ended(node)
        node.watch()
        clock.advance(15.0)
        node.watch()

    node.start()
    lives(1.0)
    assert (node.restarts, node.finished) == (1, False)  # once may be an accident
    lives(FENCED_S)
    assert (node.restarts, node.finished) == (2, False)
    lives(STABLE_S)
    assert (node.restarts, node.finished) == (2, True)
