"""The hash that Kafka's producer uses to choose a partition, and the partitions that producers choose by default."""

from __future__ import annotations

from zlib import crc32

_SEED = 0x9747B28C
_FACTOR = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(key: bytes) -> int:
    """Return the hash of a key, with the sign bit cleared (`Utils.murmur2`, `Utils.toPositive`)."""
    mixed = _SEED ^ len(key)
    whole = len(key) & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(key[at : at + 4], "little") * _FACTOR & _MASK
        word = (word ^ word >> 24) * _FACTOR & _MASK
        mixed = mixed * _FACTOR & _MASK ^ word
    if whole < len(key):
        mixed = (mixed ^ int.from_bytes(key[whole:], "little")) * _FACTOR & _MASK
    mixed = (mixed ^ mixed >> 13) * _FACTOR & _MASK
    return (mixed ^ mixed >> 15) & 0x7FFFFFFF


def default_partitions(key: bytes, count: int) -> tuple[int, int]:
    """Return the partitions (of `count`) that Java's and librdkafka's default partitioners choose for a key."""
    return murmur2(key) % count, crc32(key) % count
