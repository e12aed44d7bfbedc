"""Key filters, which tell the segments that a round leaves alone because it would not change them (mode prompt).

A round of Kafka's rewrites the whole log, however little is new. Here a segment of the clean section stays as it is if nothing
in it would change, which takes all of:

    no key of the dirty range may be in it                      the filter below
    no horizon is over, and no tombstone has none yet           `segment_facts`
    no marker, no batch of a transaction                        whether a marker may go depends on every batch of its
                                                                transaction, so a round must see them all
    no record without a key, none below the log start, no batch of magic 0 or 1
    every batch without records is still needed for its producer's sequence
    it is large, or would be merged with nothing                small ones are merged as ever: see `MERGED_BELOW`

What stays is therefore, byte for byte, what a whole round would have written, apart from how segments are grouped.

The filter tells of a hash whether it may be among those of the segment's keys: a sorted list of the leading bits of the
hashes, 2**bits buckets of 8 to 16 keys and 32 bits of each key behind those that name its bucket.

    4 x (2**bits + 1)   uint32   where each bucket begins among the keys, and their number
    4 x keys            uint32   ascending in each bucket

It takes 4.25 to 4.5 bytes a key and says yes to an absent key once in 2.7e8 times or less. So sharp it must be: with a Bloom
filter of one percent, any thousand new keys would seem to touch every segment. The hashes are the first halves of those in the
map (`kernels/offset_map.py`), under the same random key, so that no one can make up keys that collide; with another key
a filter is of no use.

Memory: filters are in files beside the segments (`segment_facts`), one is loaded at a time, and a segment with more than
`MAX_KEYS` keys has none: 72 MB at most, and 16 MB for the comparison; 8 bytes for each dirty key. A segment without a filter
is rewritten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from crc32c import crc32c

from diamant.cleaner.prompt import key_hash
from diamant.cleaner.prompt.segment_facts import MIN_FILED_BYTES, SegmentFacts, is_of, load_facts, load_filter_bytes
from diamant.cleaner.rules import record_fate
from diamant.cleaner.rules.grouping import group_segments
from diamant.cleaner.rules.plan import CleanPlan, SegmentPlan
from diamant.storage import names
from diamant.storage.env.env import Env

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAX_KEYS = 16 * 1024 * 1024
KEYS_AT_ONCE = 1024 * 1024
"""Number of a filter's keys compared at a time."""
FEW_HASHES = 1000
"""So many are looked up one by one, in 2 us each; to compare them with all of 1.7 million keys takes 14 ms."""
MERGED_BELOW = 2
"""A segment is merged with its neighbours, and so rewritten, if it is smaller than `segment.bytes` by this factor."""
MIN_LOG_BYTES = 16 * 1024 * 1024
"""Smaller logs are rewritten whole: that takes less than a second."""

_FINGERPRINT_BITS = 32
_KEYS_PER_BUCKET_BITS = 4


