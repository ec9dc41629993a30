"""The kinds of fault. Each is a function that harms a run under way (``rig.Rig``) and returns when the harm is over.

A fault is what happens outside the code under test: a process is killed or frozen, a disk is full, a clock jumps, a server
goes away, bytes change on the way, somebody else writes to the topics.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace

from rig import DELIVERY_S, DISK_MEGABYTES, Log, Rig

from distrl.connectors import open_bus
from distrl.core.contracts.bus import Record, Start
from distrl.core.contracts.clock import SystemClock
from distrl.core.contracts.events import ROLES
from distrl.core.contracts.topic import CO_PARTITIONED, TopicName
from distrl.core.errors import BlobCorruptError, DistrlError

OTHERS_S = 8.0
"""How long a second node stays: it has to start, to be noticed, and to leave."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault."""

    name: str
    inject: Callable[[Rig, random.Random], str]
    """Harms the run and returns what it did in a few words; the harm is over on return."""
    logs: tuple[Log, ...] = ("embedded", "kafka")
    poison: bool = False
    """It puts records on the topics that no role can read: dead letters are what should become of them."""
    redrive: str = ""
    """Code of the dead letters that it may leave, which are sent back when it is over."""


# --- processes ------------------------------------------------------------------------------------------


def _kill(role: str) -> Callable[[Rig, random.Random], str]:
    def inject(rig: Rig, chance: random.Random) -> str:
        pid = rig.pid(role, chance.randrange(2))
        os.kill(pid, signal.SIGKILL)
        return "SIGKILL"

    return inject


def _freeze(rig: Rig, chance: random.Random) -> str:
    """A node stops for longer than its session, then goes on as if nothing had been."""
    role = chance.choice(ROLES)
    pid = rig.pid(role, chance.randrange(2))
    os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(rig.config.bus.session_seconds + 2)
    finally:
        os.kill(pid, signal.SIGCONT)
    return f"SIGSTOP of a {role}"


def _same_id(rig: Rig, chance: random.Random) -> str:
    role = chance.choice(("collector", "evaluator", "prioritizer"))
    with rig.second_node(role, f"{role}-0", "other"):
        time.sleep(OTHERS_S)
    return f"{role}-0 on another machine"


def _two_learners(rig: Rig, chance: random.Random) -> str:
    with rig.second_node("learner", "learner-other", "other"):
        time.sleep(OTHERS_S + chance.random() * 4)
    return f"for about {OTHERS_S:.0f} s"


# --- the log --------------------------------------------------------------------------------------------


def _broker_killed(rig: Rig, chance: random.Random) -> str:
    assert rig.kafka is not None
    rig.kafka.kill()
    away = 1 + chance.random() * 5
    time.sleep(away)
    rig.kafka.restart()
    return f"SIGKILL, away for {away:.1f} s and its start"


def _broker_stalled(rig: Rig, chance: random.Random) -> str:
    assert rig.kafka is not None
    stall = DELIVERY_S + 1 + chance.random() * 4
    rig.kafka.pause()
    try:
        time.sleep(stall)
    finally:
        rig.kafka.resume()
    return f"SIGSTOP for {stall:.1f} s; delivery timeout {DELIVERY_S:.0f} s"


def _log_locked(rig: Rig, chance: random.Random) -> str:
    """Somebody holds the write lock of every file of the embedded log for longer than a delivery may take."""
    stall = DELIVERY_S + 1 + chance.random() * 4
    with ExitStack() as stack:
        # By name alone: to open and close a file that SQLite has open in this process (the census) would drop SQLite's locks.
        files = sorted(rig.config.bus.path.rglob("*.db"))
        for path in files:
            database = stack.enter_context(contextlib.closing(sqlite3.connect(path, timeout=20, isolation_level=None)))
            database.execute("BEGIN IMMEDIATE")
        time.sleep(stall)
    return f"{len(files)} files for {stall:.1f} s; delivery timeout {DELIVERY_S:.0f} s"


def _registry_away(rig: Rig, chance: random.Random) -> str:
    """The registry dies, and a node has to start while it is away."""
    assert rig.registry is not None
    rig.registry.kill()
    role, away = chance.choice(ROLES), 5 + chance.random() * 5
    os.kill(rig.pid(role, chance.randrange(2)), signal.SIGKILL)
    time.sleep(away)
    rig.registry.restart()
    return f"SIGKILL, away for {away:.1f} s and its start; a {role} killed meanwhile"


# --- store, disk, clock ---------------------------------------------------------------------------------


def _store_down(rig: Rig, chance: random.Random) -> str:
    assert rig.relay is not None
    rig.relay.set("refuse")
    try:
        time.sleep(rig.outage_s)
    finally:
        rig.relay.set("pass")
    return f"refused for {rig.outage_s:.0f} s"


def _store_spoils(rig: Rig, chance: random.Random) -> str:
    assert rig.relay is not None
    before, seconds = rig.relay.spoiled, 2 + chance.random() * 3
    rig.relay.set("spoil")
    try:
        time.sleep(seconds)
    finally:
        rig.relay.set("pass")
    return f"{rig.relay.spoiled - before} answers in {seconds:.1f} s"


