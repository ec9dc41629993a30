"""Each reader of foreign bytes on some thousand inputs that are nearly right: it reads or refuses, in bounded time and memory.

The same inputs at every run. ``make fuzz`` feeds more.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "fuzz"
sys.path.append(str(TOOL))

from mutation import mutated  # noqa: E402
from target import TARGETS, Target  # noqa: E402

SLOW = {"foreign-schema": 600, "weights": 300, "manifest": 300, "outbox": 300}
NEEDS_TORCH = ("weights", "learner-state")


@pytest.mark.parametrize(
    "target",
    [pytest.param(name, marks=[pytest.mark.torch] if name in NEEDS_TORCH else []) for name in TARGETS],
)
def test_a_reader_reads_or_refuses(target: str) -> None:
    count = SLOW.get(target, 1500)
    command = [sys.executable, str(TOOL), "--target", target, "--inputs", str(count)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    cells = [cell.strip() for cell in done.stdout.splitlines()[2].strip("|").split("|")]
    assert cells[:2] == [target, f"{count:,}"]
    read, refused = (int(cell.replace(",", "")) for cell in cells[2:4])
    assert read > 0
    assert read + refused == count
    assert refused > 0 or target == "ledger", "torn lines of a ledger are passed over, all others can be refused"


def test_the_tool_knows_every_target() -> None:
    done = subprocess.run([sys.executable, str(TOOL), "--help"], capture_output=True, text=True, timeout=60, check=True)
    assert "{" + ",".join(TARGETS) + "}" in done.stdout.replace("\n", "").replace(" ", "")


FAULTY = """
import os, random, time, signal
from pathlib import Path
import target
from distrl.core.errors import CodecError

def feed(data, source):
    chance = source.random()
    if chance < 0.01:
        raise KeyError("undeclared")
    if chance < 0.015:
        raise CodecError("big") from MemoryError()
    if chance < 0.02:
        os.kill(os.getpid(), signal.SIGSEGV)
    if chance < 0.025:
        while True:
            pass
    raise CodecError("refused")

target.TARGETS = {"codec": lambda folder: target.Target([b"seed"], lambda data, source: data == b"seed" or feed(data, source))}
import runpy, sys
runpy.run_path(sys.argv[1], run_name="__main__")
"""


def test_every_kind_of_failure_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that raises, takes memory, hangs and crashes: the tool tells each, by the input's number, and goes on."""
    import importlib.util

    worker = tmp_path / "worker.py"
    text = (
        (TOOL / "worker.py").read_text(encoding="utf-8").replace("PROCESSOR_SECONDS = 2.0", "PROCESSOR_SECONDS = 0.2")
    )
    (tmp_path / "real.py").write_text(text, encoding="utf-8")
    head = f"import sys\nsys.path.insert(0, {str(TOOL)!r})\nsys.argv.insert(1, {str(tmp_path / 'real.py')!r})\n"
    worker.write_text(
        head
        + FAULTY.replace("import runpy, sys", "import runpy\nreal = sys.argv.pop(1)\nsys.argv[0] = real").replace(
            "sys.argv[1], run_name", "real, run_name"
        )
    )
    spec = importlib.util.spec_from_file_location("fuzz_main", TOOL / "__main__.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    monkeypatch.setattr(tool, "WORKER", worker)
    row, faults = tool.fuzz("codec", 0, 0, 600)
    assert {fault["what"] for fault in faults} == {
        "raised what it does not promise",
        "took too much memory",
        "ended its process: signal 11",
        "ended its process: signal 27",
    }, faults
    assert row["inputs"] == 600
    assert all(0 <= fault["number"] < 600 for fault in faults)
    assert json.dumps(faults)


def test_inputs_are_the_same_wherever_they_run() -> None:
    import random

    seeds: list[bytes] = [b"some seed", b"another"]
    once = [mutated(seeds, random.Random(f"0 codec {number}")) for number in range(200)]
    again = [mutated(seeds, random.Random(f"0 codec {number}")) for number in range(200)]
    assert once == again
    assert len(set(once)) > 150
    assert issubclass(Target, object)
