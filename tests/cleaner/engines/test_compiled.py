"""The compiled engine alone: what it spares, what it loads and compiles, and how it takes a wrong index."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
from collections.abc import Iterable
from types import ModuleType

import pytest

from diamant.cleaner.engines import compiled
from diamant.cleaner.engines.compiled_map import CompiledMap
from diamant.cleaner.engines.compiled_rewriter import CompiledRewriter
from diamant.cleaner.engines.dirty_range import map_dirty_range
from diamant.cleaner.engines.group_rewrite import rewrite_group
from diamant.cleaner.engines.round import Round
from diamant.cleaner.engines.survivors import MapSurvivors
from diamant.cleaner.engines.work import RoundWork
from diamant.cleaner.kernels import cache, warm_up
from diamant.cleaner.rules.modes import KAFKA
from diamant.cleaner.rules.result import no_output
from diamant.cleaner.rules.transaction_tracker import TransactionTracker
from diamant.cleaner.segments.payload_buffer import Unpacker
from diamant.cleaner.segments.row_records import RowRecords
from diamant.protocol.batches.batch import iter_headers
from diamant.storage import names
from diamant.storage.env.memory import MemoryEnv
from diamant.storage.segments.txn_index import AbortedTxn
from tests.cleaner.engines.test_engines_agree import ordinary
from tests.cleaner.prompt.segment_history import DIRECTORY, SegmentHistory


class CountingUnpacker(Unpacker):
    """Counts what it decompresses."""

    count = 0

    def unpack(self, codec: int, data: memoryview, max_bytes: int, *, ignores_rest: bool = True) -> tuple[int, int]:
        """Count."""
        self.count += 1
        return super().unpack(codec, data, max_bytes, ignores_rest=ignores_rest)


def test_batches_that_stay_whole_are_decompressed_once() -> None:
    """In a second round over what the first has left: for the map alone."""
    history = SegmentHistory()
    for number in range(30):
        history.batch([(b"%d-%d" % (number, index), b"v" * 50) for index in range(4)], codec=4)
    env, plan = history.stored()
    unpacker = CountingUnpacker()
    work, records = RoundWork(env, plan), RowRecords(unpacker=unpacker)
    key_map = CompiledMap(work, records)
    rewriter = CompiledRewriter(work, records, MapSurvivors(plan, key_map))
    assert Round(work, key_map, rewriter).run("here", no_output, 0).stats.messages_written == 120
    assert unpacker.count == 30


def test_a_wrong_index_of_aborted_transactions_loses_nothing() -> None:
    """If the two passes do not agree on what has aborted, records stay whose keys the map was not given."""
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
    """Never hears of an aborted transaction."""

    def add_aborted(self, transactions: Iterable[AbortedTxn]) -> None:
        return


def log_of(env: MemoryEnv, base_offset: int) -> bytes:
    """The log file that a round has written."""
    return env.read_bytes(names.log_file(DIRECTORY, base_offset) + names.CLEANED_SUFFIX)


def kernels_called_in(module: ModuleType) -> set[tuple[str, str]]:
    """Module and name of each kernel that a module calls."""
    tree = ast.parse(inspect.getsource(module))
    imported = {
        name.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("diamant.cleaner.kernels")
        for name in node.names
    }
    called = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        match node.func:
            case ast.Name(name) if name in imported:
                called.add((f"{imported[name]}", name))
            case ast.Attribute(ast.Name(place), name) if imported.get(place) == "diamant.cleaner.kernels":
                called.add((f"diamant.cleaner.kernels.{place}", name))
    return {
        (place, name) for place, name in called if hasattr(getattr(importlib.import_module(place), name), "signatures")
    }


def test_warming_up_calls_each_kernel_with_the_arguments_of_a_round() -> None:
    """Otherwise a round would compile for seconds what `warm_up` did not think of."""
    compiled.warm_up()
    called = kernels_called_in(warm_up)
    assert called
    for name in (
        "engines.compiled_rewriter",
        "engines.offset_map",
        "segments.compiled_segment_writer",
        "segments.key_hasher",
        "segments.row_reader",
        "segments.row_records",
    ):
        module = importlib.import_module(f"diamant.cleaner.{name}")
        assert set() != kernels_called_in(module) <= called, name
    kernels = {name: getattr(importlib.import_module(place), name) for place, name in called}
    before = {name: len(kernel.signatures) for name, kernel in kernels.items()}
    for codec in range(5):
        compiled.clean(*ordinary(codec=codec).stored(map_memory_bytes=1))
        compiled.clean(*ordinary(codec=codec).stored(first_dirty_offset=33))
        compiled.clean(*ordinary(codec=codec).stored(mode=KAFKA, map_max_entries=5))
    assert {name: len(kernel.signatures) for name, kernel in kernels.items()} == before


def test_warming_up_is_noted() -> None:
    """After a round everything is compiled, here and, if there is a cache, for the next process."""
    compiled.warm_up()
    assert compiled.is_warm()
    assert cache.is_cached() == (cache.cache_directory() is not None)


@pytest.mark.slow
def test_importing_the_engine_loads_no_compiler() -> None:
    """Only its use does, and `is_warm` is no use of it."""
    program = """
import sys
from diamant.cleaner.engines import compiled
compiled.is_warm()
print(*[name for name in ("numba", "llvmlite") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.split() == []
