"""A server that the tests start ends with its owner, even if the owner is killed."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

OWNER = """
import sys, time
from pathlib import Path
from server import Server

class Sleeper(Server):
    def prepare(self): pass
    def command(self): return ["sleep", "300"]
    def answers(self): return True

print(Sleeper(Path(sys.argv[1])).start().pid, flush=True)
time.sleep(300)
"""


def test_a_killed_owner_takes_its_server_with_it(tmp_path: Path) -> None:
    compose = Path(__file__).resolve().parents[2] / "compose"
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)], cwd=compose, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        server = owner.stdout.readline().strip()
        assert command_line(server) == b"sleep\x00300\x00"
        owner.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 20
    while command_line(server):
        assert time.monotonic() < deadline, "the server outlives its owner"
        time.sleep(0.05)


def command_line(pid: str) -> bytes:
    """Empty for a process that is gone, and for a zombie, which nothing but process 1 may reap."""
    try:
        return Path("/proc", pid, "cmdline").read_bytes()
    except OSError:
        return b""
