"""Which search reads: nobody waits for a compiler."""

from __future__ import annotations

import random
from functools import partial
from math import inf
from pathlib import Path

import pytest

from diamant.cleaner.engines import compiled
from diamant.cleaner.evidence.scan.scan import ScanReport, scan_directory
from diamant.cleaner.evidence.search import search_engine
from diamant.cleaner.evidence.search.findings import VALUE
from diamant.cleaner.evidence.search.needles import Needles
from diamant.cleaner.evidence.search.record_search import Subject
from diamant.cleaner.evidence.search.search_engine import KernelCompiler, SearchEngine
from diamant.cleaner.kernels import cache
from diamant.protocol.batches.header import Record
from diamant.protocol.batches.records import build_batch
from diamant.storage.env.env import RealEnv

PLACES = (0, 77, 199)


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    """A segment with the key in a few of its 200 batches."""
    rng = random.Random(3)
    directory = tmp_path / "data" / "users-0"
    directory.mkdir(parents=True)
    batches = []
    for index in range(200):
        keys = [b"other-%d" % index, b"customer-42" if index in PLACES else b"nobody"]
        records = [Record(2 * index + delta, 1, key, rng.randbytes(50)) for delta, key in enumerate(keys)]
        batches.append(bytes(build_batch(records, codec=index % 5)))
    (directory / "00000000000000000000.log").write_bytes(b"".join(batches))
    return tmp_path / "data"


class ToldCompiler:
    """Compiles nothing, and says so, until it was asked so often."""

    def __init__(self, warm_after: float) -> None:
        self._warm_after = warm_after
        self.asked = 0
        self.starts = 0

    def is_warm(self) -> bool:
        """Count the question."""
        self.asked += 1
        return self.asked > self._warm_after

    def start(self) -> None:
        """Count it."""
        self.starts += 1


def scanned(directory: Path, compiler: ToldCompiler, **limits: int) -> ScanReport:
    subject = Subject(b"customer-42", frozenset({"users"}), Needles(b"s" * 32))
    return scan_directory(RealEnv(), str(directory), subject, {}, engine=SearchEngine(compiler, **limits))


def check(report: ScanReport) -> None:
    """Everything was found and read, whoever did."""
    assert sorted(one.offset or 0 for one in report.findings if one.what == VALUE) == [
        2 * place + 1 for place in PLACES
    ]
    assert (report.counts.batches, report.counts.records, report.unaccounted) == (200, 400, [])


def test_the_plain_search_goes_on_while_kernels_are_compiled_and_hands_over_within_a_file(segment: Path) -> None:
    """Compiling is begun once; from the moment it is over the rest of the file is read compiled."""
    compiler = ToldCompiler(warm_after=20)
    report = scanned(segment, compiler, from_bytes=0, step_bytes=500)
    check(report)
    assert report.engine == "compiled"
    assert compiler.starts == 20
    assert 0 < report.counts.compiled_batches < 190


def test_without_a_compiler_everything_is_read_plainly(segment: Path) -> None:
    """Slower, and the same."""
    report = scanned(segment, ToldCompiler(warm_after=inf), from_bytes=0)
    check(report)
    assert (report.engine, report.counts.compiled_batches) == ("plain", 0)


def test_little_is_read_plainly_and_compiles_nothing(segment: Path) -> None:
    """Loading alone would take longer."""
    compiler = ToldCompiler(warm_after=0)
    report = scanned(segment, compiler)
    check(report)
    assert (report.engine, compiler.asked, compiler.starts) == ("plain", 0, 0)


@pytest.mark.parametrize(("code", "warnings"), [(0, 0), (1, 1)])
def test_compiling_is_done_by_one_process_of_low_priority_and_a_failure_is_told_once(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, code: int, warnings: int
) -> None:
    """However often it is asked for."""
    if cache.cache_directory() is None:
        pytest.skip("there is no cache to compile into")
    runs = tmp_path / "runs"
    program = f"import sys; print(sys.argv[1], file=open({str(runs)!r}, 'a')); {code} and sys.exit('MemoryError: no')"
    compiler = KernelCompiler(partial(search_engine.compile_kernels, program))
    for _ in range(3):
        compiler.start()
    assert compiler.thread is not None
    compiler.thread.join(20)
    assert runs.read_text().split() == [str(search_engine.NICENESS)]
    assert (len(caplog.records), "MemoryError" in caplog.text) == (warnings, bool(warnings))


@pytest.mark.slow
def test_the_process_that_compiles_leaves_the_code_in_the_cache(caplog: pytest.LogCaptureFixture) -> None:
    """The real program in a process of its own: afterwards nothing is left to compile."""
    search_engine.compile_kernels()
    assert caplog.messages == []
    assert cache.is_cached() == (cache.cache_directory() is not None)


def test_warming_up_has_the_search_compiled_too() -> None:
    """So that the first erasure finds it in the cache, where workers and validation have their kernels."""
    from diamant.cleaner.kernels import search, warm_up

    assert compiled.warming_steps(is_cached=False) == [warm_up.call_every_kernel, search.warm_up]
    assert compiled.warming_steps(is_cached=True) == [warm_up.call_every_kernel]
