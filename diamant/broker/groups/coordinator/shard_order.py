"""The order of groups in answers. In Kafka each partition of `__consumer_offsets` is a shard, asked for itself; the answer has
shard after shard, as hash maps list them. Groups that fall into one slot of a table may come the other way round.

Source: GroupCoordinatorService.listGroups and describeGroups, CoordinatorRuntime.scheduleReadAllOperation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from diamant.broker.coordinators.internal_topic import InternalTopic
from diamant.broker.coordinators.java_order import grown_capacity, in_java_order, string_hash, strings_in_timeline_order


def in_listed_order(topic: InternalTopic, group_ids: Collection[str]) -> list[str]:
    """All groups of the coordinator whose topic this is, as ListGroups has them."""
    shards = _by_shard(topic, group_ids)
    count = topic.partition_count
    # Kafka has a shard for each partition; a ConcurrentHashMap grows when it is three quarters full, not when it is fuller.
    order = in_java_order(range(count), _shard_hash(topic), grown_capacity(count + 1))
    return [group_id for shard in order for group_id in strings_in_timeline_order(shards.get(shard, ()))]


def in_asked_order(topic: InternalTopic, group_ids: Iterable[str]) -> list[str]:
    """Groups that a request names, as answers of DescribeGroups and ConsumerGroupDescribe have them."""
    shards = _by_shard(topic, group_ids)
    order = in_java_order(shards, _shard_hash(topic), grown_capacity(len(shards)))
    return [group_id for shard in order for group_id in shards[shard]]


def _by_shard(topic: InternalTopic, group_ids: Iterable[str]) -> dict[int, list[str]]:
    shards: dict[int, list[str]] = {}
    for group_id in group_ids:
        shards.setdefault(topic.partition_of(group_id), []).append(group_id)
    return shards


def _shard_hash(topic: InternalTopic) -> Callable[[int], int]:
    """`TopicPartition.hashCode`."""
    topic_hash = string_hash(topic.name)
    return lambda partition: 31 * (31 + partition) + topic_hash
