"""``python tools/fuzz``: feeds every reader of foreign bytes with inputs that are nearly right, and says which of them fail.

    make fuzz ARGS='--inputs 1000000 --target codec'

A reader fails when it raises what it does not promise, takes more than 2 s of a processor or 512 MiB for one input, or ends the
process. Each target runs in a process of its own. Input number N of a seed is always the same, so a failure is found again with
``--first N --inputs 1``. Ends with exit code 1 if anything failed.
"""

from __future__ import annotations

import argparse
import json
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

WORKER = Path(__file__).parent / "worker.py"
TARGETS = (
    "codec", "foreign-schema", "headers", "config", "action", "ui-tree", "hierarchy", "weights", "learner-state", "manifest", "outbox",
    "ledger",
)  # fmt: skip
"""Of ``target``, which imports all that it feeds; a test holds the two together."""
STALL_SECONDS = 600.0
"""A worker whose process sleeps for ever takes no processor time: this ends it."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="fuzz", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--target", action="append", choices=TARGETS, help="which reader; all without it. May be repeated."
    )
    parser.add_argument("--inputs", type=int, default=2000, help="for each target (default 2000)")
    parser.add_argument("--seed", type=int, default=0, help="other inputs (default 0)")
    parser.add_argument("--first", type=int, default=0, help="number of the first input (default 0)")
    options = parser.parse_args()
    rows, faults = [], list[dict[str, Any]]()
    for target in options.target or TARGETS:
        row, found = fuzz(target, options.seed, options.first, options.inputs)
        rows.append(row)
        faults += found
    print(table(rows))  # noqa: T201
    for fault in faults:
        print(json.dumps(fault))  # noqa: T201
    return 1 if faults else 0


def fuzz(target: str, seed: int, first: int, count: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Feed one target ``count`` inputs, over as many processes as that takes; its row of the table and its faults."""
    ends: Counter[str] = Counter()
    faults: list[dict[str, Any]] = []
    seconds, peak, number = 0.0, 0, first
    while number < first + count:
        with tempfile.TemporaryDirectory(prefix="distrl-fuzz-", dir=_memory()) as name:
            at = Path(name) / f"{target}.at"
            at.write_bytes(struct.pack("<q", number))
            folder = Path(name) / "work"
            folder.mkdir()
            rest = first + count - number
            command = [sys.executable, str(WORKER), target, str(seed), str(number), str(rest), str(folder)]
            code, out, err = _run(command, STALL_SECONDS + rest * 0.05)
            for line in map(json.loads, out.splitlines()):
                if "fault" in line:
                    faults.append(line["fault"])
                else:
                    ends.update(line["ends"])
                    seconds, peak = seconds + line["seconds"], max(peak, line["peak_kb"])
            if code == 0:
                break
            (stopped,) = struct.unpack("<q", at.read_bytes())
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        faults.append({"target": target, "number": stopped, "what": f"ended its process: {how}", "error": err[-300:]})
        ends.update({"unknown": stopped - number, "FAILED": 1})
        if stopped < number or len(faults) > 20 or code > 0:
            break  # it does not even start
        number = stopped + 1
    taken = sum(ends.values())
    row = {"target": target, "inputs": taken, "read": ends.pop("read", 0), "failed": ends.pop("FAILED", 0)}
    del ends["unknown"]
    row |= {
        "refused": sum(ends.values()),
        "per s": round(taken / seconds) if seconds else 0,
        "peak MB": round(peak / 1024),
    }
    return row, faults


def _run(command: list[str], seconds: float) -> tuple[int, str, str]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
    return process.returncode, out, err


def _memory() -> str | None:
    """A place in memory for the files that targets write, where the system has one."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def table(rows: list[dict[str, Any]]) -> str:
    """The rows in Markdown."""
    names = ("target", "inputs", "read", "refused", "failed", "per s", "peak MB")
    lines = [f"| {' | '.join(names)} |", f"| --- |{' ---: |' * (len(names) - 1)}"]
    lines += [
        f"| {' | '.join(f'{row[name]:,}' if name != 'target' else row[name] for name in names)} |" for row in rows
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
