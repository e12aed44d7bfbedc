"""Converts a place given in an option, in one of the forms of `offset_at` or as `@TIME`, to an offset in each partition."""

from __future__ import annotations

from collections.abc import Mapping

from diamant.broker.client.kafka_client import EARLIEST, LATEST, KafkaClient
from diamant.broker.partition_places import offset_at
from diamant.duration import parse_time_ms


def place_offsets(
    client: KafkaClient,
    topic: str,
    numbers: list[int],
    where: str,
    *,
    committed: bool,
    before: Mapping[tuple[str, int], int] | None = None,
) -> Mapping[int, int]:
    """Return the offset of the place `where` in each partition. An offset out of range is moved to the nearer end of the log.

    With `committed`, the log ends at the last stable offset, as for a read_committed consumer. `before` has a group's committed
    offsets, for `+N`. Raises ValueError if `where` is not a place.
    """
    ends = client.offsets(topic, numbers, LATEST, committed=committed)
    if where.startswith("@"):
        found = client.offsets(topic, numbers, parse_time_ms(where[1:]))
        return {number: ends[number] if one < 0 else one for number, one in found.items()}
    offset_at(where, 0, 0, committed=0, name=None if before is None else topic)  # check `where` even without partitions
    starts = client.offsets(topic, numbers, EARLIEST)
    return {
        number: offset_at(
            where,
            starts[number],
            ends[number],
            committed=None if before is None else before.get((topic, number)),
            name=None if before is None else f"{topic}-{number}",
        )
        for number in numbers
    }
