"""How the members of a group share partitions, on every bus: the part of the contract that ``BusContract`` leaves to this
mixin, whose fixtures it uses.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import pytest
from bus_suite import BOTH, WAIT_S, BusFactory, TopicFactory, assigned, collect, poll_until, quiet, send_all

import distrl
from distrl.core.config import BusConfig
from distrl.core.contracts.bus import Assignment, Bus, Consumer, Record, TopicPartition
from distrl.core.errors import FencedError, GroupMismatchError

WORKER = """
import sys
from distrl.connectors import open_bus
from distrl.core.config import BusConfig
from distrl.core.contracts.clock import SystemClock
from distrl.core.errors import FencedError

config, topic, effects, group, member, name = sys.argv[1:]
bus = open_bus(BusConfig.model_validate_json(config), clock=SystemClock(), client_id=name)
producer = bus.producer()
consumer = bus.consumer([topic], group=group, member=member, assignment="cooperative")
try:
    while True:
        records = consumer.poll(0.1, 5)
        futures = [producer.send(effects, name.encode(), key=record.value) for record in records]
        for record, future in zip(records, futures):
            future.result(30.0)
            consumer.ack(record)
        consumer.commit()
        if records:
            print(len(records), flush=True)
except FencedError as error:
    print(error, file=sys.stderr, flush=True)
    sys.exit(error.exit_code)
