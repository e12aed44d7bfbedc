"""Places in partitions as options give them: `start`, `end`, an offset, `-N` before the end, `@TIME`."""

from __future__ import annotations

from collections.abc import Mapping

from diamant.broker.client.duration import parse_time_ms
from diamant.broker.client.kafka_client import EARLIEST, LATEST, KafkaClient


def place_offsets(
    client: KafkaClient, topic: str, numbers: list[int], where: str, *, committed: bool
) -> Mapping[int, int]:
    """Return the offset of a place in each partition. An offset out of range becomes the nearer bound. ValueError for other text.

    `committed`: the end is the last stable offset, as for read_committed.
    """
    if where in ("start", "beginning", "earliest"):
        return client.offsets(topic, numbers, EARLIEST)
    ends = client.offsets(topic, numbers, LATEST, committed=committed)
    if where in ("end", "latest"):
        return ends
    if where.startswith("@"):
        found = client.offsets(topic, numbers, parse_time_ms(where[1:]))
        return {number: ends[number] if one < 0 else one for number, one in found.items()}
    try:
        offset = int(where)
    except ValueError:
        raise ValueError(f"{where}: expected start, end, an offset, -N or @TIME") from None
    starts = client.offsets(topic, numbers, EARLIEST)
    return {
        number: min(max(offset + ends[number] if where.startswith("-") else offset, starts[number]), ends[number])
        for number in numbers
    }
