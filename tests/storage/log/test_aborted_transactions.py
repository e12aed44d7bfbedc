"""Aborted transactions never appear as committed: a marker and its index entry exist together, whatever fails in between.

Strategy: fail the n-th call of one operation on the partition's files while transactions are aborted and committed, once or
from then on, with partial writes; retry each batch until it is written. (`test_power_loss` kills the broker at every change.)
Invariants: offsets have no gaps; each aborted transaction that wrote data is indexed exactly once, no other is, and the last
stable offset is where the oldest open transaction begins.
"""

from __future__ import annotations

import errno
from typing import Literal

import pytest

from diamant.protocol.batches.batch import iter_headers
from diamant.protocol.batches.control import parse_control_type
from diamant.protocol.batches.header import Record
from diamant.protocol.batches.records import build_batch, iter_records
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.storage.env.memory import MemoryEnv
from diamant.storage.log.log import Log
from diamant.storage.segments.log_config import LogConfig
from tests.builder import make_marker
from tests.storage.one_log import create_one, load_one

PATH = "/data/t-0"
EXPIRATION_MS = 1 << 40
CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=100)
"""A handful of batches in a segment."""

OUTCOMES = [(7, False), (8, True), (7, True), (9, False), (8, False), (7, False), (9, True)]
"""Transactions one after the other: producer and whether it commits. Producer 5's stays open to the end."""


def new_log(env: MemoryEnv) -> Log:
    """An empty partition."""
    env.make_dirs("/data")
    return create_one(env, CONFIG, expiration_ms=EXPIRATION_MS)


def load(env: MemoryEnv, *, is_clean: bool) -> Log:
    """Open the log as the next start does."""
    return load_one(env, CONFIG, expiration_ms=EXPIRATION_MS, is_clean=is_clean)


def write(log: Log, producer_id: int) -> None:
    """Append two records in one transactional batch; retry until it is written."""
    batch = build_batch(
        [Record(offset, 1000, None, b"x" * 30) for offset in range(2)],
        base_offset=0,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=-1,
        is_transactional=True,
    )
    append(log, batch)


def end(log: Log, producer_id: int, *, commit: bool) -> None:
    """Append a marker; retry until it is written."""
    marker = make_marker(producer_id, is_commit=commit, timestamp=1000)
    append(log, marker)


def append(log: Log, batch: bytearray) -> None:
    """Retry an append while the disk recovers and the log accepts appends."""
    for _ in range(3):
        try:
            log.append_internal(bytearray(batch))
            return
        except KafkaError as error:
            assert error.code is ErrorCode.KAFKA_STORAGE_ERROR  # noqa: PT017
    raise ClosedLog


class ClosedLog(Exception):
    """The disk does not recover, or the log refuses appends until it is reopened."""


def transact(log: Log) -> None:
    """Run all transactions of OUTCOMES."""
    write(log, 5)
    for producer_id, commit in OUTCOMES:
        write(log, producer_id)
        end(log, producer_id, commit=commit)


def check(log: Log) -> int:
    """Compare the reader's view with the log's own state; return the number of aborted transactions."""
    opened: dict[int, int] = {}
    expected = []
    next_offset = 0
    for segment in log.segments:
        data = segment.file.pread(segment.size, 0)
        for position, header in iter_headers(data):
            assert header.base_offset == next_offset
            next_offset = header.next_offset
            if not header.is_control:
                opened.setdefault(header.producer_id, header.base_offset)
                continue
            marker = next(iter_records(data, position))
            first = opened.pop(header.producer_id, None)
            if first is not None and parse_control_type(marker.key) == 0:
                expected.append((header.producer_id, first, header.base_offset))
    found = [
        (entry.producer_id, entry.first_offset, entry.last_offset)
        for segment in log.segments
        for entry in segment.txn_index.all()
    ]
    assert found == expected
    assert next_offset == log.log_end_offset
    assert log.last_stable_offset == min(opened.values(), default=log.log_end_offset)
    return len(expected)


@pytest.mark.parametrize("times", [1, None], ids=["once", "from then on"])
@pytest.mark.parametrize("partial_bytes", [0, 20])
@pytest.mark.parametrize("files", ["*.txnindex", "*.log", "*"])
@pytest.mark.parametrize("operation", ["append", "create"])
def test_whatever_write_fails(
    operation: Literal["append", "create"], files: str, partial_bytes: int, times: int | None
) -> None:
    """The log is right at every moment, after a clean stop, and after a crash."""
    for after in range(40):
        env = MemoryEnv()
        log = new_log(env)
        fault = env.fail(
            operation, f"{PATH}/{files}", errno.ENOSPC, after=after, times=times, partial_bytes=partial_bytes
        )
        try:
            transact(log)
        except ClosedLog:
            assert times is None
        check(log)
        fault.clear()
        killed = env.copy()
        check(load(killed, is_clean=False))
        if log.write_failure is None:
            end(log, 5, commit=False)
            aborted = check(log)
            log.close()
            assert check(load(env, is_clean=True)) == aborted
        if not fault.hits:
            return
    raise AssertionError("the workload is longer than was thought")


def test_the_disk_fails_twice() -> None:
    """If neither the marker can be written nor its entry removed, the log refuses appends, and the next start repairs it."""
    env = MemoryEnv()
    log = new_log(env)
    write(log, 7)
    env.fail("append", f"{PATH}/*.log", errno.EIO)
    env.fail("truncate", f"{PATH}/*.txnindex", errno.EIO)
    with pytest.raises(ClosedLog):
        end(log, 7, commit=False)
    assert log.write_failure is not None
    assert [entry.last_offset for entry in log.active.txn_index.all()] == [2]
    reopened = load(env.copy(), is_clean=False)
    assert check(reopened) == 0
    end(reopened, 7, commit=True)
    assert check(reopened) == 0
