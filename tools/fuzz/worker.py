"""Feeds one target, in a process of its own with bounds on time and memory. Started by the tool, ``fuzz``.

    python worker.py TARGET SEED FIRST COUNT FOLDER

Prints one JSON line for each way in which the target failed, and at the end how many inputs it took and how they ended. Input
number N of a seed is the same wherever it runs. The number in hand stands in ``FOLDER/../<target>.at``: what is killed there, by
the processor-time limit or by a crash of native code, is found again from it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import mmap
import random
import resource
import signal
import struct
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import structlog
from mutation import mutated
from target import TARGETS

PROCESSOR_SECONDS = 2.0
"""Of one input; SIGPROF's default action ends the process."""
MEMORY_BYTES = 512 * 1024 * 1024
"""Of address space, over what the target takes before its first input."""
EXAMPLES = 20
"""Different failures that are told."""


def main(name: str, seed: int, first: int, count: int, folder: Path) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    target = TARGETS[name](folder)
    for data in target.seeds:  # imports and caches come before the bound
        with contextlib.suppress(*target.expected):
            target.feed(data, random.Random(0))
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES, resource.RLIM_INFINITY))
    ends: Counter[str] = Counter()
    told: set[str] = set()
    began = time.monotonic()
    with (folder.parent / f"{name}.at").open("r+b") as file, mmap.mmap(file.fileno(), 8) as at:
        for number in range(first, first + count):
            at[:] = struct.pack("<q", number)
            source = random.Random(f"{seed} {name} {number}")
            data = mutated(target.seeds, source)
            signal.setitimer(signal.ITIMER_PROF, PROCESSOR_SECONDS)
            try:
                target.feed(data, source)
                ends["read"] += 1
            except target.expected as error:
                ends[type(error).__name__] += 1
                if out_of_memory(error):
                    tell(told, name, number, data, error, "took too much memory")
            except Exception as error:
                ends["FAILED"] += 1
                tell(told, name, number, data, error, "raised what it does not promise")
    signal.setitimer(signal.ITIMER_PROF, 0)
    print_line(
        {
            "ends": ends,
            "seconds": time.monotonic() - began,
            "peak_kb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        }
    )


def out_of_memory(error: BaseException | None) -> bool:
    """Whether a refusal is a full memory in other words."""
    while error is not None:
        if isinstance(error, MemoryError):
            return True
        error = error.__cause__ or error.__context__
    return False


def tell(told: set[str], name: str, number: int, data: bytes, error: Exception, what: str) -> None:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "distrl" in frame.filename] or frames
    where = f"{type(error).__name__} at {Path(own[-1].filename).name}:{own[-1].lineno}"
    if where in told or len(told) >= EXAMPLES:
        return
    told.add(where)
    line = {"target": name, "number": number, "what": what, "where": where, "error": repr(error)[:300]}
    print_line({"fault": line | {"input": data[:2000].hex(), "bytes": len(data)}})


def print_line(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), Path(sys.argv[5]))
