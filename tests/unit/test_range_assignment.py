"""Range assignment covers everything once, evenly, and keeps equal partition numbers together."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from distrl.connectors.embedded.assignment import Member, assign_together
from distrl.core.contracts.bus import TopicPartition

TOPICS = ("rewards", "trajectories", "weights")


@st.composite
def groups(draw: st.DrawFn) -> list[Member]:
    count = draw(st.integers(1, 6))
    return [
        Member(
            incarnation=f"i{index}",
            static_name=draw(st.sampled_from([None, f"node-{index}"])),
            joined=draw(st.integers(0, 100)) * 10 + index,
            topics=frozenset(draw(st.sets(st.sampled_from(TOPICS), min_size=1))),
        )
        for index in range(count)
    ]


@given(groups(), st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 9)))
def test_every_partition_has_one_owner_who_reads_its_topic(members: list[Member], partitions: dict[str, int]) -> None:
    assigned = assign_together(members, partitions)
    assert assigned.keys() == {member.incarnation for member in members}
    owners = Counter(partition for share in assigned.values() for partition in share)
    read = {topic for topic in partitions if any(topic in member.topics for member in members)}
    assert owners == {TopicPartition(topic, number): 1 for topic in read for number in range(partitions[topic])}
    for topic in read:
        readers = [member for member in members if topic in member.topics]
        assert {name.topic for member in readers for name in assigned[member.incarnation]} <= set.union(
            *(set(member.topics) for member in readers)
        )
        sizes = [sum(name.topic == topic for name in assigned[member.incarnation]) for member in readers]
        assert max(sizes) - min(sizes) <= 1


@given(groups(), st.integers(1, 9))
def test_equal_numbers_go_together(members: list[Member], count: int) -> None:
    same = [Member(m.incarnation, m.static_name, m.joined, frozenset(TOPICS)) for m in members]
    for share in assign_together(same, dict.fromkeys(TOPICS, count)).values():
        numbers = [{name.partition for name in share if name.topic == topic} for topic in TOPICS]
        assert numbers[0] == numbers[1] == numbers[2]


@given(groups(), st.integers(1, 9))
def test_the_order_in_which_members_are_known_makes_no_difference(members: list[Member], count: int) -> None:
    partitions = dict.fromkeys(TOPICS, count)
    assert assign_together(members, partitions) == assign_together(members[::-1], partitions)
