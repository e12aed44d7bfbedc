"""One partition is fetched, and the values of its records."""

from __future__ import annotations

from typing import Any

from diamant.protocol.batches.batch import iter_headers
from diamant.protocol.batches.batch_records import iter_records
from tests.broker.wire import FETCH, WireClient, fetch_fields


def values_of(records: Any) -> list[bytes | None]:
    """Return the values in a blob of whole batches."""
    blob = bytes(records)
    return [record.value for position, _ in iter_headers(blob) for record in iter_records(blob, position)]


def partition_of(response: Any) -> Any:
    """Return the only partition of a Fetch answer."""
    return response.responses[0].partitions[0]


async def fetch(wire: WireClient, topic: str, offset: int, version: int = 12, **fields: Any) -> Any:
    """Fetch from one partition."""
    return partition_of(await wire.call(FETCH, version, fetch_fields(topic, offset, **fields)))
