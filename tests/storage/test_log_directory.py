"""A whole log directory: one partition that cannot be opened does not keep the others down."""

from __future__ import annotations

from uuid import UUID

import pytest

from diamant.storage import loader
from diamant.storage.log import Log
from diamant.storage.log_config import LogConfig
from diamant.storage.log_directory import LogDirectory, PartitionSource
from diamant.storage.memory_env import MemoryEnv
from tests.storage.test_log import batch, read_all

DAY_MS = 86_400_000
COUNT = 60

Expected = dict[tuple[str, int], PartitionSource]


def source(number: int, **config: int) -> PartitionSource:
    """What the metadata say of a partition."""
    return PartitionSource(UUID(int=number), LogConfig(**config))  # type: ignore[arg-type]


def fill(env: MemoryEnv, expected: Expected) -> None:
    """Make the partitions, put records into each, and leave them as a crash does."""
    directory = LogDirectory.open(env, "/data", producer_expiration_ms=DAY_MS)
    directory.load_logs(expected, threads=1)
    for log in directory.logs.values():
        for number in range(COUNT):
            log.append_as_leader(batch(b"%d" % number, timestamp=1_700_000_000_000 + number))
    directory.close(is_clean=False)


def start(env: MemoryEnv, expected: Expected) -> LogDirectory:
    """Open the directory again."""
    directory = LogDirectory.open(env, "/data", producer_expiration_ms=DAY_MS)
    directory.load_logs(expected, threads=2)
    return directory


@pytest.mark.parametrize("index_bytes", [4, 12, 24, 96, 400])
def test_a_smaller_index_is_made_anew_after_a_crash(index_bytes: int) -> None:
    """With `segment.index.bytes` lowered recovery leaves entries out: all is read, and the next append starts a segment."""
    env = MemoryEnv()
    expected = {("t", 0): source(1, index_interval_bytes=0)}
    fill(env, expected)
    expected["t", 0] = source(1, index_interval_bytes=0, segment_index_bytes=index_bytes)
    directory = start(env, expected)
    assert directory.failures == []
    log = directory.logs["t", 0]
    assert log.active.offset_index.entries <= index_bytes // 8
    log.append_as_leader(batch(b"more"))
    assert len(log.segments) == 2
    assert read_all(log) == [*(b"%d" % number for number in range(COUNT)), b"more"]
    for offset in range(COUNT):
        assert read_all(log, offset)[0] == b"%d" % offset


def test_a_bug_in_the_loading_of_one_log_is_a_failure_of_that_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is raised: the others come up, and the stop leaves no mark of a clean one."""
    env = MemoryEnv()
    expected = {("bad", 0): source(1), ("good", 0): source(2)}
    fill(env, expected)
    real = loader.load_log

    def load_log(env: MemoryEnv, path: str, topic: str, *rest: object, **more: object) -> Log:
        if topic == "bad":
            raise ZeroDivisionError("a bug")
        return real(env, path, topic, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr("diamant.storage.log_directory.load_log", load_log)
    directory = start(env, expected)
    assert [(failure.topic, str(failure.error)) for failure in directory.failures] == [("bad", "a bug")]
    assert read_all(directory.logs["good", 0]) == [b"%d" % number for number in range(COUNT)]
    directory.close()
    monkeypatch.undo()
    again = start(env, expected)
    assert not again.was_clean
    assert len(read_all(again.logs["bad", 0])) == COUNT
