"""One node as a child process of the supervisor: started, watched, restarted, ended by its own pid."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from distrl.core.contracts.clock import Clock
from distrl.core.contracts.events import Role
from distrl.core.errors import ConfigError, FencedError, MissingServiceError, RunFailedError, StarvedError

log = structlog.get_logger(__name__)
OUTPUT_BYTES = 20_000_000
"""A node's output that grows beyond this is set aside; the one before is dropped."""
STABLE_S = 20.0
"""A process that lived this long did not die of its start."""
DEATHS_IN_A_ROW = 5
STARVED_IN_A_ROW = 2
FENCED_IN_A_ROW = 2
"""A node that was replaced this often lives elsewhere; started again for ever, each would end the other for ever."""
FENCED_S = 600.0
"""A node that lived this long was replaced for another reason than the last time."""
RESTART_S = 0.5
RESTART_MOST_S = 10.0


@dataclass(slots=True)
class NodeProcess:
    """A node that should run. Used from one thread."""

    node_id: str
    role: Role
    arguments: Sequence[str]
    """Of ``distrl-node``, without what this adds."""
    output: Path
    """Where its standard output and error go."""
    environment: Mapping[str, str] = field(repr=False)
    clock: Clock
    patience_s: float
    """How long a node that has run well before may fail to start because a service is away."""
    once: bool = False
    """Its orderly end is the end: a demonstrator."""
    restarts: int = 0
    finished: bool = False
    """It is not to run again: it ended in good order, or another process lives by its id."""
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    _started: float = 0.0
    _deaths: int = 0
    _due: float = 0.0
    _starved: int = 0
    _fenced: int = 0
    _stable_until: float | None = None
    """When it was last seen to have run well; ``None`` if never."""

    @property
    def pid(self) -> int | None:
        """Of the running process."""
        return self._process.pid if self.running and self._process is not None else None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, *extra: str) -> None:
        """Start it, in a session of its own: a Ctrl-C on the terminal reaches the supervisor alone."""
        command = [sys.executable, "-m", "distrl.core.cli.node", *self.arguments, "--node-id", self.node_id, *extra]
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=dict(self.environment),
                start_new_session=True,
            )
        self._started = self.clock.monotonic()

    def watch(self) -> None:
        """Restart it if it died, after a pause that grows with deaths in a row.

        Raises ``ConfigError`` or ``MissingServiceError`` when it says that it cannot start as configured, ``RunFailedError``
        when it keeps dying.
        """
        self._bound_output()
        if self.finished or self.running:
            return
        now = self.clock.monotonic()
        if self._process is not None:
            code = self._process.returncode
            self._process = None
            if code == 0 and self.once:
                self.finished = True
                return
            self._died(code, lived=now - self._started)
            self._due = now + min(RESTART_S * 2 ** max(self._deaths - 1, 0), RESTART_MOST_S)
        elif now >= self._due:
            self.restarts += 1
            self.start()

    def _bound_output(self) -> None:
        """Set the output aside when it has grown large. The process appends, so it goes on at the start of the emptied file; its
        messages are in its log file as well, whatever falls between the copy and the cut."""
        with contextlib.suppress(OSError):
            if self.output.stat().st_size > OUTPUT_BYTES:
                shutil.copyfile(self.output, self.output.with_suffix(".out.1"))
                os.truncate(self.output, 0)

    def ask_to_stop(self) -> None:
        """SIGTERM: finish or hand back what is in hand."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL, and wait for the end. What the process had started itself goes with its session."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def exit_code(self) -> int | None:
        """Of the ended process; ``None`` while it runs or was never started."""
        return None if self._process is None else self._process.poll()

    def _signal(self, number: int) -> None:
        if self.running and self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    def _died(self, code: int, *, lived: float) -> None:
        now = self.clock.monotonic()
        if lived >= STABLE_S:
            self._deaths = 0
            self._stable_until = now
        self._deaths += 1
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        last = self.last_line()
        log.warning("a node ended", ended=self.node_id, how=how, last=last, deaths=self._deaths)
        if FencedError.code in last:
            self._fenced = self._fenced + 1 if lived < FENCED_S else 1
            if self._fenced >= FENCED_IN_A_ROW:
                self.finished = True
                log.error("another process lives by this node's id and goes on without this one", ended=self.node_id)
            return
        if code == ConfigError.exit_code:
            raise ConfigError(f"{self.node_id} cannot start: {last}")
        if code == MissingServiceError.exit_code:
            # A service that was there and is away may come back; one that never was will not.
            if self._stable_until is not None and now - self._stable_until < self.patience_s:
                return
            if self._deaths >= DEATHS_IN_A_ROW:
                raise MissingServiceError(f"{self.node_id} cannot start: {last}")
            return
        # A wait that found its end is no accident: what is missing will be missing again, however long the node lived.
        self._starved = self._starved + 1 if StarvedError.code in last else 0
        if self._deaths >= DEATHS_IN_A_ROW or self._starved >= STARVED_IN_A_ROW:
            raise RunFailedError(
                f"{self.node_id} died {max(self._deaths, self._starved)} times in a row ({how}): {last}; see {self.output}"
            )

    def last_line(self) -> str:
        """The last line that it wrote."""
        try:
            with self.output.open("rb") as file:
                file.seek(max(0, self.output.stat().st_size - 4096))
                lines = file.read().decode("utf-8", "replace").strip().splitlines()
        except OSError:
            return ""
        return lines[-1].strip() if lines else ""
