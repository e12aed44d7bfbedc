"""The compiled engine alone: saved work, loaded modules, and wrong indexes."""

from __future__ import annotations

from collections.abc import Iterable

from diamant.cleaner.engines.compiled_map import CompiledMap
from diamant.cleaner.engines.compiled_rewriter import CompiledRewriter
from diamant.cleaner.engines.dirty_range import map_dirty_range
from diamant.cleaner.engines.group_rewrite import rewrite_group
from diamant.cleaner.engines.round import Engine, Round
from diamant.cleaner.engines.survivors import MapSurvivors
from diamant.cleaner.engines.work import RoundWork
from diamant.cleaner.rules.transaction_tracker import TransactionTracker
from diamant.cleaner.segments.payload_buffer import Unpacker
from diamant.cleaner.segments.row_records import RowRecords
from diamant.protocol.batches.batch import iter_headers
from diamant.storage import names
from diamant.storage.segments.txn_index import AbortedTxn
from tests.cleaner.facts.segment_history import DIRECTORY, SegmentHistory
from tests.memory_env import MemoryEnv


class CountingUnpacker(Unpacker):
    """Counts what it decompresses."""

    count = 0

    def unpack(self, codec: int, data: memoryview, max_bytes: int, *, may_skip: bool = True) -> tuple[int, int]:
        """Count."""
        self.count += 1
        return super().unpack(codec, data, max_bytes, may_skip=may_skip)


def test_batches_that_stay_whole_are_decompressed_once() -> None:
    """In a second round over the output of the first they are decompressed only for the map."""
    history = SegmentHistory()
    for number in range(30):
        history.batch([(b"%d-%d" % (number, index), b"v" * 50) for index in range(4)], codec=4)
    env, plan = history.stored()
    unpacker = CountingUnpacker()
    work, records = RoundWork(env, plan), RowRecords(unpacker=unpacker)
    key_map = CompiledMap(work, records)
    rewriter = CompiledRewriter(work, records, MapSurvivors(plan, key_map))
    clean = Engine("here", lambda _: Round(work, key_map, lambda: rewriter))
    assert clean(env, plan).stats.messages_written == 120
    assert unpacker.count == 30


def test_a_wrong_index_of_aborted_transactions_loses_nothing() -> None:
    """If the passes disagree on aborted transactions, records with keys missing from the map are kept."""
    history = SegmentHistory()
    history.batch([(b"a", b"1"), (b"b", b"2")], producer=11, is_transactional=True)
    history.marker(11, "abort")
    history.roll()
    history.batch([(b"c", b"3")], producer=11, is_transactional=True)
    history.marker(11, "commit")
    env, plan = history.stored()
    work, records = RoundWork(env, plan), RowRecords()
    key_map = CompiledMap(work, records)
    map_dirty_range(work, key_map)
    rewriter = CompiledRewriter(work, records, MapSurvivors(plan, key_map), Forgetful())
    outputs = [output for segment in plan.segments for output in rewrite_group(work, rewriter, [segment])]
    kept = [header.record_count for output in outputs for _, header in iter_headers(log_of(env, output.base_offset))]
    assert kept == [2, 1, 1, 1]


class Forgetful(TransactionTracker):
    """A tracker that ignores aborted transactions."""

    def add_aborted(self, transactions: Iterable[AbortedTxn]) -> None:
        return


def log_of(env: MemoryEnv, base_offset: int) -> bytes:
    """Return the log file that a round has written."""
    return env.read_bytes(names.log_file(DIRECTORY, base_offset) + names.CLEANED_SUFFIX)
