"""The iteration order of Java's hash maps.

The uniform assignor assigns partitions in the order in which Kafka's hash maps list members and topics. The same order
here results in the same assignment, so members keep their partitions when a group moves between Kafka and this
broker.

A `java.util.HashMap` is an array of buckets. An element with hash code `h` is in bucket `(h ^ h >>> 16) mod capacity`, where the
capacity is a power of two. Iteration goes from bucket to bucket, and within a bucket in order of insertion. (Java converts a
bucket with more than eight elements to a tree. This is not reproduced, so the order within such a bucket can differ.)

Kafka's own `TimelineHashMap` begins with two slots. The slot is the highest bits of the hash code times a constant.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TypeVar
from uuid import UUID

_DEFAULT_CAPACITY = 16
_MASK = 0xFFFFFFFF
_TIMELINE_FACTOR = -7046029254386353131

_Element = TypeVar("_Element")


def uuid_hash(topic_id: UUID) -> int:
    """Return `org.apache.kafka.common.Uuid.hashCode`, unsigned."""
    halves = (topic_id.int >> 64) ^ (topic_id.int & 0xFFFFFFFFFFFFFFFF)
    return (halves >> 32) ^ (halves & _MASK)


def grown_capacity(count: int) -> int:
    """Return the number of buckets of a map of default size after adding `count` elements one by one."""
    capacity = _DEFAULT_CAPACITY
    while count > capacity * 3 // 4:
        capacity *= 2
    return capacity


def fitting_capacity(count: int) -> int:
    """Return the number of buckets of a map that was created with a lower capacity and grew to `count` elements."""
    capacity = 1
    while count > capacity * 3 // 4:
        capacity *= 2
    return capacity


def copied_capacity(count: int) -> int:
    """Return the number of buckets of a `HashSet` copied from a collection with `count` elements."""
    wanted = max(int(count / 0.75) + 1, _DEFAULT_CAPACITY)
    return 1 << (wanted - 1).bit_length()


def copied_map_capacity(count: int) -> int:
    """Return the number of buckets of a `HashMap` copied from a map with `count` elements."""
    return 1 << (int(count / 0.75 + 1) - 1).bit_length() if count else _DEFAULT_CAPACITY


def in_java_order(elements: Iterable[_Element], hash_of: Callable[[_Element], int], capacity: int) -> list[_Element]:
    """Sort `elements`, given in order of insertion, into the iteration order of a map with `capacity` buckets."""

    def bucket(element: _Element) -> int:
        code = hash_of(element) & _MASK
        return (code ^ (code >> 16)) & (capacity - 1)

    return sorted(elements, key=bucket)


def strings_in_java_order(texts: Collection[str]) -> list[str]:
    """Return the keys in the order of a `HashMap<String, ...>` filled one by one."""
    return in_java_order(texts, string_hash, grown_capacity(len(texts)))


def in_timeline_order(elements: Collection[_Element], hash_of: Callable[[_Element], int]) -> list[_Element]:
    """Return the elements in the order of a `TimelineHashMap` filled one by one; within a slot the newest is first."""
    bits = 1
    while len(elements) * 0.75 > 1 << bits:
        bits += 1

    def slot(element: _Element) -> int:
        return (hash_of(element) * _TIMELINE_FACTOR & 0xFFFFFFFFFFFFFFFF) >> (64 - bits)

    return sorted(reversed(list(elements)), key=slot)


def strings_in_timeline_order(texts: Collection[str]) -> list[str]:
    """Return the keys in the order of a `TimelineHashMap<String, ...>` filled one by one."""
    return in_timeline_order(texts, string_hash)


def uuids_in_java_order(topic_ids: Collection[UUID]) -> list[UUID]:
    """Return the keys in the order of a `HashMap<Uuid, ...>` filled one by one."""
    return in_java_order(topic_ids, uuid_hash, grown_capacity(len(topic_ids)))


def partitions_in_java_order(partitions: Collection[int]) -> list[int]:
    """Return the elements in the order of a `HashSet<Integer>` created from a list."""
    return in_java_order(partitions, int, copied_capacity(len(partitions)))


def string_hash(text: str) -> int:
    """Return Java's `String.hashCode`: over UTF-16 code units, as a signed 32-bit integer."""
    result = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for position in range(0, len(units), 2):
        result = (result * 31 + (units[position] << 8 | units[position + 1])) & 0xFFFFFFFF
    return result - (1 << 32) if result >= 1 << 31 else result
