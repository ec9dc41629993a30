"""Collects garbage beside a supervised run: a process of its own at low priority, now and then. Used by the supervisor."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import structlog

from distrl.core.contracts.clock import Clock
from distrl.core.runtime.command import messages_path, start_command

log = structlog.get_logger(__name__)
FIRST_S = 300.0
"""When the first collection is due, so that a run that is often started again cleans up too."""
NICENESS = 10


class Janitor:
    """Runs ``distrl store gc`` again and again. Used from one thread."""

    def __init__(
        self, config_file: Path, logs: Path, environment: Mapping[str, str], clock: Clock, *, every_hours: float
    ) -> None:
        """``logs``: where the last collection's result goes, as ``garbage.json``. ``every_hours``: 0 means never."""
        self._arguments = ["store", "gc", "--config", str(config_file)]
        self._result = logs / "garbage.json"
        self._environment = environment
        self._clock = clock
        self._every_s = every_hours * 3600
        self._due = clock.monotonic() + min(FIRST_S, self._every_s)
        self._process: subprocess.Popen[bytes] | None = None

    def tick(self) -> None:
        """Start a collection when one is due; take note of how the last one ended."""
        if self._process is not None:
            code = self._process.poll()
            if code is None:
                return
            self._process = None
            if code != 0:
                log.warning("collecting garbage failed; it is tried again", exit_code=code, why=self._last_line())
        if self._every_s and self._clock.monotonic() >= self._due:
            self._due = self._clock.monotonic() + self._every_s
            self._start()

    def close(self) -> None:
        """End a collection that is under way, which harms nothing."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _start(self) -> None:
        try:
            self._process = start_command(self._arguments, self._result, self._environment)
        except OSError as error:  # a full disk, above all: the next one comes
            log.warning("collecting garbage could not begin", error=str(error))
            return
        with contextlib.suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PROCESS, self._process.pid, NICENESS)

    def _last_line(self) -> str:
        lines = messages_path(self._result).read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1] if lines else ""
