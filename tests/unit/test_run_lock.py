"""One process at a time holds a run or a node id; the death of a holder lets go."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from distrl.core.errors import ConfigError
from distrl.core.runtime.lock import held
from distrl.testing import ManualClock

HOLD = """
import sys, time
from pathlib import Path
from distrl.core.contracts.clock import SystemClock
from distrl.core.runtime.lock import held
with held(Path(sys.argv[1]), "run 'demo'", clock=SystemClock(), wait_s=0.0):
    print("held", flush=True)
    time.sleep(300)
"""


def test_a_second_holder_is_refused_until_the_first_dies(tmp_path: Path) -> None:
    path = tmp_path / "runs" / ".demo.lock"
    with subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with (
            pytest.raises(ConfigError, match=f"run 'demo' runs already \\(pid {holder.pid}\\)"),
            held(path, "run 'demo'", clock=ManualClock(), wait_s=5.0),
        ):
            raise AssertionError("two holders")
        holder.kill()
        holder.wait(30)
    with held(path, "run 'demo'", clock=ManualClock(), wait_s=5.0):
        assert path.read_text() == str(os.getpid())
