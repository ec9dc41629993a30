"""The fault campaign: harms a run again and again, and after each fault looks whether anything was lost. ``make faults``.

    python tests/faults/campaign.py [--log embedded|kafka] [--each N] [--seed S] [--only TEXT] [--out FILE]

After each fault, with the run still working: every episode that the phones had finished by then is collected, evaluated and
ingested, none under two ids, weights never go back, and new episodes come through all four roles. At the end the run drains,
and the phones' ledgers, what was collected, evaluated and ingested, and what the learner itself counted are the same number.
"""

from __future__ import annotations

import argparse
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "compose"))

from census import Census
from fault import FAULTS, Fault
from rig import NODES, Log, Rig

SETTLE_S = 150.0
"""Longest time after the end of a fault until everything is as it should be."""
MEND_S = 10.0
"""Time after a fault until nobody tries any more what it had spoiled, and what lies in the dead letters may be sent back."""
TRAFFIC = 8
"""Episodes that must come through all roles before and after a fault."""


@dataclass(slots=True)
class Outcome:
    """What one fault did."""

    fault: str
    log: Log
    detail: str
    recovery_s: float
    """From the end of the fault until every finished episode was ingested, new ones came through and all roles lived."""
    problems: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Verdict:
    """What a whole campaign on one log showed."""

    log: Log
    outcomes: list[Outcome]
    episodes: int
    """In the phones' ledgers at the end."""
    problems: list[str]
    """Of the end: numbers that differ."""


def campaign(
    log: Log,
    faults: Sequence[Fault],
    folder: Path,
    *,
    seed: int,
    outage_s: float = 60.0,
    tell: Callable[[str], None] = lambda _: None,
) -> Verdict:
    """Inject ``faults`` in this order into one run over ``log``. ``outage_s``: how long a store stays down."""
    chance = random.Random(seed)
    outcomes: list[Outcome] = []
    with Rig(folder, log, seed=seed, outage_s=outage_s) as rig:
        for number, fault in enumerate(faults, 1):
            outcome = _one(rig, fault, chance)
            outcomes.append(outcome)
            said = (
                f"ok, {outcome.recovery_s:.1f} s" if not outcome.problems else f"FAILED: {'; '.join(outcome.problems)}"
            )
            tell(f"{number}/{len(faults)} {log}: {fault.name} ({outcome.detail}): {said}")
            if rig.process.poll() is not None:
                break
        problems = _end(rig)
        return Verdict(log, outcomes, len(rig.census.ledger()), problems)


def _one(rig: Rig, fault: Fault, chance: random.Random) -> Outcome:
    outcome = Outcome(fault.name, rig.log, "", 0.0)
    try:
        _traffic(rig)
        time.sleep(chance.random() * 2)
        seen, dead = len(rig.census.violations), {letter.envelope.event_id for letter in rig.census.dead_letters()}
        outcome.detail = fault.inject(rig, chance)
        over = time.monotonic()
        if fault.redrive:
            time.sleep(MEND_S)
            outcome.detail += f", {rig.redrive(fault.redrive)} sent back"
        _settle(rig, over)
        outcome.recovery_s = time.monotonic() - over
        outcome.problems += rig.census.violations[seen:]
        letters = [letter for letter in rig.census.dead_letters() if letter.envelope.event_id not in dead]
        letters = [letter for letter in letters if letter.code != fault.redrive]
        if letters and not fault.poison:
            outcome.problems.append(f"{len(letters)} dead letters, as {letters[0].code} {letters[0].message[:120]}")
    except (AssertionError, OSError) as error:
        outcome.problems.append(str(error))
    return outcome


def _traffic(rig: Rig) -> None:
    """Wait until episodes come through all roles."""
    goal, deadline = rig.census.progress() + TRAFFIC, time.monotonic() + SETTLE_S
    while rig.census.progress() < goal:
        rig.check()
        if time.monotonic() > deadline:
            raise AssertionError(f"no traffic: {rig.census.progress()} of {goal} episodes ingested")
        time.sleep(0.1)


