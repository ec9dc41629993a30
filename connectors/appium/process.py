"""Processes of this machine that were started with a certain argument. Used to be rid of a browser that hangs.

Appium ends no browser that is frozen, and a process id alone may belong to another program by now or to another
machine. An argument that only our process can have (a fresh folder's name) proves which one it is. Reads ``/proc``: where
there is none, nothing is found.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

PROC = Path("/proc")


def processes_with(argument: str) -> list[int]:
    """Ids of the living processes that have exactly this argument on their command line; zombies have none."""
    wanted = os.fsencode(argument)
    found = []
    for entry in PROC.glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if wanted in entry.read_bytes().split(b"\0"):
                found.append(int(entry.parent.name))
    return [pid for pid in found if pid != os.getpid()]


def kill_processes_with(argument: str) -> None:
    """SIGKILL to each of them: one that is stopped or frozen does not act on anything less."""
    for pid in processes_with(argument):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
