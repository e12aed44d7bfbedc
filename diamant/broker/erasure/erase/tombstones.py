"""Tombstones of an erasure: written like any record, removed before their horizon on request."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from diamant.broker.erasure.erase.erase_result import EraseFailed
from diamant.broker.operations.calls.blocking import to_its_end
from diamant.cleaner.segments.record_removal import write_without
from diamant.protocol.batches.header import Record
from diamant.protocol.batches.records import build_batch
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.storage.log.log import Log
from diamant.storage.log.segment_swap import Replacement
from diamant.storage.segments.segment import Segment

if TYPE_CHECKING:
    from diamant.broker.node.cleaner import NodeCleaner
    from diamant.broker.node.node import Node
    from diamant.storage.env.env import Env


class TombstoneRefused(Exception):
    """A partition takes no tombstone until an operator acts. The text states the reason and the remedy."""


def write_tombstone(node: Node, log: Log, key: bytes) -> int:
    """Append a tombstone and return its offset. On the loop thread. TombstoneRefused; EraseFailed, OSError (a full disk)."""
    batch = build_batch([Record(0, node.env.clock.now_ms(), key, None)])
    try:
        appended = log.append_as_leader(memoryview(batch))
    except KafkaError as error:
        if error.code is ErrorCode.KAFKA_STORAGE_ERROR and log.write_failure is None:
            raise EraseFailed(f"{log.topic}-{log.partition}: the tombstone cannot be written: {error}") from None
        raise TombstoneRefused(_why_refused(log, len(batch), error)) from None
    node.log_events.changed(log)
    return appended.base_offset


def _why_refused(log: Log, size: int, error: KafkaError) -> str:
    if log.write_failure is not None:
        return (
            "no tombstone can be written: the partition refuses writes after a failed one. See the broker's log, repair the "
            "disk, and restart the broker"
        )
    limits = {
        ErrorCode.MESSAGE_TOO_LARGE: ("max.message.bytes", log.config.max_message_bytes),
        ErrorCode.RECORD_LIST_TOO_LARGE: ("segment.bytes", log.config.segment_bytes),
    }
    if error.code not in limits:
        return f"no tombstone can be written: {error}"
    name, limit = limits[error.code]
    return (
        f"the tombstone would have {size} bytes, and {name} of the topic allows {limit}: raise it, and the erasure continues "
        "automatically"
    )


async def remove_tombstones(env: Env, cleaning: NodeCleaner, log: Log, key: bytes, end: int) -> None:
    """Rewrite the segments that hold a tombstone of `key` below the offset `end`, without it. On the loop thread.

    Cleaning of the partition is paused during the call. A segment once begun is finished even if the caller is cancelled.
    """
    service = await cleaning.service()
    partition = (log.topic, log.partition)
    await service.abort_and_pause(partition)
    try:
        if log.active.base_offset < end:
            log.roll()
        for segment in list(log.segments[:-1]):
            if not segment.is_deleted and segment.base_offset < end:
                await to_its_end(_rewrite(env, log, segment, key, end))
    finally:
        service.resume(partition)


async def _rewrite(env: Env, log: Log, segment: Segment, key: bytes, end: int) -> None:
    aborted = await asyncio.to_thread(segment.txn_index.all)
    output = await asyncio.to_thread(
        write_without,
        env,
        log.path,
        segment.base_offset,
        segment.size,
        aborted,
        lambda record: record.key == key and record.value is None and record.offset < end,
        index_interval_bytes=log.config.index_interval_bytes,
        segment_index_bytes=log.config.segment_index_bytes,
    )
    if output is None:
        return
    replacement = Replacement(
        log, output.base_offset, (output.base_offset,), source_sizes=[segment.size], size=output.size
    )
    try:
        await asyncio.to_thread(replacement.prepare)
    except BaseException:
        replacement.abandon()
        raise
    replacement.swap()
    await asyncio.to_thread(replacement.finish)
