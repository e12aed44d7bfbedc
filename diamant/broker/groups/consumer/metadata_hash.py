"""A hash that changes when a topic of a consumer group is created, is deleted, or gains partitions.

It is stored in the group's epoch record, so that a coordinator that has just loaded the group, Diamant's or Kafka's, can tell
whether the assignment is still valid.

    topic   XXH3 of  0 int8, topic id int64 int64, name, partition count int32, for each partition its number int32 and the
                     sorted racks of its replicas, each as length int32 and name
    group   XXH3 of  the hashes of its existing topics, sorted by name, int64 each; 0 if no topic exists

All numbers are little-endian. A name consists of its UTF-16 code units, followed by their number as an int32.

Bound: 200 bytes for each topic of an image, whose hash is cached because computing it takes 30 us for 100 partitions. The
hashes of deleted topics are dropped when they outnumber the others.

Source: KIP-1101; Utils.computeTopicHash and computeGroupHash of Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import TypeAlias
from uuid import UUID

from xxhash import xxh3_64_intdigest

from diamant.storage.kraft.image import MetadataImage, TopicImage

SPARE_HASHES = 100
"""Slack, so that a few short-lived topics do not cause frequent passes over all hashes."""

_INT32 = Struct("<i")
_HASH = Struct("<Q")
_TOPIC_ID = Struct("<bQQ")
_HALF = (1 << 64) - 1

Hashes: TypeAlias = dict[UUID, tuple[int, int]]
"""The partition count and the hash (without racks) of each topic, by topic id. The name that belongs to an id never changes."""

_remembered: Hashes = {}


def metadata_hash(topic_names: Iterable[str], image: MetadataImage, remembered: Hashes = _remembered) -> int:
    """Return the hash, an int64, of those `topic_names` that exist. `remembered` is the cache of topic hashes."""
    topics = [topic for name in topic_names if (topic := image.topics.get(name)) is not None]
    if not topics:
        return 0
    topics.sort(key=lambda topic: topic.name)
    if all(broker.rack is None for broker in image.brokers.values()):
        _forget_deleted(image, remembered)
        hashes = [_hash_without_racks(topic, remembered) for topic in topics]
    else:
        hashes = [_hash_with_racks(topic, image) for topic in topics]
    unsigned = xxh3_64_intdigest(b"".join(map(_HASH.pack, hashes)))
    return unsigned - (1 << 64) if unsigned >> 63 else unsigned


def _forget_deleted(image: MetadataImage, remembered: Hashes) -> None:
    if len(remembered) > 2 * len(image.topics_by_id) + SPARE_HASHES:
        for topic_id in remembered.keys() - image.topics_by_id.keys():
            del remembered[topic_id]


def _hash_without_racks(topic: TopicImage, remembered: Hashes) -> int:
    count = len(topic.partitions)
    known = remembered.get(topic.topic_id)
    if known is None or known[0] != count:
        numbers = b"".join(map(_INT32.pack, range(count)))
        known = remembered[topic.topic_id] = (
            count,
            xxh3_64_intdigest(_front(topic.topic_id, topic.name, count) + numbers),
        )
    return known[1]


def _hash_with_racks(topic: TopicImage, image: MetadataImage) -> int:
    parts = [_front(topic.topic_id, topic.name, len(topic.partitions))]
    for number in range(len(topic.partitions)):
        parts.append(_INT32.pack(number))
        brokers = [image.brokers.get(replica) for replica in topic.partitions[number].replicas]
        for rack in sorted(broker.rack for broker in brokers if broker is not None and broker.rack is not None):
            parts.append(_INT32.pack(len(rack)) + _text(rack))
    return xxh3_64_intdigest(b"".join(parts))


def _front(topic_id: UUID, name: str, partition_count: int) -> bytes:
    return _TOPIC_ID.pack(0, topic_id.int >> 64, topic_id.int & _HALF) + _text(name) + _INT32.pack(partition_count)


def _text(text: str) -> bytes:
    units = text.encode("utf-16-le")
    return units + _INT32.pack(len(units) // 2)
