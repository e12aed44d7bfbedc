"""The kernel that sums the sizes of records by key equals a count of each record."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from diamant.cleaner.queries import top_keys
from diamant.cleaner.queries.top_keys import KeySizes, TopKey, TopKeys
from diamant.cleaner.segments.random_hash import RandomHash
from diamant.cleaner.segments.sound_rows import PieceReader, SoundRows
from diamant.cleaner.segments.tolerant_reader import SegmentFile
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import Record
from tests.effort import examples
from tests.kernels.samples import record
from tests.memory_env import MemoryEnv

keys = st.sampled_from([None, b"", b"a", b"b", b"long" * 9, b"l" * 300])
PATH = f"/{0:020d}.log"


def summed(data: bytes, log_start_offset: int) -> tuple[TopKey, ...]:
    """Count the keys of a segment."""
    file = MemoryEnv().create_new(PATH)
    file.append(data)
    top = TopKeys(100)
    sizes = KeySizes(top, RandomHash(is_compiled=True), log_start_offset)
    for piece in PieceReader().pieces(file, SegmentFile(PATH, 0, 0), len(data), print):
        assert isinstance(piece, SoundRows)
        sizes.add_rows(piece, piece.first, piece.end)
    sizes.flush()
    return top.top()


@settings(max_examples=examples(150), deadline=None)
@given(
    st.lists(st.builds(lambda one, key: one._replace(key=key), record, keys), max_size=20),
    st.integers(0, 4),
    st.integers(0, 20),
)
def test_sizes_are_those_of_all_records(records: list[Record], codec: int, log_start_offset: int) -> None:
    """Strategy: records of a few keys in two batches. Invariant: the sums equal those of single records."""
    records = [one._replace(offset=index) for index, one in enumerate(records)]
    half = len(records) // 2
    batches = [
        build_batch(part, base_offset=part[0].offset, codec=codec) for part in (records[:half], records[half:]) if part
    ]
    expected = TopKeys(100)
    expected.add(
        (one.key, one.key, 1, len(one.key) + len(one.value or b""))
        for one in records
        if one.key is not None and one.offset >= log_start_offset
    )
    assert summed(b"".join(batches), log_start_offset) == expected.top()


def test_a_batch_of_more_records_than_there_are_groups() -> None:
    """A batch with more records than groups gets more room, and earlier sums are kept."""
    count = top_keys.GROUPS + 5
    records = [Record(index, 0, b"%d" % (index % 7 if index < 10 else index), b"12") for index in range(count)]
    first = build_batch([Record(0, 0, b"before", b"x" * 1000)])
    found = summed(bytes(first) + bytes(build_batch([one._replace(offset=one.offset + 1) for one in records])), 0)
    assert (found[0].key, found[0].bytes) == (b"before", 1006)
    assert len(found) == 100
    assert all(one.bytes in (7, 6) for one in found[1:])
