"""The records of a topic that a redaction would remove, found without changing anything."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from diamant.broker.operation_errors import NotPossible
from diamant.protocol.errors import KafkaError
from diamant.storage.errors import StorageError
from diamant.storage.log.log import Log

if TYPE_CHECKING:
    from diamant.broker.operations.records.explain_operation import ExplainOperation
    from diamant.cleaner.redaction.hits import Hits, HitsByPartition
    from diamant.cleaner.redaction.locate import LocatedRecords, RecordCondition

OFFSET_BYTES = 64 * 1024 * 1024
"""The maximum memory for the offsets of one partition."""


async def located_records(
    explaining: ExplainOperation, topic: str, where: RecordCondition, hits: HitsByPartition | None = None
) -> list[tuple[int, LocatedRecords]]:
    """Return the result of `locate_records` for each partition. `hits` come from an earlier search, if there was one.

    Raises NotFound, NotPossible.
    """
    found = []
    for log in explaining.logs(topic, None):
        try:
            of_log = None if hits is None else hits.get((topic, log.partition))
            found.append((log.partition, await _locate(explaining, log, where, of_log)))
        except (StorageError, KafkaError, OSError) as error:
            raise NotPossible(f"{topic}-{log.partition} cannot be searched: {error}") from None
    return found


async def _locate(explaining: ExplainOperation, log: Log, where: RecordCondition, hits: Hits | None) -> LocatedRecords:
    from diamant.cleaner.redaction.locate import SearchedSegment, locate_records

    taken, files = await explaining.open(log)
    files.close()
    segments = [
        SearchedSegment(one.base_offset, one.path, one.size, tuple(one.txn_index.all())) for one in taken.segments
    ]

    def locate() -> LocatedRecords:
        return locate_records(
            log.env,
            segments,
            where,
            taken.state.last_stable_offset,
            is_compacted=log.config.is_compacted,
            offset_bytes=OFFSET_BYTES,
            check=explaining.check,
            hits=hits,
        )

    return await asyncio.to_thread(locate)
