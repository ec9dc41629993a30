"""Which member of a group gets which partitions: range assignment, as Kafka's range assignor does it. Used by ``group``.

A pure function of the members and topics, so every member comes to the same result by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from distrl.core.contracts.bus import TopicPartition


@dataclass(frozen=True, slots=True)
class Member:
    """One member as the catalogue knows it."""

    incarnation: str
    """Unique to one life of a member."""
    static_name: str | None
    joined: int
    """The later it joined, the larger."""
    topics: frozenset[str]

    def rank(self) -> tuple[bool, str, int]:
        """Static members first, by name; others as they joined, so a newcomer moves as little as may be."""
        return (self.static_name is None, self.static_name or "", self.joined)


def assign(members: Sequence[Member], partitions: Mapping[str, int]) -> dict[str, set[TopicPartition]]:
    """Partitions by incarnation, given how many each topic has.

    For each topic, its members in order of rank share consecutive runs of partitions, the first ones
    one more when they do not divide. Topics with the same number of partitions and the same members are therefore cut at
    the same places: whoever has partition 3 of one has partition 3 of the others.
    """
    result: dict[str, set[TopicPartition]] = {member.incarnation: set() for member in members}
    for topic, count in partitions.items():
        readers = sorted((member for member in members if topic in member.topics), key=Member.rank)
        at = 0
        for index, member in enumerate(readers):
            share = count // len(readers) + (index < count % len(readers))
            result[member.incarnation].update(TopicPartition(topic, number) for number in range(at, at + share))
            at += share
    return result
