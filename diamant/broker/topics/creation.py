"""The creation of topics."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from diamant.broker.config.topic_values import log_config
from diamant.broker.topics.creation_checks import NewTopic
from diamant.broker.topics.partitions import create_logs, partition_records
from diamant.broker.topics.topic import Topic
from diamant.broker.topics.topics import Topics
from diamant.protocol.kraft.records import TOPIC_RESOURCE, ConfigRecord, PartitionRecord, TopicRecord
from diamant.storage.errors import StorageError

logger = logging.getLogger(__name__)


async def create_topics(topics: Topics, new: Sequence[NewTopic], reason: str = "") -> None:
    """Create topics, which `check_new_topic` must have accepted in the same turn of the loop. Return when they are durable and
    usable. `reason` is logged.

    Raises the first disk error. If a partition could not be created, the topics exist nevertheless, and housekeeping retries.
    """
    if not new:
        return
    topics.metadata.append([record for topic in new for record in _records(topics, topic)])
    done = asyncio.get_running_loop().create_future()
    for topic in new:
        topics.in_creation[topic.name] = done
    failures: list[OSError | StorageError] = []
    try:
        synced = asyncio.ensure_future(topics.sync())
        try:
            for topic in new:
                try:
                    await _open(topics, topic)
                except (OSError, StorageError) as error:
                    failures.append(error)
        finally:
            await synced
    finally:
        for topic in new:
            del topics.in_creation[topic.name]
        done.set_result(None)
    if failures:
        raise failures[0]
    for topic in new:
        count = topic.partition_count
        logger.info("topic %s created, %d partition%s%s", topic.name, count, "s" * (count != 1), reason)


def _records(topics: Topics, new: NewTopic) -> list[TopicRecord | ConfigRecord | PartitionRecord]:
    """Return the records in the order of Kafka's controller: the topic, its configurations, its partitions."""
    return [
        TopicRecord(name=new.name, topic_id=new.topic_id),
        *(
            ConfigRecord(resource_type=TOPIC_RESOURCE, resource_name=new.name, name=key, value=value)
            for key, value in new.configs.items()
        ),
        *partition_records(topics, new.topic_id, range(new.partition_count), new.replicas),
    ]


async def _open(topics: Topics, new: NewTopic) -> None:
    topic = Topic(new.name, new.topic_id)
    image = topics.image.topics[new.name]
    config = log_config(new.configs, topics.config)
    try:
        await create_logs(topics, topic, image, config, range(new.partition_count))
    finally:
        topics.publish(topic)
