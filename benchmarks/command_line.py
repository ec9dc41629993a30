"""How quickly the command line answers: `distrl --help` against a bare Python and against importing torch, in one run.

python benchmarks/command_line.py [ROUNDS]
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "distrl --help": [sys.executable, "-m", "distrl.core.cli.main", "--help"],
    "distrl-node --help": [sys.executable, "-m", "distrl.core.cli.node", "--help"],
    "distrl plugins list": [sys.executable, "-m", "distrl.core.cli.main", "plugins", "list"],
    "import torch": [sys.executable, "-c", "import torch"],
}


def main(rounds: int) -> None:
    """Commands take turns, so that whatever else the machine does falls on all of them."""
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(rounds):
        for name, command in COMMANDS.items():
            start = time.perf_counter()
            subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
            seconds[name].append(time.perf_counter() - start)
    help_time = statistics.median(seconds["distrl --help"])
    for name, values in seconds.items():
        median = statistics.median(values)
        sys.stdout.write(f"{name:<20} {median:6.3f} s   {median / help_time:5.2f} of distrl --help\n")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
