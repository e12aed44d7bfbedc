"""The creation of partitions: their records in the metadata log and their logs on disk."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from uuid import UUID

from diamant.broker.topics.topic import Topic
from diamant.broker.topics.topics import Topics
from diamant.protocol.kraft.records import PartitionRecord
from diamant.storage.directory.log_directory import LoadFailure, LogDirectory
from diamant.storage.errors import StorageError
from diamant.storage.kraft.image import TopicImage
from diamant.storage.log.log import Log
from diamant.storage.recovery.open_log import create_log
from diamant.storage.segments.log_config import LogConfig

logger = logging.getLogger(__name__)

LOGS_AT_ONCE = 32
"""The number of partitions created in parallel, so that their fsyncs share commits of the file system's journal."""


def partition_records(
    topics: Topics, topic_id: UUID, partitions: range, replicas: Sequence[Sequence[int]]
) -> list[PartitionRecord]:
    """Return the metadata records of new partitions with these replicas. The first replica whose broker is up leads."""
    is_up = (lambda _broker_id: True) if topics.brokers is None else topics.brokers.is_up
    records = []
    for partition, broker_ids in zip(partitions, replicas, strict=True):
        isr = tuple(filter(is_up, broker_ids))
        record = PartitionRecord(
            partition_id=partition,
            topic_id=topic_id,
            replicas=tuple(broker_ids),
            isr=isr,
            leader=isr[0],
            leader_epoch=0,
            partition_epoch=0,
            directories=(topics.metadata.directory_id,) * len(broker_ids),
        )
        records.append(record)
    return records


async def create_logs(
    topics: Topics, topic: Topic, image: TopicImage, config: LogConfig, partitions: Sequence[int]
) -> None:
    """Create empty partitions. Several threads create and sync the files; the rest runs on the loop.

    Raises the first disk error. Partitions that could not be created are not served until `try_again` has created them.
    """
    if topics.makes_no_logs:
        raise StorageError(f"{topics.directory.path} is being reset to a snapshot: try again")
    making = asyncio.get_running_loop().create_future()
    topics.making.add(making)
    try:
        await _create_logs(topics, topic, image, config, partitions)
    except (OSError, StorageError) as error:
        if topics.image.topics.get(topic.name) is image:
            known = {*topic.logs, *(one.partition for one in topics.directory.failures if one.topic == topic.name)}
            topics.directory.failures += [
                LoadFailure(topic.name, partition, error, is_new=True)
                for partition in partitions
                if partition not in known
            ]
            topics.on_refused()
        raise
    finally:
        topics.making.discard(making)
        making.set_result(None)


def is_refused(directory: LogDirectory) -> bool:
    """Return whether partitions are still to be created or removed, after a disk error or a deletion that is not yet durable."""
    return bool(directory.left) or any(failure.is_new for failure in directory.failures)


async def try_again(topics: Topics) -> None:
    """Retry the creations and removals that `is_refused` reports. Tries all of them, then raises the last error."""
    last: OSError | StorageError | None = None
    try:
        if topics.directory.left:
            await topics.sync()
            topics.directory.take_away_left(topics.directory.left, topics.metadata.synced_offset)
    except (OSError, StorageError) as error:
        last = error
    failed: dict[str, list[int]] = {}
    for failure in topics.directory.failures:
        if failure.is_new:
            failed.setdefault(failure.topic, []).append(failure.partition)
    for name, partitions in failed.items():
        topic, image = topics.by_name.get(name), topics.image.topics.get(name)
        if topic is None or image is None:
            continue  # the topic was deleted
        try:
            await create_logs(topics, topic, image, topics.log_config_of(name), partitions)
            logger.info("topic %s: partitions that could not be created earlier have been created", name)
        except (OSError, StorageError) as error:
            last = error
        topics.generation += 1
    if last is not None:
        raise last


async def _create_logs(
    topics: Topics, topic: Topic, image: TopicImage, config: LogConfig, partitions: Sequence[int]
) -> None:
    directory = topics.directory
    made = [(topic.name, partition) for partition in partitions]
    if not directory.left.keys().isdisjoint(made):
        await topics.sync()
        directory.take_away_left(made, topics.metadata.synced_offset)
    await asyncio.to_thread(directory.checkpoint_files.forget, made)
    failures: list[BaseException] = []
    for start in range(0, len(partitions), LOGS_AT_ONCE):
        some = partitions[start : start + LOGS_AT_ONCE]
        created = await asyncio.gather(
            *(asyncio.to_thread(_create_log, topics, topic, partition, config) for partition in some),
            return_exceptions=True,
        )
        for log in created:
            if isinstance(log, BaseException):
                failures.append(log)
                continue
            if topics.image.topics.get(topic.name) is not image:
                return  # the topic was deleted
            directory.adopt(log)
            directory.failures = [one for one in directory.failures if one[:2] != (log.topic, log.partition)]
            topics.take(topic, log, image)
            if topics.on_created is not None:
                topics.on_created(log)
        if failures:
            raise failures[0]


def _create_log(topics: Topics, topic: Topic, partition: int, config: LogConfig) -> Log:
    directory = topics.directory
    return create_log(
        directory.env,
        f"{directory.path}/{topic.name}-{partition}",
        topic.name,
        partition,
        topic.topic_id,
        config,
        directory.validation,
        producer_expiration_ms=topics.config.producer_id_expiration_ms,
    )
