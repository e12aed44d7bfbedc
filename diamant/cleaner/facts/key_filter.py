"""Key filters, which show which segments a round would not change, so that it need not rewrite them (mode prompt).

A round of Kafka's cleaner rewrites the whole log, even if only a few records are new. Here a segment of the clean section stays
as it is if a round would change nothing in it. All of these conditions must be met:

    it contains no key of the dirty range                       shown by the filter described below
    no delete horizon has passed, every tombstone has one       known from `segment_facts`
    no marker, no batch of a transaction                        whether a marker may be removed depends on every batch of its
                                                                transaction, so a round must see them all
    no record without a key, none below the log start, no batch of magic 0 or 1
    every batch without records is still needed for its producer's sequence
    it is large, or has nothing to be merged with               small segments are still merged: see `MERGED_BELOW`

Apart from the grouping of segments, such a segment is therefore, byte for byte, what a round over the whole log would write.

The filter shows whether a hash may belong to one of the segment's keys. It is a sorted list of the leading bits of the hashes:
2**bits buckets of 8 to 16 keys, and for each key the 32 bits that follow the number of its bucket.

    4 x (2**bits + 1)   uint32   index of each bucket's first key, then the number of keys
    4 x keys            uint32   ascending in each bucket

It takes 4.25 to 4.5 bytes per key, and has at most one false positive in 2.7e8 lookups. A weaker filter would be useless: with a
Bloom filter that has one percent of false positives, every segment would appear to contain some of a thousand new keys. The
hashes are the first halves of the hashes in the map (`kernels/offset_map.py`), with the same random key, so clients cannot
construct keys that collide. A filter made with another hash key cannot be used.

Memory: filters are stored in files beside the segments (`facts_file`) and loaded one at a time. A segment with more than
`MAX_KEYS` keys has no filter, so a filter takes at most 72 MB, and 16 bytes per key while it is made. Each dirty key takes 8
bytes. A segment without a filter is rewritten. Without kernels, no filters are made or used.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from struct import Struct

from crc32c import crc32c

from diamant.cleaner.facts.facts_file import MIN_FILED_BYTES, is_of, load_facts, load_filter_bytes
from diamant.cleaner.facts.segment_facts import SegmentFacts
from diamant.cleaner.rules import record_fate
from diamant.cleaner.rules.grouping import group_segments
from diamant.cleaner.rules.plan import CleanPlan, SegmentPlan
from diamant.kernels import ARE_COMPILED
from diamant.storage import names
from diamant.storage.env.env import Buffer, Env

MAX_KEYS = 16 * 1024 * 1024
MERGED_BELOW = 2
"""A segment smaller than `segment.bytes` by this factor is merged with its neighbours, and so rewritten ..."""
MERGED_UP_TO = 8
"""... unless it is this many times as large as the rest of its group. Otherwise each erasure would rewrite it for a tombstone."""
MIN_LOG_BYTES = 16 * 1024 * 1024
"""Smaller logs are rewritten as a whole, which takes less than a second."""

_KEYS_PER_BUCKET_BITS = 4
_FINGERPRINT_SHIFT = 64 - 32


class KeyFilter:
    """The key filter of one segment. `data` has the format described in the module docstring."""

    __slots__ = ("bits", "data", "key_count")

    def __init__(self, data: Buffer, key_count: int) -> None:
        """Use the bytes of a filter. Raises ValueError if they are not a filter of `key_count` keys."""
        buckets = len(data) // 4 - key_count - 1
        if len(data) % 4 or buckets < 1 or buckets & (buckets - 1) or _word(data, buckets) != key_count:
            raise ValueError(f"{len(data)} bytes are not a filter of {key_count} keys")
        self.data = data
        self.bits = buckets.bit_length() - 1
        self.key_count = key_count

    @classmethod
    def of(cls, hashes: array[int]) -> KeyFilter:
        """Return the filter for the hashes of keys. Sorts `hashes`, which may contain duplicates."""
        from diamant.kernels.key_filter import sort_words, write_filter

        count = sort_words(hashes, array("Q", bytes(8 * len(hashes))))
        bits = _bits_for(count)
        data = bytearray(4 * ((1 << bits) + 1 + count))
        write_filter(memoryview(hashes)[:count], bits, data)
        return cls(data, count)

    def may_have_any(self, hashes: array[int]) -> bool:
        """Return whether any of the hashes may belong to one of the segment's keys. Only the answer False is certain."""
        from diamant.kernels.key_filter import may_have_any

        return may_have_any(self.data, self.bits, hashes)

    def without(self, hashed: int) -> KeyFilter | None:
        """Return the filter without the key of this hash; None if the key is missing, or the number of buckets would change."""
        data, buckets, count = self.data, 1 << self.bits, self.key_count - 1
        if count < 0 or _bits_for(count) != self.bits:
            return None
        bucket, rest = divmod(hashed >> (_FINGERPRINT_SHIFT - self.bits), 1 << 32)
        first = buckets + 1
        places = range(first + _word(data, bucket), first + min(_word(data, bucket + 1), self.key_count))
        place = next((one for one in places if _word(data, one) == rest), None)
        if place is None:
            return None
        following = Struct(f"<{buckets - bucket}I")
        begins = following.unpack_from(data, 4 * (bucket + 1))
        moved = following.pack(*(one - 1 for one in begins))
        parts = data[: 4 * (bucket + 1)], moved, data[4 * first : 4 * place], data[4 * place + 4 :]
        return KeyFilter(b"".join(parts), count)