class KeyFilter:
    """The keys of one segment. `starts`: uint32[2**bits + 1], `keys`: uint32[n]."""

    __slots__ = ("bits", "keys", "starts")

    def __init__(self, bits: int, starts: NDArray[np.uint32], keys: NDArray[np.uint32]) -> None:
        self.bits = bits
        self.starts = starts
        self.keys = keys

    @classmethod
    def of(cls, hashes: NDArray[np.uint64]) -> KeyFilter:
        """Return the filter of keys with these hashes, in any order and repeated or not."""
        import numpy as np

        # Not np.unique, which takes a second for a million.
        found = np.sort(hashes)
        if len(found):
            found = found[np.append(True, found[1:] != found[:-1])]
        bits = max(0, (len(found) - 1).bit_length() - _KEYS_PER_BUCKET_BITS)
        leading = found >> np.uint64(64 - _FINGERPRINT_BITS - bits)
        buckets = np.arange((1 << bits) + 1, dtype=np.uint64) << np.uint64(_FINGERPRINT_BITS)
        starts = np.searchsorted(leading, buckets).astype(np.uint32)
        return cls(bits, starts, leading.astype(np.uint32))

    def may_have_any(
        self, hashes: NDArray[np.uint64], *, few_hashes: int = FEW_HASHES, keys_at_once: int = KEYS_AT_ONCE
    ) -> bool:
        """Tell whether any of some ascending hashes may be a key's; False is certain."""
        import numpy as np

        if not len(self.keys) or not len(hashes):
            return False
        if len(hashes) <= few_hashes:
            return any(self._may_have(hashed) for hashed in hashes.tolist())
        shift = np.uint64(64 - _FINGERPRINT_BITS - self.bits)
        step = max(1, min(1 << self.bits, keys_at_once >> _KEYS_PER_BUCKET_BITS))
        for first in range(0, 1 << self.bits, step):
            keys = self._leading(first, first + step)
            if not len(keys):
                continue
            low = np.searchsorted(hashes, np.uint64(first << (64 - self.bits) if self.bits else 0))
            end = len(hashes)
            if first + step < 1 << self.bits:
                end = int(np.searchsorted(hashes, np.uint64((first + step) << (64 - self.bits))))
            wanted = hashes[low:end] >> shift
            few, many = (keys, wanted) if len(keys) < len(wanted) else (wanted, keys)
            if len(few):
                places = np.searchsorted(many, few)
                places[places == len(many)] = 0
                if (many[places] == few).any():
                    return True
        return False

    def _may_have(self, hashed: int) -> bool:
        bucket, rest = divmod(hashed >> (64 - _FINGERPRINT_BITS - self.bits), 1 << _FINGERPRINT_BITS)
        return bool((self.keys[self.starts[bucket] : self.starts[bucket + 1]] == rest).any())

    def to_bytes(self) -> bytes:
        """Return what `from_bytes` reads; little-endian."""
        return bytes(self.starts.astype("<u4").data) + bytes(self.keys.astype("<u4").data)

    @classmethod
    def from_bytes(cls, data: bytes, key_count: int) -> KeyFilter:
        """Return the filter with so many keys. ValueError if the bytes are none."""
        import numpy as np

        words = np.frombuffer(data, "<u4").astype(np.uint32, copy=False)
        buckets = len(words) - key_count - 1
        if buckets < 1 or buckets & (buckets - 1) or words[buckets] != key_count:
            raise ValueError(f"{len(data)} bytes are no filter of {key_count} keys")
        return cls(buckets.bit_length() - 1, words[: buckets + 1], words[buckets + 1 :])

    def _leading(self, first: int, end: int) -> NDArray[np.uint64]:
        """Return the leading bits of the hashes in buckets `first` to `end`, ascending."""
        import numpy as np

        starts = self.starts[first : end + 1].astype(np.int64)
        buckets = np.repeat(np.arange(first, end, dtype=np.uint64), np.diff(starts))
        return (buckets << np.uint64(_FINGERPRINT_BITS)) | self.keys[starts[0] : starts[-1]]


def hash_id(hash_key: bytes) -> int:
    """Return what tells the filters of one hash key from those of another; it does not tell the key."""
    return crc32c(b"diamant key filter" + hash_key)


# -- which segments --------------------------------------------------------------------------------------------------


def segments_to_leave_alone(
    plan: CleanPlan,
    facts: Mapping[int, SegmentFacts],
    dirty_hashes: NDArray[np.uint64],
    load: Callable[[int], KeyFilter | None],
) -> frozenset[int]:
    """Return the base offsets of the segments that the round need not rewrite; see the module.

    `facts` are those of segments as they are in the plan, by base offset. `dirty_hashes` are the first halves of the hashes of
    all keys in the map, in any order; `load` returns a segment's filter, or None. Nothing in mode kafka.
    """
    import numpy as np

    if plan.is_kafka:
        return frozenset()
    hashes = np.sort(dirty_hashes)
    unchanged = set()
    for segment in _of_clean_section(plan):
        known = facts.get(segment.base_offset)
        if known is None or known.size != segment.size or not _would_stay_as_it_is(plan, known):
            continue
        key_filter = load(segment.base_offset)
        if key_filter is not None and not key_filter.may_have_any(hashes):
            unchanged.add(segment.base_offset)
    return _without_merged(plan, unchanged)


