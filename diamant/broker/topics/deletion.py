"""The deletion of topics: from the metadata log, from memory, and, once this is durable, from the log directory.

`storage/directory/log_directory` renames the directories of partitions;
`removal_queue` removes them after `file.delete.delay.ms`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from contextlib import suppress

from diamant.broker.topics.topics import Topics
from diamant.protocol.kraft.records import RemoveTopicRecord
from diamant.storage.log.log import Log

logger = logging.getLogger(__name__)


async def delete_topics(topics: Topics, names: Collection[str]) -> None:
    """Delete existing topics. Wakes pending fetches, notifies listeners, and returns when the deletion is durable.

    Raises StorageError or OSError. If the records could not be appended to the metadata log, nothing has changed; after any other
    error, the topics are no longer usable. A directory may remain until housekeeping or the next start removes it; if the
    metadata log could not be synced, the topics may be back after the next start.
    """
    for name in names:
        for log in topics.by_name[name].logs.values():
            _write_indexes(log)
    directory, metadata = topics.directory, topics.metadata
    metadata.append([RemoveTopicRecord(topic_id=topics.by_name[name].topic_id) for name in names])
    deleted_offset = metadata.end_offset
    following: list[asyncio.Future[None]] = []
    for name in names:
        topic = topics.withdraw(name)
        for log in topic.logs.values():
            directory.delete_log(log, deleted_offset)
        directory.delete_unopened(name, deleted_offset)
        told = [listener.topic_deleted(topic) for listener in topics.listeners]
        following += [asyncio.ensure_future(coroutine) for coroutine in told if coroutine is not None]
    try:
        await topics.sync()
        doomed = set(names)
        directory.take_away_left([left for left in directory.left if left[0] in doomed], metadata.synced_offset)
    finally:
        topics.on_refused()
        for future in following:
            await asyncio.shield(future)
    for name in names:
        logger.info("topic %s deleted", name)


def _write_indexes(log: Log) -> None:
    """Write missing index entries. Call this before a deletion is logged, since a start sets aside directories changed later."""
    for segment in log.segments:
        with suppress(OSError):  # complete indexes matter only if Kafka removes the directory
            segment.flush_indexes()
