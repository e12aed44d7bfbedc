"""The placement of replicas: round robin over the brokers, across racks.

Leadership of a topic's partitions rotates among the brokers from the first on; Kafka (StripedReplicaPlacer) starts at random.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping


def placed(
    partitions: range, factor: int, racks: Mapping[int, str | None], live: Collection[int]
) -> list[tuple[int, ...]]:
    """Return the replicas of each partition, the preferred leader first. Brokers that are not `live` come last.

    `racks`: the rack of each broker. Replicas of a partition are on different racks if there are enough racks.
    """
    by_rack: dict[str, list[int]] = {}
    for broker_id in sorted(racks):
        by_rack.setdefault(racks[broker_id] or "", []).append(broker_id)
    names = sorted(by_rack)
    return [_replicas(partition, factor, [by_rack[name] for name in names], live) for partition in partitions]


def _replicas(partition: int, factor: int, racks: list[list[int]], live: Collection[int]) -> tuple[int, ...]:
    turn, first = divmod(partition, len(racks))
    in_turn = racks[first:] + racks[:first]
    stripes = range(max(map(len, racks)))
    ordered = [rack[(stripe + turn) % len(rack)] for stripe in stripes for rack in in_turn if stripe < len(rack)]
    ordered.sort(key=lambda broker_id: broker_id not in live)
    return tuple(ordered[:factor])
