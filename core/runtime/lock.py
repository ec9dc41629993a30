"""One process at a time: a lock on a file, which the system lets go of when its holder dies. Used by nodes and the supervisor."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from distrl.core.contracts.clock import Clock
from distrl.core.errors import ConfigError


@contextmanager
def held(path: Path, what: str, *, clock: Clock, wait_s: float) -> Iterator[None]:
    """Hold the lock on ``path`` for the block. Waits up to ``wait_s`` seconds for another holder, which may be on its way out;
    then raises ``ConfigError`` that says that ``what`` runs already, with the holder's pid."""
    path.parent.mkdir(parents=True, exist_ok=True)
    deadline = clock.monotonic() + wait_s
    with path.open("a+", encoding="ascii") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if clock.monotonic() >= deadline:
                    file.seek(0)
                    holder = file.read().strip() or "unknown"
                    raise ConfigError(f"{what} runs already (pid {holder}): stop it or use another name") from None
                clock.sleep(0.2)
        file.seek(0)
        file.truncate()
        file.write(str(os.getpid()))
        file.flush()
        yield
