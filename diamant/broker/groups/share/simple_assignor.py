"""The assignor `simple`: every partition has a member, every member has a partition, and members may share partitions.

A member keeps its partitions up to a fair number, because others cannot acquire its records in flight until its locks end.

Source: KIP-932; SimpleAssignor of Kafka 4.3 has the same aims.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import TypeAlias
from uuid import UUID

Place: TypeAlias = tuple[UUID, int]
"""A topic id and a partition."""


def assign(
    wanted: Mapping[str, Collection[UUID]], current: Mapping[str, Collection[Place]], places: Collection[Place]
) -> dict[str, list[Place]]:
    """Return the partitions of each member, ascending. `wanted`: the topics that each member subscribes to."""
    sharing: Counter[Place] = Counter()
    found: dict[str, list[Place]] = {member_id: [] for member_id in wanted}
    open_places = sorted(place for place in places if any(place[0] in topics for topics in wanted.values()))
    if not open_places:
        return found
    per_member = max(1, -(-len(open_places) // len(wanted)))
    per_place = max(1, -(-len(wanted) // len(open_places)))
    exists = set(open_places)

    def take(member_id: str, place: Place) -> None:
        found[member_id].append(place)
        sharing[place] += 1

    for member_id, topics in wanted.items():
        for place in sorted(current.get(member_id, ())):
            has_room = len(found[member_id]) < per_member and sharing[place] < per_place
            if place in exists and place[0] in topics and has_room:
                take(member_id, place)
    for place in open_places:
        if not sharing[place]:
            takers = [member_id for member_id, topics in wanted.items() if place[0] in topics]
            take(min(takers, key=lambda member_id: len(found[member_id])), place)
    for member_id, topics in wanted.items():
        offered = [place for place in open_places if place[0] in topics]
        if offered and not found[member_id]:
            take(member_id, min(offered, key=sharing.__getitem__))
    return {member_id: sorted(taken) for member_id, taken in found.items()}
