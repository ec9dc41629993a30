"""Which member of a group gets which partitions: range assignment as Kafka's range assignor does it, and one that moves
as little as may be. Used by ``group``.

Pure functions of what the catalogue holds, so every member comes to the same result by itself.
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


def assign_together(members: Sequence[Member], partitions: Mapping[str, int]) -> dict[str, set[TopicPartition]]:
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


def assign_sticky(
    members: Sequence[Member], partitions: Mapping[str, int], owners: Mapping[TopicPartition, str]
) -> dict[str, set[TopicPartition]]:
    """Partitions by incarnation, given how many each topic has and who has which now.

    Everyone keeps what it has; what nobody has goes to whoever has least; then whoever has most gives to whoever has least until
    they differ by one at most, or cannot take what the other has.
    """
    ranked = sorted(members, key=Member.rank)
    result: dict[str, set[TopicPartition]] = {member.incarnation: set() for member in ranked}
    readers = {topic: [member.incarnation for member in ranked if topic in member.topics] for topic in partitions}
    free: list[TopicPartition] = []
    for partition in (TopicPartition(topic, n) for topic in sorted(partitions) for n in range(partitions[topic])):
        owner = owners.get(partition, "")
        if owner in readers[partition.topic]:
            result[owner].add(partition)
        elif readers[partition.topic]:
            free.append(partition)
    for partition in free:
        result[min(readers[partition.topic], key=lambda name: len(result[name]))].add(partition)
    while (move := _move(result, readers)) is not None:
        partition, giver, taker = move
        result[giver].remove(partition)
        result[taker].add(partition)
    return result


def _move(
    held: Mapping[str, set[TopicPartition]], readers: Mapping[str, Sequence[str]]
) -> tuple[TopicPartition, str, str] | None:
    """A partition, who gives and who takes it, that makes shares more even; ``None`` if there is none."""
    for giver in sorted(held, key=lambda name: -len(held[name])):
        for partition in sorted(held[giver], reverse=True):
            taker = min(readers[partition.topic], key=lambda name: len(held[name]))
            if len(held[taker]) + 1 < len(held[giver]):
                return partition, giver, taker
    return None
