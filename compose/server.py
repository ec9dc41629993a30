"""One server process on this machine: started, waited for, broken on purpose, ended. Used by the tests and ``stack.py``.

A subclass says what to run and how to tell that it answers. Every process is the leader of its own process
group, and only that group is ever signalled. An attached server (the default) ends with its owner however the owner
ends: a guard process holds a pipe from the owner and kills the group when the pipe closes. A detached one
outlives its owner, and ``stack.py down`` ends it by the pid and start time that ``up`` wrote down.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

HOST = "127.0.0.1"
_PROBE_SECONDS = 0.1


class ServerError(RuntimeError):
    """A server cannot be brought up; the message says what is missing or shows the end of its log."""


class Server(ABC):
    """One server process. States: not running, running, paused. Not safe for use by several threads.

    ``state_dir`` is the server's own folder: its data, configuration and ``server.log``. Nothing here removes it; whoever
    chose it does (``tmp_path`` of a test, ``stack.py down``).
    """

    name = "server"
    start_seconds = 60.0
    """Longest time from start to the first answer."""

    def __init__(self, state_dir: Path, *, port: int | None = None, detached: bool = False) -> None:
        """``port``: where it listens on 127.0.0.1; a free one if not given. It keeps the port over restarts."""
        self.state_dir = state_dir
        self.port = free_port() if port is None else port
        self.detached = detached
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    # --- what a subclass says ---------------------------------------------------------------------

    @abstractmethod
    def prepare(self) -> None:
        """Get programs and write configuration into ``state_dir``. Called before every start; keeps data that is there."""

    @abstractmethod
    def command(self) -> Sequence[str]:
        """What to run, in the foreground."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether the server can do its work now. Returns within about a second and raises nothing."""

    def environment(self) -> Mapping[str, str]:
        """Environment variables on top of this process's own."""
        return {}

    # --- what a user calls ------------------------------------------------------------------------

    @property
    def address(self) -> str:
        """``host:port``."""
        return f"{HOST}:{self.port}"

    @property
    def log(self) -> Path:
        return self.state_dir / "server.log"

    @property
    def pid(self) -> int:
        """Process id, also that of the process group. Raises ``ServerError`` when it is not running."""
        if self._process is None:
            raise ServerError(f"{self.name} is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        """Start it and wait until it answers. Raises ``ServerError`` if it ends or stays silent instead."""
        if self.running:
            return self
        self._reap()
        self.state_dir.mkdir(parents=True, exist_ok=True)
        self.prepare()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                list(self.command()),
                cwd=self.state_dir,
                env={**os.environ, **self.environment()},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        if not self.detached:
            self._guard = _guard(self._process.pid)
        try:
            self._wait_until_it_answers(self._process)
        except BaseException:
            self.kill()
            raise
        return self

    def stop(self, timeout_s: float = 20.0) -> None:
        """End it in order (SIGTERM), and by force after ``timeout_s`` seconds. Idempotent."""
        if self.running:
            self._signal(signal.SIGCONT)
            self._signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                assert self._process is not None
                self._process.wait(timeout_s)
        self.kill()

    def kill(self) -> None:
        """SIGKILL the whole process group, as a crash would. Idempotent."""
        self._signal(signal.SIGKILL)
        self._reap()

    def restart(self) -> Self:
        """Stop it if it runs, then start it on the same port and data."""
        self.stop()
        return self.start()

    def pause(self) -> None:
        """SIGSTOP: connections stay open, nothing is answered."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT after ``pause``."""
        self._signal(signal.SIGCONT)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    # --- inside -----------------------------------------------------------------------------------

    def _wait_until_it_answers(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + self.start_seconds
        while not self.answers():
            if process.poll() is not None:
                raise ServerError(
                    f"{self.name} ended with status {process.returncode} while starting:\n{self.log_tail()}"
                )
            if time.monotonic() > deadline:
                raise ServerError(f"{self.name} does not answer after {self.start_seconds:.0f} s:\n{self.log_tail()}")
            time.sleep(_PROBE_SECONDS)

    def log_tail(self, lines: int = 20) -> str:
        """The end of the server's log."""
        with contextlib.suppress(OSError):
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        return "(no log)"

    def _signal(self, number: int) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def _reap(self) -> None:
        if self._process is not None:
            self._process.wait()
            self._process = None
        if self._guard is not None:
            self._guard.kill()
            self._guard.wait()
            assert self._guard.stdin is not None
            self._guard.stdin.close()
            self._guard = None


def _guard(group: int) -> subprocess.Popen[bytes]:
    """A process that kills ``group`` when this process is gone: ``read`` returns once the pipe's other end closes."""
    return subprocess.Popen(
        ["/bin/sh", "-c", f"read -r _; kill -s KILL -- -{group} 2>/dev/null"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def free_port() -> int:
    """A TCP port of 127.0.0.1 on which nothing listens now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def port_is_free(port: int) -> bool:
    """Whether a server could listen on this port of 127.0.0.1 now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def port_answers(port: int) -> bool:
    """Whether something accepts connections on this port of 127.0.0.1."""
    try:
        socket.create_connection((HOST, port), timeout=0.5).close()
    except OSError:
        return False
    return True


def write_private(path: Path, content: str) -> None:
    """Write what only this user may read: credentials are in it."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(content)