def _bits_for(keys: int) -> int:
    return max(0, (keys - 1).bit_length() - _KEYS_PER_BUCKET_BITS)


def _word(data: Buffer, index: int) -> int:
    return int.from_bytes(data[4 * index : 4 * index + 4], "little")


def hash_id(hash_key: bytes) -> int:
    """Return a number that identifies a hash key without revealing it."""
    return crc32c(b"diamant key filter" + hash_key)


def no_note(*_touched: object) -> None:
    """Ignore a touched segment."""


# -- which segments --------------------------------------------------------------------------------------------------


def segments_to_leave_alone(
    plan: CleanPlan,
    facts: Mapping[int, SegmentFacts],
    dirty_hashes: array[int],
    load: Callable[[int], KeyFilter | None],
    on_touched: Callable[[SegmentFacts, KeyFilter], object] = no_note,
) -> frozenset[int]:
    """Return the base offsets of the segments that the round need not rewrite (see the module docstring).

    `facts`: facts about the plan's segments, by base offset. `dirty_hashes`: the first halves of the hashes of all keys
    in the map, in any order. `load` returns a segment's filter, or None. `on_touched` is called for each segment that would only
    lose superseded records. In mode kafka the result is empty.
    """
    if plan.is_kafka:
        return frozenset()
    unchanged = set()
    for segment in _of_clean_section(plan):
        known = facts.get(segment.base_offset)
        if known is None or known.size != segment.size or not _would_stay_as_it_is(plan, known):
            continue
        key_filter = load(segment.base_offset)
        if key_filter is None:
            continue
        if key_filter.may_have_any(dirty_hashes):
            on_touched(known, key_filter)
        else:
            unchanged.add(segment.base_offset)
    return _without_merged(plan, unchanged)


def leave_alone(
    env: Env,
    plan: CleanPlan,
    dirty_hashes: Callable[[], array[int]],
    *,
    min_log_bytes: int = MIN_LOG_BYTES,
    on_touched: Callable[[SegmentFacts, KeyFilter, array[int]], object] = no_note,
) -> CleanPlan:
    """Return the plan with the segments added to `untouched` that, according to their facts files, need not be rewritten.

    Engines call this when the map is complete, in any process that has the plan. `dirty_hashes` is called only if there are facts
    files. `on_touched` is called as by `segments_to_leave_alone`, and also gets these hashes.
    """
    if plan.is_kafka or sum(segment.size for segment in plan.segments) < min_log_bytes:
        return plan
    facts = {}
    for segment in _of_clean_section(plan):
        path = names.log_file(plan.directory, segment.base_offset)
        found = load_facts(env, plan.directory, segment.base_offset)
        if found is not None and is_of(found, segment.size, env.mtime_ms(path), env.birth_ms(path)):
            facts[segment.base_offset] = found
    if not facts:
        return plan

    def load(base_offset: int) -> KeyFilter | None:
        return load_filter(env, plan.directory, facts[base_offset], plan.hash_key)

    hashes = dirty_hashes()
    untouched = segments_to_leave_alone(
        plan, facts, hashes, load, lambda known, key_filter: on_touched(known, key_filter, hashes)
    )
    return replace(plan, untouched=plan.untouched | untouched)