def _settle(rig: Rig, since: float) -> None:
    """Wait until what was finished by now has come through, new episodes too, and every node gave a sign of life after ``since``."""
    finished, goal = rig.census.ledger(), rig.census.progress() + TRAFFIC
    deadline = time.monotonic() + SETTLE_S
    while True:
        rig.check()
        missing = rig.census.unsettled(finished - rig.lost)
        dead = [role for role, count in NODES.items() if len(rig.census.nodes(role, since=since)) < count]
        if not missing and not dead and rig.census.progress() >= goal:
            return
        if time.monotonic() > deadline:
            rig.lost.update(*missing.values())
            stages = ", ".join(f"{len(ids)} not {stage}" for stage, ids in missing.items())
            raise AssertionError(
                f"not settled after {SETTLE_S:.0f} s: {stages or 'nothing missing'}; not all alive: {', '.join(dead) or 'none'}"
            )
        time.sleep(0.1)


def _end(rig: Rig) -> list[str]:
    """Drain, and compare the numbers."""
    try:
        summary = rig.finish()
    except (AssertionError, OSError) as error:
        return [str(error)]
    ledger = len(rig.census.ledger())
    # Another census, which reads the log from its beginning: what the log holds, not what was seen in passing.
    census = Census(rig.config, rig.folder, rig.codec)
    deadline = time.monotonic() + 30
    while (counts := census.counts())["ingested"] < ledger and time.monotonic() < deadline:
        time.sleep(0.2)
    census.close()
    numbers = {
        "ledger": ledger,
        **{f"summary {key}": summary[key] for key in ("collected", "evaluated", "ingested")},
        **{key: counts[key] for key in ("collected", "evaluated", "ingested")},
    }
    problems = [] if len(set(numbers.values())) == 1 else [f"numbers differ: {numbers}"]
    if counts["counted"] > counts["policy"]:
        problems.append(
            f"the learner counted {counts['counted']} episodes of the policy, there were {counts['policy']}"
        )
    return problems + [f"seen: {violation}" for violation in rig.census.violations]


def plan(log: Log, each: int, chance: random.Random, only: str = "") -> list[Fault]:
    """Each kind that applies to the log ``each`` times, shuffled."""
    faults = [fault for fault in FAULTS if log in fault.logs and only in fault.name] * each
    chance.shuffle(faults)
    return faults


def table(verdicts: Sequence[Verdict]) -> str:
    """All outcomes as a Markdown table, a row for each kind and log."""
    lines = [
        "| log | fault | faults | passed | recovery s, median | recovery s, most |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for verdict in verdicts:
        for name in dict.fromkeys(fault.name for fault in FAULTS):
            chosen = [outcome for outcome in verdict.outcomes if outcome.fault == name]
            if not chosen:
                continue
            times = [outcome.recovery_s for outcome in chosen if not outcome.problems] or [float("nan")]
            passed = sum(not outcome.problems for outcome in chosen)
            lines.append(
                f"| {verdict.log} | {name} | {len(chosen)} | {passed} | {statistics.median(times):.1f} | {max(times):.1f} |"
            )
    return "\n".join(lines)


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201


def main() -> int:
    parser = argparse.ArgumentParser(description="Harms a run again and again and looks whether anything is lost.")
    parser.add_argument(
        "--log", choices=("embedded", "kafka"), action="append", help="default: both, one after the other"
    )
    parser.add_argument("--each", type=int, default=10, help="faults of each kind, on each log (default 10)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="only kinds whose name contains this")
    parser.add_argument("--out", type=Path, help="write the table there too")
    parser.add_argument("--keep", type=Path, help="work in this folder and leave it")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))  # so that what was started is ended
    verdicts: list[Verdict] = []
    with tempfile.TemporaryDirectory(prefix="distrl-faults-") as temporary:
        for log in arguments.log or ("embedded", "kafka"):
            faults = plan(log, arguments.each, random.Random(arguments.seed), arguments.only)
            folder = (arguments.keep or Path(temporary)) / log
            verdicts.append(campaign(log, faults, folder, seed=arguments.seed, tell=_say))
    report = table(verdicts)
    print(report)  # noqa: T201
    failed = False
    for verdict in verdicts:
        print(  # noqa: T201
            f"{verdict.log}: {len(verdict.outcomes)} faults, {verdict.episodes} episodes", *verdict.problems, sep="\n  "
        )
        failed = failed or bool(verdict.problems) or any(outcome.problems for outcome in verdict.outcomes)
    if arguments.out:
        arguments.out.write_text(report + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
