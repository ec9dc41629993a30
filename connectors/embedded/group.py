"""Membership in a consumer group of the embedded log: joining, heartbeats, claiming partitions, committing, leaving.

Every join, leave and expiry raises the group's generation. A member that notices (inside ``poll``) works out the new
assignment, first lets go of what it lost and then claims what it gained; it reads on what it keeps. A partition has at most
one claim: it goes to its next owner only when the old one has released it, or has been expelled because its session ran out.
A commit is accepted for claimed partitions alone, so a member that was expelled can no longer move its group's offsets.
Used by ``consumer``; ``heartbeat`` keeps sessions alive.
"""

from __future__ import annotations

import json
import uuid
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

import structlog

from distrl.connectors.embedded.assignment import Member, assign_sticky, assign_together
from distrl.connectors.embedded.catalogue import Catalogue
from distrl.connectors.embedded.uptime import uptime_ms
from distrl.core.contracts.bus import Assignment, TopicPartition
from distrl.core.contracts.clock import Clock
from distrl.core.errors import FencedError, GroupMismatchError

log = structlog.get_logger(__name__)
MISMATCH_WAIT_S = 0.1


class Membership:
    """One member of one group. Joins when it is made. Not safe for use by several threads."""

    def __init__(
        self,
        catalogue: Catalogue,
        group: str,
        topics: Sequence[str],
        *,
        static_name: str | None,
        assignment: Assignment,
        session_s: float,
        clock: Clock,
    ) -> None:
        self.group = group
        self.incarnation = ""
        self._catalogue = catalogue
        self._database = catalogue.database
        self._assignment: Assignment = assignment
        self._subscription = _subscription(topics, assignment)
        self._static_name = static_name
        self.static = static_name is not None
        self._session_ms = round(session_s * 1000)
        self._clock = clock
        self._seen: tuple[int, int] = (-1, -1)
        self._target: frozenset[TopicPartition] = frozenset()
        self._settled = False
        self._next_census = 0.0
        self.join()

    # --- joining and leaving ----------------------------------------------------------------------

    def join(self) -> None:
        """Become a member under a new incarnation. The holder of the same static name is replaced, and
        what it had claimed passes over without a rebalance.

        Members that share partitions in the other way are waited for until their sessions have ended; then raises
        ``GroupMismatchError``.
        """
        deadline = self._clock.monotonic() + 2 * self._session_ms / 1000
        while not self._try_join():
            if self._clock.monotonic() > deadline:
                raise GroupMismatchError(
                    f"group {self.group} has members that do not share partitions in the way {self._assignment!r}: they "
                    "run another version of distrl, or another role by this group's name; stop them first"
                )
            self._clock.sleep(MISMATCH_WAIT_S)

    def _try_join(self) -> bool:
        """Join unless a live member shares partitions in the other way."""
        self.incarnation = uuid.uuid4().hex
        self._settled = False
        topics = self._subscription
        now = uptime_ms(self._clock)
        with self._database.transaction():
            self._expel_expired(now)
            replaced = None
            for incarnation, static_name, subscription in self._database.rows(
                "SELECT incarnation, static_name, topics FROM members WHERE group_name = ?", (self.group,)
            ):
                if static_name == self._static_name is not None:
                    replaced = (incarnation, subscription)
                elif _read_subscription(subscription)[1] != self._assignment:
                    return False
            if replaced is None:
                self._database.execute(
                    """INSERT INTO members (incarnation, group_name, static_name, joined, topics, session_ms, heartbeat_ms)
                    VALUES (?, ?, ?, (SELECT ifnull(max(joined), 0) + 1 FROM members), ?, ?, ?)""",
                    (self.incarnation, self.group, self._static_name, topics, self._session_ms, now),
                )
                self._raise_generation()
                return True
            old, old_topics = replaced
            self._database.execute(
                "UPDATE members SET incarnation = ?, topics = ?, session_ms = ?, heartbeat_ms = ? WHERE incarnation = ?",
                (self.incarnation, topics, self._session_ms, now, old),
            )
            self._database.execute("UPDATE claims SET incarnation = ? WHERE incarnation = ?", (self.incarnation, old))
            if old_topics != topics:
                self._raise_generation()
        return True

    def leave(self) -> None:
        """Give up everything at once. A static member only falls silent: what it has waits for its return
        until its session ends."""
        with self._database.transaction():
            if self._static_name is not None:
                self._database.execute(
                    "UPDATE members SET heartbeat_ms = ? WHERE incarnation = ?",
                    (uptime_ms(self._clock), self.incarnation),
                )
                return
            self._database.execute("DELETE FROM claims WHERE incarnation = ?", (self.incarnation,))
            self._database.execute("DELETE FROM members WHERE incarnation = ?", (self.incarnation,))
            self._raise_generation()

    def _raise_generation(self) -> None:
        self._database.execute(
            "INSERT INTO groups VALUES (?, 1) ON CONFLICT (name) DO UPDATE SET generation = generation + 1",
            (self.group,),
        )

    def _expel_expired(self, now: int) -> None:
        """Remove members whose session ran out. A heartbeat of the future is of before the machine's last start."""
        expired = self._database.rows(
            """SELECT incarnation, static_name FROM members WHERE group_name = ?
            AND abs(? - heartbeat_ms) > session_ms AND incarnation != ?""",
            (self.group, now, self.incarnation),
        )
        for incarnation, static_name in expired:
            log.warning("a member is silent and loses its place", group=self.group, member=static_name or incarnation)
            self._database.execute("DELETE FROM claims WHERE incarnation = ?", (incarnation,))
            self._database.execute("DELETE FROM members WHERE incarnation = ?", (incarnation,))
        if expired:
            self._raise_generation()

    # --- rebalancing ------------------------------------------------------------------------------

    def changed(self) -> bool:
        """Whether the assignment may be another than at the last ``target``. Cheap; call it with every poll.

        Also takes the census: now and then it looks for members that fell silent, and expels them. Raises
        ``FencedError`` when another member has taken this one's static name.
        """
        monotonic = self._clock.monotonic()
        if monotonic >= self._next_census:
            self._next_census = monotonic + self._session_ms / 4000
            now = uptime_ms(self._clock)
            silent = self._database.row(
                """SELECT 1 FROM members WHERE group_name = ? AND abs(? - heartbeat_ms) > session_ms
                AND incarnation != ? LIMIT 1""",
                (self.group, now, self.incarnation),
            )
            if silent is not None:
                with self._database.transaction():
                    self._expel_expired(now)
                return True
        version = self._database.data_version()
        if version == self._seen[0]:
            return False
        if not self._settled:
            return True
        row = self._database.row(
            "SELECT generation, (SELECT count(*) FROM members WHERE incarnation = ?) FROM groups WHERE name = ?",
            (self.incarnation, self.group),
        )
        generation, present = row if row is not None else (-1, 0)
        if present and generation == self._seen[1]:
            self._seen = (version, generation)
            return False
        return True

    def target(self) -> frozenset[TopicPartition] | None:
        """What this member should have now; ``None`` if it is no longer a member and has to join again."""
        version = self._database.data_version()
        with self._database.transaction("DEFERRED"):
            row = self._database.row("SELECT generation FROM groups WHERE name = ?", (self.group,))
            target = self._work_out(self._owners())
        if target is None:
            return None
        self._seen = (version, row[0] if row is not None else -1)
        self._target = target
        return target

    def claim(self, held: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        """Claim what is free of what this member should have besides ``held``, and return it.

        Equal partition numbers that are given together are claimed together or not at all, so a join never sees half of its
        inputs. What is not free yet comes with a later call, after ``changed`` said so.
        """
        mine: set[TopicPartition] = set()
        with self._database.transaction():
            owners = self._owners()
            target: frozenset[TopicPartition] | None = self._target
            if self._assignment == "cooperative":
                # Worked out under the lock: two who look at what is free at the same time must not both count on it.
                target = self._work_out(owners)
            wanted = frozenset() if target is None else target - frozenset(held)
            alive = self._database.row("SELECT 1 FROM members WHERE incarnation = ?", (self.incarnation,))
            if alive is not None:
                # What a former life of this static member had and is not due to it any more would be nobody's for ever.
                due = frozenset(held) if target is None else target | frozenset(held)
                self._release([p for p, owner in owners.items() if owner == self.incarnation and p not in due])
                for partitions in self._bundles(wanted):
                    if all(owners.get(partition, self.incarnation) == self.incarnation for partition in partitions):
                        mine |= partitions
                self._database.execute_many(
                    "INSERT OR IGNORE INTO claims VALUES (?, ?, ?, ?)",
                    [(self.group, topic, partition, self.incarnation) for topic, partition in sorted(mine)],
                )
        self._settled = target == frozenset(held) | mine
        return frozenset(mine)

    def _bundles(self, partitions: Collection[TopicPartition]) -> list[set[TopicPartition]]:
        """What is claimed as one."""
        if self._assignment == "cooperative":
            return [{partition} for partition in partitions]
        by_number: dict[int, set[TopicPartition]] = defaultdict(set)
        for partition in partitions:
            by_number[partition.partition].add(partition)
        return list(by_number.values())

    def _owners(self) -> dict[TopicPartition, str]:
        """Who has claimed which partition of the group's."""
        return {
            TopicPartition(topic, partition): incarnation
            for topic, partition, incarnation in self._database.rows(
                "SELECT topic, partition, incarnation FROM claims WHERE group_name = ?", (self.group,)
            )
        }

    def _work_out(self, owners: Mapping[TopicPartition, str]) -> frozenset[TopicPartition] | None:
        """This member's share; ``None`` if it is no longer a member. Raises ``FencedError``. Inside a transaction."""
        members = [
            Member(incarnation, static_name, joined, _read_subscription(subscription)[0])
            for incarnation, static_name, joined, subscription in self._database.rows(
                "SELECT incarnation, static_name, joined, topics FROM members WHERE group_name = ?", (self.group,)
            )
        ]
        counts = {name: topic.spec.partitions for name, topic in self._catalogue.topics().items()}
        if self.incarnation not in {member.incarnation for member in members}:
            if any(member.static_name == self._static_name is not None for member in members):
                raise FencedError(
                    f"group {self.group}: another process has joined as {self._static_name!r}, so this one must stop; "
                    "give each node an id of its own"
                )
            return None
        shares = (
            assign_together(members, counts)
            if self._assignment == "together"
            else assign_sticky(members, counts, owners)
        )
        return frozenset(shares[self.incarnation])

    def release(self, partitions: Collection[TopicPartition], positions: Mapping[TopicPartition, int]) -> None:
        """Commit ``positions`` and let go of ``partitions``, both at once."""
        with self._database.transaction():
            self._commit(positions)
            self._release(partitions)

    def _release(self, partitions: Collection[TopicPartition]) -> None:
        self._database.execute_many(
            "DELETE FROM claims WHERE group_name = ? AND topic = ? AND partition = ? AND incarnation = ?",
            [(self.group, topic, partition, self.incarnation) for topic, partition in partitions],
        )

    # --- offsets ----------------------------------------------------------------------------------

    def commit(self, positions: Mapping[TopicPartition, int]) -> None:
        """Commit offsets of claimed partitions; those of partitions that are no longer this member's are ignored."""
        if positions:
            with self._database.transaction():
                self._commit(positions)

    def _commit(self, positions: Mapping[TopicPartition, int]) -> None:
        self._database.execute_many(
            """INSERT OR REPLACE INTO offsets SELECT group_name, topic, partition, ? FROM claims
            WHERE group_name = ? AND topic = ? AND partition = ? AND incarnation = ?""",
            [
                (position, self.group, partition.topic, partition.partition, self.incarnation)
                for partition, position in positions.items()
            ],
        )

    def committed(self) -> dict[TopicPartition, int]:
        """All that the group has committed."""
        return self._catalogue.offsets(self.group)


def _subscription(topics: Sequence[str], assignment: Assignment) -> str:
    """What a member's row says of its topics and of how its group shares them. A bare list means together."""
    names = sorted(set(topics))
    return json.dumps(names if assignment == "together" else {"topics": names, "assignment": assignment})


def _read_subscription(text: str) -> tuple[frozenset[str], str]:
    """The inverse of ``_subscription``."""
    found = json.loads(text)
    if isinstance(found, list):
        return frozenset(found), "together"
    return frozenset(found["topics"]), found["assignment"]
