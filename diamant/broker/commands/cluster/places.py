"""Places in partitions as given in options: the forms of `offset_at`, and `@TIME`."""

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
    """Return the offset of `where` in each partition; if out of range, the nearer bound. Raises ValueError for any other text.

    `committed`: the end is the last stable offset, as for read_committed. `before`: the committed offsets of a group, for `+N`.
    """
    ends = client.offsets(topic, numbers, LATEST, committed=committed)
    if where.startswith("@"):
        found = client.offsets(topic, numbers, parse_time_ms(where[1:]))
        return {number: ends[number] if one < 0 else one for number, one in found.items()}
    offset_at(where, 0, 0, committed=0, name=None if before is None else topic)  # checked even without partitions
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
