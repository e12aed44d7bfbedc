"""The assignors of consumer groups, which assign partitions to members: `uniform` and `range`.

Their results depend only on the members, their subscriptions, and (uniform) the members' earlier targets. For the same
inputs, each member receives the same partitions as in Kafka:

    range    divides each topic separately into contiguous ranges. If they cannot be equal, the first members (static before
             dynamic, then by id) get one more partition. Topics with the same subscribers are divided alike.
    uniform  divides all partitions together into shares that differ by at most one. Members keep their partitions as far as
             the shares allow. If subscriptions differ, the shares are as equal as the subscriptions allow.

    assign("uniform", {"m1": MemberSpec(topic_ids=(topic,)), "m2": MemberSpec(topic_ids=(topic,))}, {topic: 3}, True)
    returns {"m1": {topic: (0, 1)}, "m2": {topic: (2,)}}

Source: RangeAssignor, UniformHomogeneousAssignmentBuilder, UniformHeterogeneousAssignmentBuilder of Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from typing import NamedTuple, TypeAlias
from uuid import UUID

from diamant.broker.coordinators.java_order import (
    copied_capacity,
    in_java_order,
    partitions_in_java_order,
    strings_in_java_order,
    uuid_hash,
    uuids_in_java_order,
)
from diamant.broker.groups.consumer.member import NOTHING, Assignment

MAX_ROUNDS = 16
"""The maximum number of passes over all topics to improve the balance (Kafka's `MAX_ITERATION_COUNT`)."""

NO_OWNER = -1


class MemberSpec(NamedTuple):
    """An assignor's view of a member: the subscribed topics that exist, and its previous target assignment."""

    topic_ids: Sequence[UUID]
    assignment: Assignment = NOTHING
    instance_id: str | None = None
    topic_name_count: int = 0
    """The number of topic names in the subscription, including missing topics. Only needed to reproduce Kafka's order."""


def assign(
    assignor: str, members: Mapping[str, MemberSpec], partition_counts: Mapping[UUID, int], is_homogeneous: bool
) -> dict[str, Assignment]:
    """Compute the assignment of every member.

    `partition_counts` must contain every topic with a subscriber. `is_homogeneous`: all members subscribe to the same topics.
    Raises KeyError if `assignor` is not in `ASSIGNORS`.
    """
    compute = ASSIGNORS[assignor]
    if not members:
        return {}
    result = compute(members, partition_counts, is_homogeneous)
    return {member_id: _ascending(result.get(member_id, {})) for member_id in members}


_Owned: TypeAlias = dict[UUID, set[int]]
_Computed: TypeAlias = Mapping[str, Mapping[UUID, Collection[int]]]


def _ascending(owned: Mapping[UUID, Collection[int]]) -> Assignment:
    return {topic_id: tuple(sorted(partitions)) for topic_id, partitions in owned.items() if partitions}


def _subscribers(
    members: Mapping[str, MemberSpec], ordered: Sequence[str], is_homogeneous: bool
) -> Mapping[UUID, Sequence[int]]:
    """Return the subscribers of each topic, as ascending indexes of `ordered`.

    Members that share one list of topics are handled together: a thousand members with a thousand topics each make a million
    pairs, and hashing an id is slow in Python.
    """
    sharing: dict[int, list[int]] = {}  # indexes of members, by the identity of their list
    for index, member_id in enumerate(ordered):
        sharing.setdefault(0 if is_homogeneous else id(members[member_id].topic_ids), []).append(index)
    lists: dict[UUID, list[int]] = {}  # for each topic, the lists that contain it
    for identity, indexes in sharing.items():
        for topic_id in members[ordered[indexes[0]]].topic_ids:
            lists.setdefault(topic_id, []).append(identity)
    merged: dict[tuple[int, ...], list[int]] = {}
    result = {}
    for topic_id, identities in lists.items():
        key = tuple(identities)
        if key not in merged:
            merged[key] = sorted(index for identity in identities for index in sharing[identity])
        result[topic_id] = merged[key]
    return result


# -- range -------------------------------------------------------------------------------------------------------------


def _range(members: Mapping[str, MemberSpec], partition_counts: Mapping[UUID, int], is_homogeneous: bool) -> _Computed:
    ordered = sorted(members, key=lambda member_id: _range_position(member_id, members[member_id].instance_id))
    owned: list[dict[UUID, range]] = [{} for _ in ordered]
    for topic_id, subscribers in _subscribers(members, ordered, is_homogeneous).items():
        share, extra = divmod(partition_counts[topic_id], len(subscribers))
        start = 0
        for position, index in enumerate(subscribers if share else subscribers[:extra]):
            end = start + share + (position < extra)
            owned[index][topic_id] = range(start, end)
            start = end
    return dict(zip(ordered, owned, strict=True))


def _range_position(member_id: str, instance_id: str | None) -> tuple[bool, bytes]:
    """Return a sort key: static members first, by instance id; then dynamic members, by id. Java compares UTF-16 code units."""
    text = member_id if instance_id is None else instance_id
    return instance_id is None, text.encode("utf-16-be", "surrogatepass")


# -- uniform, all members with the same subscription ----------------------------------------------------------------------


def _uniform(
    members: Mapping[str, MemberSpec], partition_counts: Mapping[UUID, int], is_homogeneous: bool
) -> _Computed:
    if is_homogeneous:
        return _uniform_homogeneous(members, partition_counts)
    return _UniformHeterogeneous(members, partition_counts).build()


def _uniform_homogeneous(members: Mapping[str, MemberSpec], partition_counts: Mapping[UUID, int]) -> dict[str, _Owned]:
    member_ids = strings_in_java_order(members)
    first = members[member_ids[0]]
    capacity = copied_capacity(max(first.topic_name_count, len(first.topic_ids)))
    topic_ids = in_java_order(first.topic_ids, uuid_hash, capacity)
    if not topic_ids:
        return {}
    subscribed = set(topic_ids)
    taken = {
        (topic_id, partition)
        for spec in members.values()
        for topic_id, partitions in spec.assignment.items()
        for partition in partitions
    }
    unassigned = [
        (topic_id, partition)
        for topic_id in topic_ids
        for partition in range(partition_counts[topic_id])
        if (topic_id, partition) not in taken
    ]
    total = sum(partition_counts[topic_id] for topic_id in topic_ids)
    share, extras = divmod(total, len(members))  # `extras` members get one partition more
    result: dict[str, _Owned] = {}
    unfilled: list[tuple[str, int]] = []
    for index, member_id in enumerate(member_ids):
        room = share + (extras > 0)
        has_extra = extras > 0
        kept: _Owned = {}
        before = members[member_id].assignment
        for topic_id in uuids_in_java_order(before):
            if topic_id not in subscribed:
                continue
            partitions = before[topic_id]
            if len(partitions) <= room:
                kept[topic_id] = set(partitions)
                room -= len(partitions)
                continue
            ordered = partitions_in_java_order(partitions)
            kept[topic_id] = set(ordered[:room])
            unassigned += [(topic_id, partition) for partition in ordered[room:]]
            room = 0
        if room > 0 and has_extra and len(member_ids) - index > extras:
            # The member cannot fill its share: leave the extra partition to a later member, unless too few members are left.
            room -= 1
            has_extra = False
        if room > 0:
            unfilled.append((member_id, room))
        extras -= has_extra
        result[member_id] = kept
    waiting = iter(unassigned)
    for member_id, room in unfilled:
        owned = result[member_id]
        # `range` comes first, so that zip stops without dropping an item of `waiting`.
        for _, (topic_id, partition) in zip(range(room), waiting, strict=False):
            owned.setdefault(topic_id, set()).add(partition)
    return result


# -- uniform, members with different subscriptions --------------------------------------------------------------------------


class _UniformHeterogeneous:
    """One assignment. Members are referred to by their indexes in `_member_ids`, which is in the order of Kafka's map."""

    def __init__(self, members: Mapping[str, MemberSpec], partition_counts: Mapping[UUID, int]) -> None:
        self._members = members
        self._partition_counts = partition_counts
        self._member_ids = strings_in_java_order(members)
        self._owned: list[_Owned] = [{} for _ in self._member_ids]
        self._sizes = [0] * len(self._member_ids)
        self._subscribers = _subscribers(members, self._member_ids, is_homogeneous=False)
        self._owners = {topic_id: [NO_OWNER] * partition_counts[topic_id] for topic_id in self._subscribers}
        self._queues: dict[int, _LoadQueue] = {}  # both by the identity of a list of subscribers
        self._balanced_at: dict[int, int] = {}
        """For each list of subscribers, the move count at which their loads differed by at most one."""
        self._move_count = 0

    def build(self) -> dict[str, _Owned]:
        if not self._subscribers:
            return {}
        self._keep_what_is_subscribed()
        for topic_id in self._ordered(
            [topic_id for topic_id, owners in self._owners.items() if NO_OWNER in owners],
        ):
            waiting = [partition for partition, owner in enumerate(self._owners[topic_id]) if owner == NO_OWNER]
            takers = self._queue_of(topic_id).least_loaded(len(waiting))
            for partition, index in zip(waiting, takers, strict=True):
                self._give(topic_id, partition, index)
        self._balance(self._ordered([topic_id for topic_id, some in self._subscribers.items() if len(some) > 1]))
        return dict(zip(self._member_ids, self._owned, strict=True))

    def _queue_of(self, topic_id: UUID) -> _LoadQueue:
        """Return the subscribers of a topic by load. Topics with the same subscribers share a queue."""
        subscribers = self._subscribers[topic_id]
        queue = self._queues.get(id(subscribers))
        if queue is None:
            queue = self._queues[id(subscribers)] = _LoadQueue(subscribers, self._sizes)
        return queue

    def _keep_what_is_subscribed(self) -> None:
        sets: dict[int, set[UUID]] = {}  # by the identity of a list, which many members share
        for index, member_id in enumerate(self._member_ids):
            spec = self._members[member_id]
            if not spec.assignment:
                continue
            subscribed = sets.get(id(spec.topic_ids))
            if subscribed is None:
                subscribed = sets[id(spec.topic_ids)] = set(spec.topic_ids)
            for topic_id, partitions in spec.assignment.items():
                if topic_id not in subscribed:
                    continue
                self._owned[index][topic_id] = set(partitions)
                self._sizes[index] += len(partitions)
                for partition in partitions:
                    self._owners[topic_id][partition] = index

    def _ordered(self, topic_ids: Sequence[UUID]) -> list[UUID]:
        """Sort topics by partitions per subscriber (most first), then by number of subscribers (fewest first), then by id."""

        def position(topic_id: UUID) -> tuple[float, int, int, int]:
            subscriber_count = len(self._subscribers[topic_id])
            density = self._partition_counts[topic_id] / subscriber_count
            return -density, subscriber_count, _signed(topic_id.int >> 64), _signed(topic_id.int & 0xFFFFFFFFFFFFFFFF)

        return sorted(topic_ids, key=position)

    def _give(self, topic_id: UUID, partition: int, index: int) -> None:
        before = self._owners[topic_id][partition]
        if before != NO_OWNER:
            self._owned[before][topic_id].discard(partition)
            self._sizes[before] -= 1
        self._owned[index].setdefault(topic_id, set()).add(partition)
        self._owners[topic_id][partition] = index
        self._sizes[index] += 1

    def _balance(self, topic_ids: Sequence[UUID]) -> None:
        """Balance one topic after another until a whole pass moves nothing."""
        last_changed = -1
        for _ in range(MAX_ROUNDS):
            for index, topic_id in enumerate(topic_ids):
                if index == last_changed:
                    return
                if self._balance_topic(topic_id) or last_changed == -1:
                    last_changed = index

    def _balance_topic(self, topic_id: UUID) -> int:
        """Move partitions of a topic from its most to its least loaded subscribers; return the number of moves."""
        subscribers = self._subscribers[topic_id]
        if self._balanced_at.get(id(subscribers)) == self._move_count:
            return 0
        ladder = _Ladder(subscribers, self._sizes)
        if ladder.imbalance <= 1:
            self._balanced_at[id(subscribers)] = self._move_count
            return 0
        left: dict[int, list[int]] = {}  # the partitions that each member may still give away, the next one last
        for partition, owner in enumerate(self._owners[topic_id]):
            left.setdefault(owner, []).append(partition)
        moved = 0
        while not ladder.is_balanced():
            giver = ladder.next_most_loaded()
            while giver != NO_OWNER and not left.get(giver):
                ladder.exclude_most_loaded()
                giver = ladder.next_most_loaded()
            if giver == NO_OWNER:
                break
            partition = left[giver].pop()
            taker = ladder.next_least_loaded()
            if ladder.is_balanced():
                break
            self._give(topic_id, partition, taker)
            moved += 1
        self._move_count += moved
        return moved


class _LoadQueue:
    """Subscribers ordered by load, to which the partitions of one topic after another are given.

    For each topic, every subscriber with the lowest load is given one partition, then every subscriber whose load is now the
    lowest, and so on. The heap makes it unnecessary to sort the subscribers again for each topic. Between two topics, other
    queues may increase loads, but not decrease them.
    """

    def __init__(self, subscribers: Sequence[int], sizes: list[int]) -> None:
        self._sizes = sizes
        self._heap = [(sizes[index], index) for index in subscribers]
        heapify(self._heap)

    def least_loaded(self, count: int) -> list[int]:
        """Return the members to which the next `count` partitions of a topic are given, in order."""
        heap, sizes = self._heap, self._sizes
        given: list[tuple[int, int, int]] = []  # (current load, load before this topic, subscriber)
        takers = []
        for _ in range(count):
            while heap and heap[0][0] != sizes[heap[0][1]]:
                index = heap[0][1]
                heapreplace(heap, (sizes[index], index))
            if heap and (not given or (heap[0][0], heap[0][0], heap[0][1]) < given[0]):
                load, index = heappop(heap)
                heappush(given, (load + 1, load, index))
            else:
                load, before, index = given[0]
                heapreplace(given, (load + 1, before, index))
            takers.append(index)
        for load, _, index in given:
            heappush(heap, (load, index))
        return takers


class _Ladder:
    """The subscribers of a topic, sorted by load, with two ranges that move towards each other.

    The lower range contains the subscribers with the lowest load, the low level. When each of them has taken a partition, the
    level rises by one, and the range grows by the subscribers at the new level. The upper range gives partitions away in the
    same manner, downwards, and excludes subscribers with no partition of this topic left. The topic is balanced when the two
    levels differ by at most one.
    """

    def __init__(self, subscribers: Sequence[int], sizes: list[int]) -> None:
        self._sizes = sizes
        # `subscribers` is ascending and sorting is stable, so subscribers with equal loads stay ascending.
        self._sorted = sorted(subscribers, key=sizes.__getitem__)
        least, most = sizes[self._sorted[0]], sizes[self._sorted[-1]]
        self.imbalance = most - least
        self._low_end = 0
        self._low_level = least - 1
        self._low_next = 0
        self._high_start = self._high_end = len(self._sorted)
        self._high_level = most + 1
        self._high_next = len(self._sorted) - 1

    def is_balanced(self) -> bool:
        return self._high_level - self._low_level <= 1

    def next_least_loaded(self) -> int:
        if self._low_next >= self._low_end:
            self._low_level += 1
            while self._low_end < len(self._sorted) and self._size(self._low_end) == self._low_level:
                self._low_end += 1
            self._low_next = 0
        member = self._sorted[self._low_next]
        self._low_next += 1
        return member

    def next_most_loaded(self) -> int:
        if self._high_next < self._high_start:
            if self._high_end <= self._high_start and self._high_start > 0:
                # All members at this level were excluded, so continue with the next lower level.
                self._high_level = self._size(self._high_start - 1)
            else:
                self._high_level -= 1
            while self._high_start > 0 and self._size(self._high_start - 1) == self._high_level:
                self._high_start -= 1
            self._high_next = self._high_end - 1
        if self._high_next < 0:
            return NO_OWNER
        member = self._sorted[self._high_next]
        self._high_next -= 1
        return member

    def exclude_most_loaded(self) -> None:
        """Exclude the subscriber that `next_most_loaded` returned last from the upper range."""
        position, last = self._high_next + 1, self._high_end - 1
        self._sorted[position], self._sorted[last] = self._sorted[last], self._sorted[position]
        self._high_end -= 1

    def _size(self, position: int) -> int:
        return self._sizes[self._sorted[position]]


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


ASSIGNORS: dict[str, Callable[[Mapping[str, MemberSpec], Mapping[UUID, int], bool], _Computed]] = {
    "uniform": _uniform,
    "range": _range,
}
