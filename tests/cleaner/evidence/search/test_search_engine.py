"""Which search reads: nobody waits for a compiler."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from diamant.cleaner.engines import compiled
from diamant.cleaner.evidence.scan import scan
from diamant.cleaner.evidence.scan.scan import ScanReport, scan_directory
from diamant.cleaner.evidence.search import search_engine
from diamant.cleaner.evidence.search.findings import VALUE
from diamant.cleaner.evidence.search.needles import Needles
from diamant.cleaner.evidence.search.record_search import Subject
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


def scanned(directory: Path) -> ScanReport:
    subject = Subject(b"customer-42", frozenset({"users"}), Needles(b"s" * 32))
    return scan_directory(RealEnv(), str(directory), subject, {})


def check(report: ScanReport) -> None:
    """Everything was found and read, whoever did."""
    assert sorted(one.offset or 0 for one in report.findings if one.what == VALUE) == [
        2 * place + 1 for place in PLACES
    ]
    assert (report.counts.batches, report.counts.records, report.unaccounted) == (200, 400, [])


def test_the_plain_search_goes_on_while_kernels_are_compiled_and_hands_over_within_a_file(
    segment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiling is begun once; from the moment it is over the rest of the file is read compiled."""
    asked: list[bool] = []
    began: list[bool] = []
    monkeypatch.setattr(scan, "COMPILED_FROM_BYTES", 0)
    monkeypatch.setattr(search_engine, "STEP_BYTES", 500)
    monkeypatch.setattr(search_engine, "start_compiling", lambda: began.append(True))

    def is_warm() -> bool:
        asked.append(True)
        return len(asked) > 20

    monkeypatch.setattr(compiled, "is_warm", is_warm)
    report = scanned(segment)
    check(report)
    assert report.engine == "compiled"
    assert len(began) == 20
    assert 0 < report.counts.compiled_batches < 190


def test_without_a_compiler_everything_is_read_plainly(segment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slower, and the same."""
    monkeypatch.setattr(scan, "COMPILED_FROM_BYTES", 0)
    monkeypatch.setattr(compiled, "is_warm", lambda: False)
    monkeypatch.setattr(search_engine, "start_compiling", lambda: None)
    report = scanned(segment)
    check(report)
    assert (report.engine, report.counts.compiled_batches) == ("plain", 0)


def test_little_is_read_plainly_and_compiles_nothing(segment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading alone would take longer."""
    monkeypatch.setattr(search_engine, "start_compiling", lambda: pytest.fail("not for so little"))
    report = scanned(segment)
    check(report)
    assert report.engine == "plain"


class Done:
    """A process that has ended."""

    def __init__(self, returncode: int) -> None:
        self.returncode = returncode
        self.stderr = b"Traceback\nMemoryError: no\n"


@pytest.mark.parametrize(("code", "warnings"), [(0, 0), (1, 1)])
def test_compiling_is_done_by_one_process_of_low_priority_and_a_failure_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path, code: int, warnings: int
) -> None:
    """However often it is asked for."""
    commands: list[Any] = []

    def run(command: list[str], **_options: Any) -> Done:
        commands.append(command)
        return Done(code)

    monkeypatch.setattr(search_engine, "_compiler", None)
    monkeypatch.setattr(cache, "cache_directory", lambda: tmp_path)
    monkeypatch.setattr(subprocess, "run", run)
    for _ in range(3):
        search_engine.start_compiling()
    assert search_engine._compiler is not None
    search_engine._compiler.join(20)
    assert len(commands) == 1
    assert "warm_up" in commands[0][2]
    assert (len(caplog.records), "MemoryError" in caplog.text) == (warnings, bool(warnings))


@pytest.mark.slow
def test_the_process_that_compiles_leaves_the_code_in_the_cache(caplog: pytest.LogCaptureFixture) -> None:
    """The real program in a process of its own: afterwards nothing is left to compile."""
    search_engine._compile()
    assert caplog.messages == []
    assert cache.is_cached() == (cache.cache_directory() is not None)


def test_warming_up_has_the_search_compiled_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the first erasure finds it in the cache, where workers and validation have their kernels."""
    from diamant.cleaner.kernels import search

    calls: list[str] = []
    monkeypatch.setattr(compiled, "_is_warm_here", False)
    monkeypatch.setattr(cache, "is_cached", lambda: False)
    monkeypatch.setattr(cache, "note_cached", lambda: calls.append("noted"))
    monkeypatch.setattr("diamant.cleaner.kernels.warm_up.call_every_kernel", lambda: calls.append("rounds"))
    monkeypatch.setattr(search, "warm_up", lambda: calls.append("search"))
    compiled.warm_up()
    assert calls == ["rounds", "search", "noted"]