def load_filter(env: Env, directory: str, facts: SegmentFacts, hash_key: bytes) -> KeyFilter | None:
    """Return the filter of the segment with these facts; None if it has no filter for this hash key."""
    if not ARE_COMPILED or facts.keys is None or facts.keys.hash_id != hash_id(hash_key):
        return None
    data = load_filter_bytes(env, directory, facts.base_offset)
    if data is None:
        return None
    try:
        return KeyFilter(data, facts.keys.key_count)
    except ValueError:
        return None


def has_filter(env: Env, path: str, size: int, hash_key: bytes) -> bool:
    """Return whether the segment in `path`, of `size` bytes, has a filter for this hash key, or cannot have a filter.

    It cannot have one if the file system has no birth times, which are needed to match a filter to its segment. Blocks on disk
    I/O.
    """
    birth_ms = env.birth_ms(path)
    facts = load_facts(env, path.rpartition("/")[0], names.offset_of(path.rpartition("/")[2]))
    if birth_ms is None or facts is None:
        return birth_ms is None
    is_its = is_of(facts, size, env.mtime_ms(path), birth_ms)
    return is_its and facts.keys is not None and facts.keys.hash_id == hash_id(hash_key)


def cannot_hold(env: Env, path: str, base_offset: int, size: int, keys: Iterable[bytes], hash_key: bytes) -> bool:
    """Return True if a filter proves that the segment in `path`, of `size` bytes, contains none of `keys`.

    Blocks on disk I/O. Returns False if there is no readable filter for exactly this file and this hash key.
    """
    if size < MIN_FILED_BYTES:
        return False
    directory = path.rpartition("/")[0]
    try:
        facts = load_facts(env, directory, base_offset)
        if facts is None or not is_of(facts, size, env.mtime_ms(path), env.birth_ms(path)):
            return False
        key_filter = load_filter(env, directory, facts, hash_key)
    except OSError:
        return False
    if key_filter is None:
        return False
    from diamant.kernels.offset_map import siphash

    halves = int.from_bytes(hash_key[:8], "little"), int.from_bytes(hash_key[8:16], "little")
    return not key_filter.may_have_any(array("Q", [siphash(*halves, key)[0] for key in keys]))


def is_worth_filters(plan: CleanPlan) -> bool:
    """Return whether the log is so large that a round should make filters for its outputs."""
    return not plan.is_kafka and sum(segment.size for segment in plan.segments) >= MIN_LOG_BYTES


def _of_clean_section(plan: CleanPlan) -> list[SegmentPlan]:
    return [
        segment
        for segment in plan.segments
        if segment.next_base_offset <= plan.first_dirty_offset and segment.base_offset not in plan.quarantined
    ]


def _would_stay_as_it_is(plan: CleanPlan, facts: SegmentFacts) -> bool:
    """Return whether a round would not change a segment, except by removing superseded records."""
    keys = facts.keys
    if keys is None or keys.hash_id != hash_id(plan.hash_key) or keys.has_keyless or keys.has_unstamped:
        return False
    if facts.has_transactions or facts.has_old_format or facts.emptied is None:
        return False
    if facts.first_offset < plan.log_start_offset or facts.is_due(plan.now_ms, plan.horizons_frozen_above):
        return False
    return all(
        one.last_offset + 1 == plan.header_end
        or record_fate.is_last_of_producer(
            plan.active_producers.get(one.producer_id),
            last_offset=one.last_offset,
            producer_epoch=one.producer_epoch,
            is_control=False,
        )
        for one in facts.emptied
    )


def _without_merged(plan: CleanPlan, unchanged: set[int]) -> frozenset[int]:
    """Return the unchanged segments, except small ones that the round merges with a neighbour."""
    stay = {
        segment.base_offset
        for segment in plan.segments
        if segment.base_offset in unchanged and segment.size * MERGED_BELOW >= plan.segment_bytes
    }
    for group in group_segments(replace(plan, untouched=plan.untouched | stay), plan.segments):
        stay |= {one.base_offset for one in group if one.base_offset in unchanged and is_large_for(one, group)}
    return frozenset(stay)


def is_large_for(segment: SegmentPlan, group: Sequence[SegmentPlan]) -> bool:
    """Return whether a segment is too large to be merged with the rest of its group. True if it is alone in its group."""
    return segment.size >= MERGED_UP_TO * (sum(one.size for one in group) - segment.size)
