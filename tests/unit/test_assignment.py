"""How the embedded log's groups share partitions: nothing is left over or given twice, shares are even, little moves."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from distrl.connectors.embedded.assignment import Member, assign_sticky, assign_together
from distrl.core.contracts.bus import TopicPartition

TOPICS = ("a", "b")
members = st.lists(st.booleans(), min_size=1, max_size=6).map(
    lambda static: [
        Member(f"m{index}", f"node-{index}" if named else None, index, frozenset(TOPICS))
        for index, named in enumerate(static)
    ]
)
counts = st.fixed_dictionaries({topic: st.integers(0, 9) for topic in TOPICS})


def partitions(counts: dict[str, int]) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for topic, count in counts.items() for number in range(count)]


@given(members, counts, st.randoms(use_true_random=False))
def test_sticky_shares_are_whole_even_and_move_no_more_than_needed(
    members: list[Member], counts: dict[str, int], random: object
) -> None:
    names = [*(member.incarnation for member in members), "gone", None]
    owners = {p: name for p in partitions(counts) if (name := random.choice(names)) is not None}  # type: ignore[attr-defined]
    shares = assign_sticky(members, counts, owners)
    given_out = [partition for share in shares.values() for partition in share]
    assert sorted(given_out) == sorted(partitions(counts))
    sizes = [len(share) for share in shares.values()]
    assert max(sizes) - min(sizes) <= 1
    held = {name: {p for p, owner in owners.items() if owner == name} for name in shares}
    kept = sum(len(held[name] & shares[name]) for name in shares)
    least, more = divmod(len(given_out), len(members))
    most = sorted((len(share) for share in held.values()), reverse=True)
    assert kept == sum(min(size, least + (index < more)) for index, size in enumerate(most))
    assert assign_sticky(members, counts, {p: name for name, share in shares.items() for p in share}) == shares


@given(members, counts)
def test_together_gives_equal_numbers_to_one_member(members: list[Member], counts: dict[str, int]) -> None:
    counts["b"] = counts["a"]
    shares = assign_together(members, counts)
    assert sorted(p for share in shares.values() for p in share) == sorted(partitions(counts))
    for share in shares.values():
        assert {p.partition for p in share if p.topic == "a"} == {p.partition for p in share if p.topic == "b"}


def test_what_a_member_does_not_read_is_not_its_own() -> None:
    readers = [Member("m0", None, 0, frozenset({"a"})), Member("m1", None, 1, frozenset(TOPICS))]
    owners = {TopicPartition("b", 0): "m0", TopicPartition("a", 0): "m1"}
    shares = assign_sticky(readers, {"a": 1, "b": 2}, owners)
    assert shares == {"m0": {TopicPartition("a", 0)}, "m1": {TopicPartition("b", 0), TopicPartition("b", 1)}}