"""


class Member:
    """A consumer whose callbacks and records are kept; what it reads it acknowledges."""

    def __init__(self, bus: Bus, topics: Sequence[str], group: str, assignment: Assignment, **settings: Any) -> None:
        self.moves: list[tuple[str, frozenset[TopicPartition]]] = []
        self.records: list[Record] = []
        self.held: set[TopicPartition] = set()
        self.consumer = bus.consumer(
            topics, group=group, assignment=assignment, on_assign=self._gain, on_revoke=self._lose, **settings
        )

    def _gain(self, partitions: Collection[TopicPartition]) -> None:
        assert not self.held & set(partitions)
        self.held |= set(partitions)
        self.moves.append(("gain", frozenset(partitions)))

    def _lose(self, partitions: Collection[TopicPartition]) -> None:
        assert self.held >= set(partitions)
        self.held -= set(partitions)
        self.moves.append(("lose", frozenset(partitions)))

    def poll(self) -> None:
        for record in self.consumer.poll(0.05):
            self.records.append(record)
            self.consumer.ack(record)
        assert self.held == self.consumer.assignment()

    def offsets(self, partition: TopicPartition) -> list[int]:
        return [record.offset for record in self.records if record.topic_partition == partition]


def poll_members(members: Sequence[Member], done: Callable[[], bool]) -> None:
    """Poll all in turn until ``done``."""
    deadline = time.monotonic() + WAIT_S
    while not done():
        assert time.monotonic() < deadline, f"never: {[(sorted(m.held), len(m.records)) for m in members]}"
        for member in members:
            member.poll()


def spread(members: Sequence[Member]) -> list[int]:
    """How many partitions each has."""
    return [len(member.held) for member in members]


def everything(topic: str, count: int) -> set[TopicPartition]:
    return {TopicPartition(topic, index) for index in range(count)}


class GroupContract:
    """What groups do on every bus."""

    # --- cooperative ------------------------------------------------------------------------------

    def test_others_read_on_while_a_join_waits_for_a_busy_member(
        self, bus_factory: BusFactory, topics: TopicFactory, group: str
    ) -> None:
        topic = topics(4)
        bus = bus_factory()
        keeper = Member(bus, [topic], group, "cooperative")
        busy = Member(bus_factory(), [topic], group, "cooperative")
        poll_members([keeper, busy], lambda: spread([keeper, busy]) == [2, 2])
        kept = set(keeper.held)
        newcomer = Member(bus_factory(), [topic], group, "cooperative")
        with bus.producer() as producer:
            # One batch after another, each read before the next is sent, while the busy one does not poll at all.
            for batch in range(1, 11):
                for partition in sorted(kept):
                    send_all(producer, topic, [b"v"] * 3, partition=partition.partition)
                poll_members(
                    [keeper, newcomer],
                    lambda count=batch: len(keeper.records) + len(newcomer.records) == count * 6,  # type: ignore[misc]
                )
            assert any(keeper.offsets(partition) == list(range(30)) for partition in kept)
            poll_members([keeper, busy, newcomer], lambda: sorted(spread([keeper, busy, newcomer])) == [1, 1, 2])
            for index in range(4):
                send_all(producer, topic, [b"v"] * 3, partition=index)
            members = [keeper, busy, newcomer]
            poll_members(members, lambda: sum(len(member.records) for member in members) >= 72)
        seen = Counter((r.partition, r.offset) for member in members for r in member.records)
        assert set(seen.values()) == {1}  # what moved was committed before it moved
        for member in members:
            member.consumer.close()

    def test_callbacks_name_only_what_moves(self, bus_factory: BusFactory, topics: TopicFactory, group: str) -> None:
        topic = topics(4)
        stays = Member(bus_factory(), [topic], group, "cooperative")
        poll_members([stays], lambda: spread([stays]) == [4])
        comes = Member(bus_factory(), [topic], group, "cooperative")
        poll_members([stays, comes], lambda: spread([stays, comes]) == [2, 2])
        moved = frozenset(comes.held)
        assert comes.moves in ([("gain", moved)], [("gain", frozenset()), ("gain", moved)])
        comes.consumer.close()
        poll_members([stays], lambda: spread([stays]) == [4])
        moves = [move for move in stays.moves if move[1]]
        assert moves == [("gain", frozenset(everything(topic, 4))), ("lose", moved), ("gain", moved)]
        stays.consumer.close()
        assert stays.held == set()

    def test_what_is_kept_stays_paused_sought_and_unacknowledged(
        self, bus_factory: BusFactory, topics: TopicFactory, group: str
    ) -> None:
        topic = topics(4)
        bus = bus_factory()
        with bus.producer() as producer:
            for index in range(4):
                send_all(producer, topic, [b"v"] * 6, partition=index)
        moved: set[TopicPartition] = set()
        with bus.consumer([topic], group=group, assignment="cooperative", on_revoke=moved.update) as first:
            records = collect(first, 24, ack=False)
            first.pause(first.assignment())
            for partition in first.assignment():
                first.seek(partition, 4)
            first.resume([TopicPartition(topic, 0), TopicPartition(topic, 3)])
            again = collect(first, 4, ack=False)
            with bus_factory().consumer([topic], group=group, assignment="cooperative") as second:
                got = poll_until([first, second], lambda: len(first.assignment()) == len(second.assignment()) == 2)
                assert got[0] == []
                kept = first.assignment()
                assert moved == second.assignment() == everything(topic, 4) - kept
                paused = {TopicPartition(topic, 1), TopicPartition(topic, 2)}
                assert first.paused() == paused & kept
                assert {partition: first.position(partition) for partition in kept} == {
                    partition: 4 if partition in paused else 6 for partition in kept
                }
                for record in [*records, *again]:
                    first.ack(record)
                first.commit()
                assert {p: first.committed(p) for p in kept} == {p: 4 if p in paused else 6 for p in kept}
                first.seek(min(kept), 1)
                first.resume(kept)
                expected = 5 + sum(2 for partition in kept - {min(kept)} if partition in paused)
                assert {r.topic_partition for r in collect(first, expected)} <= kept

    def test_shares_differ_by_one_at_most(self, bus_factory: BusFactory, topics: TopicFactory, group: str) -> None:
        names = [topics(4), topics(3)]
        with contextlib.ExitStack() as stack:
            members: list[Member] = []
            for count in range(1, 4):
                members.append(Member(bus_factory(), names, group, "cooperative"))
                stack.callback(members[-1].consumer.close)
                wanted = [7 // count + (index < 7 % count) for index in range(count)]
                poll_members(members, lambda shares=wanted: sorted(spread(members)) == sorted(shares))  # type: ignore[misc]
            held = [partition for member in members for partition in member.held]
            assert len(held) == len(set(held)) == 7

    # --- both -------------------------------------------------------------------------------------

    @BOTH
    def test_no_record_is_lost_and_no_partition_is_twos_through_joins_and_leaves(
        self, bus_factory: BusFactory, topics: TopicFactory, group: str, assignment: Assignment
    ) -> None:
        topic = topics(4)
        chance = random.Random(7)
        sent = 0
        live = [Member(bus_factory(), [topic], group, assignment)]
        gone: list[Member] = []
        with bus_factory().producer() as producer:
            for step in range(8):
                if len(live) < 2 or (len(live) < 4 and chance.random() < 0.5):
                    live.append(Member(bus_factory(), [topic], group, assignment))
                else:
                    leaver = live.pop(chance.randrange(len(live)))
                    leaver.consumer.close()
                    gone.append(leaver)
                for _ in range(chance.randrange(1, 4)):
                    send_all(producer, topic, [b"%d" % step] * 8)
                    sent += 8
                    for member in live:
                        member.poll()
                    held = [partition for member in live for partition in member.held]
                    assert len(held) == len(set(held))
            read: Callable[[], set[tuple[int, int]]] = lambda: {  # noqa: E731
                (record.partition, record.offset) for member in [*live, *gone] for record in member.records
            }
            poll_members(live, lambda: len(read()) == sent and sum(spread(live)) == 4)
        for member in live:
            member.consumer.close()
        assert sum(bus_factory().admin().group_offsets(group).values()) == sent

    @BOTH
    def test_what_is_taken_away_unacknowledged_is_delivered_again_and_nothing_else(
        self, bus_factory: BusFactory, topics: TopicFactory, group: str, assignment: Assignment
    ) -> None:
        topic = topics(4)
        revoked: set[TopicPartition] = set()
        bus = bus_factory()
        with bus.producer() as producer:
            for index in range(4):
                send_all(producer, topic, [b"v"] * 3, partition=index)
        with bus.consumer([topic], group=group, assignment=assignment, on_revoke=revoked.update) as first:
            for record in collect(first, 12, ack=False):
                if record.offset == 0:
                    first.ack(record)
            with bus_factory().consumer([topic], group=group, assignment=assignment) as second:
                again = poll_until([first, second], lambda: len(first.assignment()) == len(second.assignment()) == 2)
                members = (first, second)
                assert revoked >= second.assignment()
                deadline = time.monotonic() + WAIT_S
                while len(again[0]) + len(again[1]) < 2 * len(revoked):
                    assert time.monotonic() < deadline, again
                    for index, member in enumerate(members):
                        again[index] += member.poll(0.1)
                for index, member in enumerate(members):
                    again[index] += quiet(member)
                    due = {(p, offset) for p in revoked & member.assignment() for offset in (1, 2)}
                    assert sorted((r.topic_partition, r.offset) for r in again[index]) == sorted(due)

    @BOTH
    def test_static_member_that_returns_amid_a_join_leaves_nothing_unread(
        self,
        bus_factory: BusFactory,
        topics: TopicFactory,
        group: str,
        child: Callable[..., Any],
        assignment: Assignment,
    ) -> None:
        topic = topics(2)
        process, _ = child(topic, group, member="a", wanted=0, acked=0, session_seconds=30.0, assignment=assignment)
        process.send_signal(signal.SIGKILL)
        process.wait(WAIT_S)
        bus = bus_factory(session_seconds=30.0)
        with bus.consumer([topic], group=group, member="b", assignment=assignment) as second:
            assert quiet(second) == []  # it has joined, and waits for what the dead one holds
            with bus_factory(session_seconds=30.0).consumer(
                [topic], group=group, member="a", assignment=assignment
            ) as first:
                poll_until([first, second], lambda: len(first.assignment()) == len(second.assignment()) == 1)

    def test_group_is_not_shared_in_two_ways(self, bus_factory: BusFactory, topics: TopicFactory, group: str) -> None:
        topic = topics(2)
        first = bus_factory().consumer([topic], group=group)
        assigned(first)

        def join(*others: Consumer) -> Consumer:
            consumer = bus_factory(session_seconds=0.6).consumer([topic], group=group, assignment="cooperative")
            deadline = time.monotonic() + WAIT_S
            try:
                while not consumer.assignment():
                    assert time.monotonic() < deadline
                    for other in others:
                        other.poll(0.05)
                    consumer.poll(0.0)  # a join outlasts it, and its failure still adds up
                    time.sleep(0.05)
            except BaseException:
                consumer.close()
                raise
            return consumer

        with pytest.raises(GroupMismatchError, match="cooperative"):
            join(first)
        assert len(first.assignment()) == 2
        first.close()
        join().close()

    def test_two_processes_by_one_name_do_not_both_go_on(
        self, bus_factory: BusFactory, bus_config: BusConfig, topics: TopicFactory, group: str
    ) -> None:
        topic, effects = topics(2), topics()
        packages = str(Path(distrl.__file__).parents[1])
        with contextlib.ExitStack() as stack:

            def start(name: str) -> subprocess.Popen[str]:
                arguments = [bus_config.model_dump_json(), topic, effects, group, "evaluator-0", name]
                process = stack.enter_context(
                    subprocess.Popen(
                        [sys.executable, "-c", WORKER, *arguments],
                        stdout=subprocess.PIPE,
                        stderr=subprocess.PIPE,
                        text=True,
                        env={**os.environ, "PYTHONPATH": packages},
                    )
                )
                stack.callback(process.kill)
                return process

            def handles(process: subprocess.Popen[str]) -> None:
                assert process.stdout is not None
                assert process.stdout.readline().strip(), process.stderr and process.stderr.read()

            producer = stack.enter_context(bus_factory().producer())
            sent = [b"%d" % number for number in range(120)]
            send_all(producer, topic, sent[:40])
            older = start("older")
            handles(older)
            newer = start("newer")
            send_all(producer, topic, sent[40:80])
            _, said = older.communicate(timeout=WAIT_S)
            assert older.returncode == FencedError.exit_code
            assert "evaluator-0" in said
            assert FencedError.code in said
            assert "Traceback" not in said
            send_all(producer, topic, sent[80:])
            handles(newer)
            newer.send_signal(signal.SIGKILL)
            newer.communicate(timeout=WAIT_S)
            last = start("last")
            admin = bus_factory().admin()
            deadline = time.monotonic() + WAIT_S
            while sum(admin.group_offsets(group).values()) < len(sent):
                assert time.monotonic() < deadline, admin.group_offsets(group)
                assert last.poll() is None
                time.sleep(0.1)
            by: dict[bytes | None, set[bytes | None]] = defaultdict(set)
            with bus_factory().consumer([effects]) as consumer:
                while any(consumer.lag().values()) or not by:
                    for record in consumer.poll(0.2):
                        by[record.key].add(record.value)
            assert set(by) == set(sent)
            # Whoever knows effects by their ids has one each; only what was in hand at a take-over was done twice.
            assert sum(len(names) for names in by.values()) - len(by) <= 20
