"""The order of groups in answers. Each partition of `__consumer_offsets` is a shard, which Kafka queries separately.

So answers list groups shard by shard, in the order of Java's hash maps. Deviation: groups in the same slot of a hash table may
be in reverse order.

Source: GroupCoordinatorService.listGroups and describeGroups, CoordinatorRuntime.scheduleReadAllOperation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from diamant.broker.coordinators.internal_topic import InternalTopic
from diamant.broker.coordinators.java_order import grown_capacity, in_java_order, string_hash, strings_in_timeline_order


def in_listed_order(topic: InternalTopic, group_ids: Collection[str]) -> list[str]:
    """Sort `group_ids`, which must be all groups of the coordinator, as ListGroups lists them."""
    shards = _by_shard(topic, group_ids)
    count = topic.partition_count
    # Kafka keeps the shards in a ConcurrentHashMap, which grows as soon as it is three quarters full, before a HashMap does.
    order = in_java_order(range(count), _shard_hash(topic), grown_capacity(count + 1))
    return [group_id for shard in order for group_id in strings_in_timeline_order(shards.get(shard, ()))]


def in_described_order(topic: InternalTopic, group_ids: Iterable[str]) -> list[str]:
    """Sort the requested groups as Kafka's describe responses list them: by shard, and in the requested order within a shard."""
    shards = _by_shard(topic, group_ids)
    order = in_java_order(shards, _shard_hash(topic), grown_capacity(len(shards)))
    return [group_id for shard in order for group_id in shards[shard]]


def _by_shard(topic: InternalTopic, group_ids: Iterable[str]) -> dict[int, list[str]]:
    shards: dict[int, list[str]] = {}
    for group_id in group_ids:
        shards.setdefault(topic.partition_of(group_id), []).append(group_id)
    return shards


def _shard_hash(topic: InternalTopic) -> Callable[[int], int]:
    """Return Kafka's `TopicPartition.hashCode` for the topic's partitions."""
    topic_hash = string_hash(topic.name)
    return lambda partition: 31 * (31 + partition) + topic_hash
