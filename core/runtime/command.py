"""Starts a command of ``distrl`` as a child process that answers in JSON. Used by the supervisor and its janitor."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path


def messages_path(result: Path) -> Path:
    """Where a command whose answer goes to ``result`` says what it has to say."""
    return result.with_suffix(".out")


def start_command(arguments: Sequence[str], result: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Run ``distrl`` with ``arguments`` and ``--json``, in a session of its own: the answer goes to the file ``result``. Raises ``OSError``
    when the files cannot be made."""
    with result.open("wb") as output, messages_path(result).open("wb") as errors:
        return subprocess.Popen(
            [sys.executable, "-m", "distrl.core.cli.main", *arguments, "--json"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            env=dict(environment),
            start_new_session=True,
        )
