"""The amount of work that the tests of this run do, the place of their files, and how they end."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis.strategies import just

from tests import building, effort, files_in_memory

pytest_plugins = ["tests.time_limits"]

ONE_IN = 8
"""Of the rows of a test's parameters a quick run tries one in so many, and at least two."""

LONGEST = (
    "test_wheel.py", "test_cluster.py", "test_spark_runner.py", "test_spark_demonstration.py", "test_spark_docker_steps.py",
    "test_bench.py",
)  # fmt: skip
"""Modules that take a processor for half a minute, the longest first."""


# A shell starts background jobs with SIGINT ignored, nohup with SIGHUP, and the programs of tests would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A directory of the test's own: in memory, or on the disk where that matters (`files_in_memory`)."""
    if effort.is_quick() or not files_in_memory.belongs_on_disk(request.path):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(
        prefix="diamant-test-", dir=files_in_memory.DISK, ignore_cleanup_errors=True
    ) as directory:
        yield Path(directory)


@pytest.fixture(scope="session", autouse=True)
def _temporary_files_in_memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep temporary files in memory, too, of this process and of those that tests start, which do wait for the disk."""
    with pytest.MonkeyPatch.context() as patch:
        if files_in_memory.are_used():
            directory = str(tmp_path_factory.mktemp("temporary"))
            patch.setenv("TMPDIR", directory)
            patch.setattr(tempfile, "tempdir", directory)
        yield


@pytest.fixture
def temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory where this process makes its temporary files, empty."""
    directory = tmp_path / "temporary"
    directory.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(directory))
    return directory


@pytest.fixture(scope="session")
def build_tools(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Path:
    """What building Diamant requires, in a directory of its own; it stays for the next run."""
    cache = getattr(pytestconfig, "cache", None)
    return building.tools_below(tmp_path_factory.mktemp("tools") if cache is None else cache.mkdir("build-tools"))


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--long` adds what takes minutes."""
    parser.addoption("--long", action="store_true", help="run the tests marked long, too: each takes minutes")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is marked long, unless it is asked for, and in a quick run what is slow and most rows of tables."""
    if not config.getoption("--long"):
        _keep(config, items, [item for item in items if not item.get_closest_marker("long")])
    if effort.is_quick():
        tables: dict[str, list[pytest.Item]] = {}
        for item in items:
            if not item.get_closest_marker("slow"):
                tables.setdefault(item.nodeid.partition("[")[0], []).append(item)
        kept = {item for name, rows in tables.items() for item in _some_rows(name, rows)}
        _keep(config, items, [item for item in items if item in kept])
    _put_spark_first(items)
    _put_longest_first(items, getattr(config, "workerinput", {}).get("workercount", 1))


def _put_spark_first(items: list[pytest.Item]) -> None:
    """Start Spark in one process: xdist deals tests out in equal shares, and an idle worker takes from another's end."""
    modules = {item.path for item in items if "spark" in getattr(item, "fixturenames", ())}
    items.sort(key=lambda item: item.path not in modules)


def _put_longest_first(items: list[pytest.Item], workers: int) -> None:
    """Have all workers but the first, which has Spark, begin with modules that take half a minute and more.

    Idle workers take from the end of another's share: what stands last is begun last, and all would wait for it.
    """
    modules: dict[Path, list[pytest.Item]] = {}
    for item in items:
        if item.path.name in LONGEST:
            modules.setdefault(item.path, []).append(item)
    if workers == 1 or not modules:
        return
    others = [item for item in items if item.path not in modules]
    shares: list[list[pytest.Item]] = [[] for _ in range(workers)]
    for number, path in enumerate(sorted(modules, key=lambda path: LONGEST.index(path.name))):
        shares[1 + number % (workers - 1)] += modules[path]
    for share in shares:
        count = max(0, len(items) // workers - len(share))
        share += others[:count]
        del others[:count]
    items[:] = [item for share in shares for item in share] + others


def _some_rows(name: str, rows: list[pytest.Item]) -> Sequence[pytest.Item]:
    return effort.some(rows, every=min(ONE_IN, len(rows) - 1), seed=len(name)) if len(rows) > 2 else rows


def _keep(config: pytest.Config, items: list[pytest.Item], kept: list[pytest.Item]) -> None:
    there = set(kept)
    config.hook.pytest_deselected(items=[item for item in items if item not in there])
    items[:] = kept


def pytest_collection_finish() -> None:
    """Look for garbage again, but not among the thousands of tests, which stay until the end, and not after every 700 objects."""
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
    gc.enable()


def _sync(fd: int) -> None:
    """In place of `os.fsync`: OSError if the descriptor is none, and no wait for the disk."""
    os.fstat(fd)


def pytest_configure(config: pytest.Config) -> None:
    """Leave out slow tests, shorten those with many examples, and do not wait for the disk."""
    # A terminal's width, handed on to whatever it starts, would cut the tables that tests read.
    os.environ.pop("COLUMNS", None)
    # The words of `make test JAVA=skip` would reach the make that a test starts.
    for name in ("MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES", "MAKELEVEL", "JAVA"):
        os.environ.pop(name, None)
    # Until the tests are collected there is none, and looking for it takes a third of the time.
    gc.disable()
    if hasattr(config, "workerinput"):
        # A worker has told all it knows by the end; to take its half a million objects apart would take seconds.
        atexit.register(os._exit, 0)
    # No test can see whether its own process's bytes reached the platters; those about that lose power in memory. Each of
    # the thousands of brokers would wait a sixteenth of a second for the disk.
    os.fsync = os.fdatasync = _sync
    is_quick = config.option.markexpr == "not slow"
    effort.set_quick(is_quick)
    # A deadline for each example would fail by chance on a busy machine; tests/time_limits.py has one for each test.
    settings.register_profile("diamant", max_examples=effort.examples(100), deadline=None)
    settings.load_profile("diamant")
    # Before the collector's freeze below: Hypothesis makes its generator with the first example, and would ask the collector who
    # holds it. Of frozen objects that does not tell, and from Python 3.14 on every dictionary is among them.
    given(just(None))(lambda _: None)()
    files_in_memory.use()
