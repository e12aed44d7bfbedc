"""The assignors compared with Kafka's results, and the invariants of any assignment."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diamant.broker.coordinators.java_order import (
    copied_capacity,
    grown_capacity,
    in_java_order,
    string_hash,
    strings_in_java_order,
    uuid_hash,
)
from diamant.broker.groups.consumer.member import Assignment
from diamant.broker.groups.decisions.assignors import MemberSpec, _Ladder, _LoadQueue, assign

GOLDEN = Path(__file__).parents[1].parent / "golden" / "assignors_4.3.1.json"
CASES = json.loads(GOLDEN.read_text())
"""Groups and what the assignors of Kafka 4.3.1 made of them, a third of them with what members had before."""

TOPICS = [UUID(int=0x1234_5678_9ABC_DEF0 * (number + 1) ** 7 % (1 << 128)) for number in range(5)]


def _specs(case: dict[str, Any]) -> dict[str, MemberSpec]:
    ids = {name: UUID(topic_id) for name, topic_id, _ in case["topics"]}
    return {
        member["id"]: MemberSpec(
            [
                ids[name]
                for name in in_java_order(member["topics"], string_hash, copied_capacity(len(member["topics"])))
            ],
            {ids[name]: tuple(partitions) for name, partitions in member["assignment"].items()},
            member["instance_id"],
            len(member["topics"]),
        )
        for member in case["members"]
    }


@pytest.mark.parametrize("case", CASES, ids=[f"{number}-{case['assignor']}" for number, case in enumerate(CASES)])
def test_same_as_kafka(case: dict[str, Any]) -> None:
    """Every member gets exactly the same partitions as from Kafka."""
    names = {UUID(topic_id): name for name, topic_id, _ in case["topics"]}
    counts = {UUID(topic_id): count for _, topic_id, count in case["topics"]}
    found = assign(case["assignor"], _specs(case), counts, case["is_homogeneous"])
    assert {
        member_id: {names[topic_id]: list(partitions) for topic_id, partitions in assignment.items()}
        for member_id, assignment in found.items()
    } == case["expected"]


def test_java_order() -> None:
    """Strings and ids are in the order recorded from a Java program, with its table sizes."""
    assert strings_in_java_order(["range", "uniform"]) == ["uniform", "range"]
    assert strings_in_java_order([f"member-{number}" for number in range(5)]) == [
        "member-1",
        "member-2",
        "member-0",
        "member-3",
        "member-4",
    ]
    assert uuid_hash(UUID(int=0x0123_4567_89AB_CDEF_FEDC_BA98_7654_3210)) == 0
    assert [grown_capacity(count) for count in (0, 12, 13, 24, 25)] == [16, 16, 32, 32, 64]
    assert [copied_capacity(count) for count in (0, 11, 12, 23, 24)] == [16, 16, 32, 32, 64]


members_strategy = st.dictionaries(
    st.text("abcdef", min_size=1, max_size=4),
    st.tuples(st.sets(st.sampled_from(TOPICS)), st.none() | st.text("xyz", min_size=1, max_size=3)),
    min_size=1,
    max_size=8,
)
counts_strategy = st.fixed_dictionaries({topic_id: st.integers(1, 12) for topic_id in TOPICS})


@given(st.sampled_from(["uniform", "range"]), members_strategy, counts_strategy, st.data())
def test_assignments_are_whole_and_fair(
    assignor: str,
    members: dict[str, tuple[set[UUID], str | None]],
    counts: dict[UUID, int],
    data: st.DataObject,
) -> None:
    """From any earlier assignment, every partition of a topic with subscribers has one owner, a subscriber. Among members
    with the same topics, shares differ by one at most: with uniform in total, with range per topic, which adds up: the
    first member gets all of five topics with one partition each.
    """
    specs = {}
    free = {(topic_id, partition) for topic_id in TOPICS for partition in range(counts[topic_id])}
    for member_id, (topic_ids, instance_id) in members.items():
        before: dict[UUID, list[int]] = {}
        for place in data.draw(st.sets(st.sampled_from(sorted(free, key=str)), max_size=10)) if free else ():
            free.discard(place)
            before.setdefault(place[0], []).append(place[1])
        specs[member_id] = MemberSpec(sorted(topic_ids), before, instance_id, len(topic_ids))
    is_homogeneous = len({frozenset(topic_ids) for topic_ids, _ in members.values()}) == 1
    found = assign(assignor, specs, counts, is_homogeneous)
    assert found.keys() == specs.keys()
    owners = Counter(
        (topic_id, partition)
        for assignment in found.values()
        for topic_id, partitions in assignment.items()
        for partition in partitions
    )
    wanted = {topic_id for topic_ids, _ in members.values() for topic_id in topic_ids}
    assert owners == Counter((topic_id, partition) for topic_id in wanted for partition in range(counts[topic_id]))
    assert all(set(found[member_id]) <= set(spec.topic_ids) for member_id, spec in specs.items())
    if is_homogeneous and assignor == "uniform":
        assert _spread([_size(assignment) for assignment in found.values()]) <= 1
    if assignor == "range":
        for topic_id in wanted:
            subscribers = [member_id for member_id, (topic_ids, _) in members.items() if topic_id in topic_ids]
            assert _spread([len(found[member_id].get(topic_id, ())) for member_id in subscribers]) <= 1


@given(members_strategy, counts_strategy)
def test_uniform_is_stable(members: dict[str, tuple[set[UUID], str | None]], counts: dict[UUID, int]) -> None:
    """A balanced assignment is unchanged if computed again."""
    is_homogeneous = len({frozenset(topic_ids) for topic_ids, _ in members.values()}) == 1
    specs = {member_id: MemberSpec(sorted(topic_ids)) for member_id, (topic_ids, _) in members.items()}
    first = assign("uniform", specs, counts, is_homogeneous)
    again = {member_id: spec._replace(assignment=first[member_id]) for member_id, spec in specs.items()}
    assert assign("uniform", again, counts, is_homogeneous) == first


class CountedId(UUID):
    """A topic id that counts its hashes, which are expensive in Python."""

    hash_count = 0

    def __hash__(self) -> int:
        CountedId.hash_count += 1
        return super().__hash__()


@pytest.mark.parametrize("is_homogeneous", [True, False])
def test_range_of_many_members(is_homogeneous: bool) -> None:
    """With a thousand members and ten thousand partitions of a hundred topics, the work depends on the assigned partitions.
    Handling each pair of member and topic took 0.2 s, and 2 s for a thousand topics.
    """
    topic_ids = [CountedId(int=number + 1) for number in range(100)]
    counts: dict[UUID, int] = dict.fromkeys(topic_ids, 100)
    specs = {f"member-{number:04}": MemberSpec(topic_ids) for number in range(999)}
    specs["one more"] = MemberSpec(topic_ids if is_homogeneous else topic_ids[:50])
    CountedId.hash_count = 0
    found = assign("range", specs, counts, is_homogeneous)
    assert CountedId.hash_count <= 30_000
    assert found["member-0000"] == {topic_id: (0,) for topic_id in topic_ids}
    assert found["member-0099"] == {topic_id: (99,) for topic_id in topic_ids}
    assert found["member-0100"] == {}


def test_uniform_of_many_members_with_different_subscriptions() -> None:
    """With a thousand members of two kinds and a hundred topics, members of a kind are handled together. Sorting the members
    for each topic took 0.5 s for a thousand topics, and 6 s for ten thousand.
    """
    topic_ids = [CountedId(int=number + 1) for number in range(100)]
    counts: dict[UUID, int] = dict.fromkeys(topic_ids, 100)
    kinds = topic_ids, topic_ids[:50]
    specs = {f"member-{number:04}": MemberSpec(kinds[number % 2]) for number in range(1000)}
    first = assign("uniform", specs, counts, False)
    assert {_size(assignment) for assignment in first.values()} == {10}
    again = {member_id: spec._replace(assignment=first[member_id]) for member_id, spec in specs.items()}
    CountedId.hash_count = 0
    assert assign("uniform", again, counts, False) == first
    assert CountedId.hash_count <= 100_000


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=6),
    st.lists(st.tuples(st.sets(st.integers(0, 5), min_size=1), st.integers(0, 12)), max_size=5),
)
def test_the_least_loaded_as_if_sorted_for_each_topic(sizes: list[int], topics: list[tuple[set[int], int]]) -> None:
    """A queue shared over many topics gives the same result as a new ladder for each topic."""
    queues: dict[tuple[int, ...], _LoadQueue] = {}
    for some, count in topics:
        subscribers = tuple(sorted(index for index in some if index < len(sizes))) or (0,)
        queue = queues.setdefault(subscribers, _LoadQueue(subscribers, sizes))
        ladder = _Ladder(subscribers, list(sizes))
        expected = [ladder.next_least_loaded() for _ in range(count)]
        takers = queue.least_loaded(count)
        assert takers == expected
        for index in takers:
            sizes[index] += 1


def test_no_members() -> None:
    """Without members the assignment is empty."""
    assert assign("uniform", {}, {}, True) == {}


def _size(assignment: Assignment) -> int:
    return sum(map(len, assignment.values()))


def _spread(sizes: list[int]) -> int:
    return max(sizes, default=0) - min(sizes, default=0)