def _disk_full(rig: Rig, chance: random.Random) -> str:
    ballast, seconds = rig.disk / "ballast", 2 + chance.random() * 4
    end = time.monotonic() + seconds
    try:
        with ballast.open("wb", buffering=0) as file:
            block = bytes(1 << 20)
            while time.monotonic() < end:  # whatever others free is taken at once
                try:
                    file.write(block)
                except OSError:
                    block = bytes(max(1, len(block) // 2))
                    time.sleep(0.005)
    finally:
        ballast.unlink(missing_ok=True)
    return f"{DISK_MEGABYTES} MB full for {seconds:.1f} s"


def _clock_jump(rig: Rig, chance: random.Random) -> str:
    seconds = chance.choice((-1, 1)) * chance.randrange(30, 4 * 3600)
    rig.set_clock(seconds)
    try:
        time.sleep(4)
    finally:
        rig.set_clock(0)
    return f"{seconds:+d} s, then back"


# --- what is on the topics ------------------------------------------------------------------------------


def _poison(rig: Rig, chance: random.Random) -> str:
    """Bytes that are no event, halves of events, events of another run, and events where others are due."""
    with _writer(rig) as (send, read):
        good = [record for topic in CO_PARTITIONED for record in read(topic, 50) if _is_event_of(rig, record)]
        count = 0
        for topic in (*CO_PARTITIONED, "weights-latest", "nodes"):
            sample = chance.choice(good)
            assert sample.value is not None
            event = rig.codec.decode(sample.value)
            foreign = replace(event, envelope=replace(event.envelope, run="another"))
            for value in (
                chance.randbytes(chance.randrange(1, 200)),
                b"",
                sample.value[: chance.randrange(1, len(sample.value))],
                sample.value[:5] + chance.randbytes(50),
                b"\x00\xff\xff\xff\xff" + sample.value[5:],
                rig.codec.encode(foreign),
            ):
                send(topic, chance.randbytes(8).hex().encode(), value)
                count += 1
    return f"{count} records"


def _is_event_of(rig: Rig, record: Record) -> bool:
    """Whether it is an event of this run: not what ``_poison`` has put there."""
    try:
        return record.value is not None and rig.codec.decode(record.value).envelope.run == rig.name
    except DistrlError:
        return False


def _repeated(rig: Rig, chance: random.Random) -> str:
    """Copies of what is on the topics, in another order: trajectories, verdicts, priorities, feedback, weights."""
    with _writer(rig) as (send, read):
        copies = [
            (topic, record)
            for topic in (*CO_PARTITIONED, "weights", "weights-latest")
            for record in read(topic, 100)
            if _is_event_of(rig, record)
        ]
        chance.shuffle(copies)
        for topic, record in copies:
            send(topic, record.key, record.value, record)
    return f"{len(copies)} records"


@contextlib.contextmanager
def _writer(rig: Rig) -> Iterator[tuple[Callable[..., None], Callable[[str, int], list[Record]]]]:
    """A stranger on the log: sends records to a topic, and reads the last ones of each of its partitions."""
    name = TopicName(rig.name)
    with open_bus(rig.config.bus, clock=SystemClock(), client_id="stranger") as bus, bus.producer() as producer:

        def send(topic: str, key: bytes | None, value: bytes | None, like: Record | None = None) -> None:
            headers = like.headers if like is not None else ()
            producer.send(name(topic), value, key=key, headers=headers)

        def read(topic: str, most: int) -> list[Record]:
            ends = bus.admin().end_offsets([name(topic)])
            start = Start.at_offsets({part: max(0, end - most) for part, end in ends.items()})
            records: list[Record] = []
            with bus.consumer([name(topic)], start=start) as consumer:
                while batch := consumer.poll(1.0):
                    records.extend(batch)
                    if len(records) >= most * len(ends):
                        break
            return [record for record in records if record.value is not None]

        yield send, read
        producer.flush(30.0)


FAULTS = (
    *(Fault(f"killed {role}", _kill(role)) for role in ROLES),
    Fault("frozen node", _freeze),
    Fault("two nodes with one id", _same_id),
    Fault("two learners", _two_learners),
    Fault("broker killed and restarted", _broker_killed, logs=("kafka",)),
    Fault("broker stalled", _broker_stalled, logs=("kafka",)),
    Fault("log locked", _log_locked, logs=("embedded",)),
    Fault("registry outage", _registry_away, logs=("kafka",)),
    Fault("store down for a minute", _store_down, logs=("kafka",)),
    Fault("store returns wrong bytes", _store_spoils, logs=("kafka",), redrive=BlobCorruptError.code),
    Fault("disk full", _disk_full),
    Fault("clock jump", _clock_jump),
    Fault("poison and truncated events", _poison, poison=True),
    Fault("duplicated and reordered events", _repeated),
)