def leave_alone(
    env: Env,
    plan: CleanPlan,
    dirty_hashes: Callable[[], NDArray[np.uint64]],
    *,
    min_log_bytes: int = MIN_LOG_BYTES,
) -> CleanPlan:
    """Return the plan with `untouched` as the files beside the segments tell; for an engine that has built its map.

    `dirty_hashes` is called only if there are such files. Any process that the plan was handed to.
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

    untouched = segments_to_leave_alone(plan, facts, dirty_hashes(), load)
    return replace(plan, untouched=plan.untouched | untouched)


def load_filter(env: Env, directory: str, facts: SegmentFacts, hash_key: bytes) -> KeyFilter | None:
    """Return the filter of the segment with these facts; None if there is none under this hash key."""
    if facts.keys is None or facts.keys.hash_id != hash_id(hash_key):
        return None
    data = load_filter_bytes(env, directory, facts.base_offset)
    if data is None:
        return None
    try:
        return KeyFilter.from_bytes(data, facts.keys.key_count)
    except ValueError:
        return None


def cannot_hold(env: Env, path: str, base_offset: int, size: int, keys: Iterable[bytes], hash_key: bytes) -> bool:
    """Return True if a filter tells for certain that the segment in `path`, of so many bytes, holds none of `keys`.

    Blocks for the disk. False without a filter of just this file under this hash key, or where that cannot be read.
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
    import numpy as np

    hashes = sorted(key_hash.first_half(key, hash_key) for key in keys)
    return not key_filter.may_have_any(np.array(hashes, np.uint64))


def is_worth_filters(plan: CleanPlan) -> bool:
    """Tell whether the segments that a round writes should be given filters.

    Where most of a log is dirty whenever it is cleaned, there is little to be left alone the next time.
    """
    clean_bytes = sum(segment.size for segment in _of_clean_section(plan))
    total_bytes = sum(segment.size for segment in plan.segments)
    return not plan.is_kafka and total_bytes >= MIN_LOG_BYTES and 2 * clean_bytes >= total_bytes


def _of_clean_section(plan: CleanPlan) -> list[SegmentPlan]:
    return [
        segment
        for segment in plan.segments
        if segment.next_base_offset <= plan.first_dirty_offset and segment.base_offset not in plan.quarantined
    ]


def _would_stay_as_it_is(plan: CleanPlan, facts: SegmentFacts) -> bool:
    """Tell whether a round would change nothing in a segment but records that a later one supersedes."""
    keys = facts.keys
    if keys is None or keys.hash_id != hash_id(plan.hash_key) or keys.has_keyless or keys.has_unstamped:
        return False
    if facts.has_transactions or facts.has_old_format or facts.emptied is None:
        return False
    if facts.first_offset < plan.log_start_offset or facts.is_due(plan.now_ms, plan.horizons_frozen_above):
        return False
    return all(
        one.last_offset + 1 == plan.first_uncleanable_offset
        or record_fate.is_last_of_producer(
            plan.active_producers.get(one.producer_id),
            last_offset=one.last_offset,
            producer_epoch=one.producer_epoch,
            is_control=False,
        )
        for one in facts.emptied
    )


def _without_merged(plan: CleanPlan, unchanged: set[int]) -> frozenset[int]:
    """Take out the small ones of some unchanged segments that the round merges with a neighbour."""
    large = {
        segment.base_offset
        for segment in plan.segments
        if segment.base_offset in unchanged and segment.size * MERGED_BELOW >= plan.segment_bytes
    }
    groups = group_segments(replace(plan, untouched=plan.untouched | large), plan.segments)
    alone = {group[0].base_offset for group in groups if len(group) == 1}
    return frozenset(large | (alone & unchanged))
