"""The kernel that counts records and the table of keys equal their plain twins."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diamant.cleaner.queries.key_counts import KeyCensus, KeyCounts
from diamant.cleaner.queries.key_tables import ANY_SOURCE, ENTRY, CompiledKeyTable, KeyTable, PlainKeyTable, entries_in
from diamant.cleaner.queries.record_counter import RecordCounter
from diamant.cleaner.rules.record_kinds import Kinds
from diamant.cleaner.segments.sound_rows import PieceReader, SoundRows
from diamant.cleaner.segments.tolerant_reader import Problem, SegmentFile
from diamant.cleaner.segments.transaction_outcomes import Outcome
from diamant.kernels.constants.counts import RECORDS, SOURCE_SHIFT, TOMBSTONE
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import HEADER_SIZE, Record
from tests.builder import with_payload
from tests.effort import examples
from tests.kernels.samples import record
from tests.memory_env import MemoryEnv

PATH = f"/{0:020d}.log"


def counted(
    data: bytes, outcome: Outcome, least_offset: int, *, is_compiled: bool
) -> tuple[list[int], KeyCounts, object]:
    """Count the records of a segment: sums, keys, problems."""
    file = MemoryEnv().create_new(PATH)
    file.append(data)
    problems: list[Problem] = []
    with KeyCensus(1, is_compiled=is_compiled) as census:
        counter = RecordCounter(census, 0, least_offset, problems.append)
        reader = PieceReader(is_compiled=is_compiled)
        for piece in reader.pieces(file, SegmentFile(PATH, 0, 0), len(data), problems.append):
            if isinstance(piece, SoundRows):
                assert is_compiled
                piece.decide(lambda _: outcome)
            counter.add(PATH, piece, outcome)
        counter.finish()
        return counter.sums.tolist(), census.finish(), problems


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.lists(record, max_size=6), min_size=1, max_size=3), st.sampled_from(Outcome), st.data())
def test_counts_equal_the_plain_ones(batches: list[list[Record]], outcome: Outcome, data: st.DataObject) -> None:
    """Strategy: batches of any records, one perhaps with changed bytes or count, and a log start among them.

    Invariant: the same sums, keys and problems.
    """
    written, offset = [], 0
    for records in batches:
        numbered = [one._replace(offset=offset + index) for index, one in enumerate(records)]
        codec = data.draw(st.integers(0, 4))
        built = build_batch(numbered, base_offset=offset, codec=codec, is_transactional=True, producer_id=7)
        written.append(bytes(built))
        offset += max(1, len(records))
    if data.draw(st.booleans()):
        index = data.draw(st.integers(0, len(written) - 1))
        payload = bytearray(written[index][HEADER_SIZE:])
        for _ in range(data.draw(st.integers(0, 2)) if payload else 0):
            payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.sampled_from([0, 1, 2, 127, 128, 255]))
        count = data.draw(st.sampled_from([len(batches[index]), len(batches[index]), -1, 1, 2**31 - 1]))
        written[index] = bytes(with_payload(written[index], bytes(payload), record_count=count))
    least_offset = data.draw(st.integers(0, offset))
    content = b"".join(written)
    compiled, plain = (counted(content, outcome, least_offset, is_compiled=one) for one in (True, False))
    assert compiled == plain


def test_a_batch_of_more_records_than_are_hashed_at_a_time() -> None:
    """A batch with more records than one hashing step gets room for all of its entries."""
    records = [Record(index, 0, b"%d" % (index % 9_000), b"") for index in range(20_000)]
    sums, keys, problems = counted(bytes(build_batch(records)), Outcome.COMMITTED, 0, is_compiled=True)
    assert (keys.kinds, problems) == ((Kinds(live=9_000, superseded=11_000),), [])
    assert sums[RECORDS] == 20_000


@pytest.mark.parametrize("is_one_log", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_a_table_does_what_a_dict_does(seed: int, is_one_log: bool) -> None:
    """Entries of several sources yield the same entries and buckets as a dict, and the same sums when put back."""
    print(f"seed {seed}")
    chance = random.Random(seed)
    hashes = [chance.randbytes(16) for _ in range(900)]
    words = [source << SOURCE_SHIFT | chance.choice([0, TOMBSTONE]) for source in range(4) for _ in range(1_500)]
    entries = entries_in(b"".join(ENTRY.pack(chance.choice(hashes), word) for word in words))
    found = []
    for new in (CompiledKeyTable, PlainKeyTable):
        counts = memoryview(bytearray(8 * 3 * 4)).cast("q", (3, 4))
        table: KeyTable = new(counts, 1_024, 0, is_one_log=is_one_log)
        assert table.put(entries, 0, len(words), 0) == 1_500
        assert table.put(entries, 1_500, len(words), ANY_SOURCE) == len(words)
        taken: dict[int, bytes] = {}
        for bucket, data in table.take(20):
            taken[bucket] = taken.get(bucket, b"") + data
        for data in taken.values():
            table.put(entries_in(data), 0, len(data) // ENTRY.size, ANY_SOURCE)
        by_bucket = {bucket: sorted(ENTRY.iter_unpack(data)) for bucket, data in taken.items()}
        found.append((by_bucket, table.sum(), [counts[kind, source] for kind in range(3) for source in range(4)]))
    assert found[0] == found[1]
    assert set(found[0][0]) == set(range(16))
