"""The deletion of topics: from the metadata log and from memory.

`storage/directory/log_directory` renames the directories of partitions;
`removal_queue` removes them after `file.delete.delay.ms`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection

from diamant.broker.topics.topics import Topics
from diamant.protocol.kraft.records import RemoveTopicRecord

logger = logging.getLogger(__name__)


async def delete_topics(topics: Topics, names: Collection[str]) -> None:
    """Delete topics that are in use. Returns when the deletion is durable. Wakes pending fetches, notifies listeners.

    StorageError, OSError: if the metadata log accepts no record, nothing has happened. After that the topics are deleted in
    any case, though one of their directories may remain, which the next start sets aside.
    """
    topics.metadata.append([RemoveTopicRecord(topic_id=topics.by_name[name].topic_id) for name in names])
    failure: OSError | None = None
    following: list[asyncio.Future[None]] = []
    for name in names:
        topic = topics.withdraw(name)
        for log in topic.logs.values():
            try:
                topics.directory.delete_log(log)
            except OSError as error:
                failure = error
                topics.on_change(log)  # pending fetches of its data must end, too
        try:
            topics.directory.delete_unopened(name)
        except OSError as error:
            failure = error
        told = [listener.topic_deleted(topic) for listener in topics.listeners]
        following += [asyncio.ensure_future(coroutine) for coroutine in told if coroutine is not None]
    try:
        await topics.sync()
    finally:
        for future in following:
            await asyncio.shield(future)
    if failure is not None:
        raise failure
    for name in names:
        logger.info("topic %s deleted", name)
