"""Each reader of foreign bytes on some thousand inputs that are nearly right: it reads or refuses, in bounded time and memory.

The same inputs at every run. ``make fuzz`` feeds more.
"""

from __future__ import annotations

import importlib.util
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "fuzz"
sys.path.append(str(TOOL))

from mutation import mutated  # noqa: E402
from target import TARGETS  # noqa: E402

pytestmark = pytest.mark.timeout(300)
SLOW = {"foreign-schema": 600, "weights": 300, "manifest": 300, "outbox": 300}
NEEDS_TORCH = ("weights", "learner-state")


@pytest.mark.parametrize(
    "target", [pytest.param(name, marks=[pytest.mark.torch] if name in NEEDS_TORCH else []) for name in TARGETS]
)
def test_a_reader_reads_or_refuses(target: str) -> None:
    count = SLOW.get(target, 1500)
    command = [sys.executable, str(TOOL), "--target", target, "--inputs", str(count)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    cells = [cell.strip() for cell in done.stdout.splitlines()[2].strip("|").split("|")]
    assert cells[:2] == [target, f"{count:,}"]
    read, refused = (int(cell.replace(",", "")) for cell in cells[2:4])
    assert read > 0
    assert read + refused == count
    assert refused > 0 or target == "ledger", "torn lines of a ledger are passed over, all others can be refused"


FAULTY = f"""
import os, runpy, signal, sys
sys.path.insert(0, {str(TOOL)!r})
import target
from distrl.core.errors import CodecError

def feed(data, source):
    if data == b"seed":
        return
    chance = source.random()
    if chance < 0.02:
        raise KeyError("not promised")
    if chance < 0.04:
        raise CodecError("too large") from MemoryError()
    if chance < 0.06:
        os.kill(os.getpid(), signal.SIGSEGV)
    while chance < 0.08:
        pass
    raise CodecError("refused")

target.TARGETS = {{"codec": lambda folder: target.Target([b"seed"], feed)}}
runpy.run_path({str(TOOL / "worker.py")!r}, run_name="__main__")
"""


def test_every_kind_of_failure_is_told_and_the_rest_is_fed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that raises, takes memory, crashes and hangs, each at inputs that the seed decides."""
    worker = tmp_path / "worker.py"
    worker.write_text(FAULTY, encoding="utf-8")
    tool = _tool()
    monkeypatch.setattr(tool, "WORKER", worker)
    row, faults = tool.fuzz("codec", 0, 0, 60)
    assert {fault["what"] for fault in faults} == {
        "raised what it does not promise",
        "took too much memory",
        "ended its process: signal 11",
        "ended its process: signal 27",
    }
    assert row["inputs"] == 60
    assert row["failed"] >= 3
    for fault in faults:
        _, again = tool.fuzz("codec", 0, fault["number"], 1)
        assert [other["what"] for other in again] == [fault["what"]], "it is found again by its number"


def test_the_tool_knows_every_target() -> None:
    assert tuple(TARGETS) == _tool().TARGETS


def test_inputs_are_the_same_wherever_they_run() -> None:
    seeds = [b"some seed", b"another"]
    once = [mutated(seeds, random.Random(f"0 codec {number}")) for number in range(200)]
    assert once == [mutated(seeds, random.Random(f"0 codec {number}")) for number in range(200)]
    assert len(set(once)) > 150


def _tool() -> Any:
    """The tool's main module, which is made to be run."""
    spec = importlib.util.spec_from_file_location("fuzz_main", TOOL / "__main__.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
