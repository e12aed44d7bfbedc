"""A log on a failing disk: every acknowledged batch exists once, at its offset, and what was aborted is not shown as committed.

Strategy: fail the n-th call of one operation while transactions are aborted and committed beside other batches, once or from then
on, for every n that is reached; retry each batch until it is written. Then let the disk work again, and open the log as after a
kill and after an orderly stop. (`test_power_loss` kills the broker at every change.)
Invariants: a refused batch leaves no trace, an acknowledged one stays, and offsets have no gaps; each aborted transaction that
wrote data is indexed exactly once, no other is, and the last stable offset is where the oldest open transaction begins. Appends
work again at once, unless the log reports that it refuses them.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence

import pytest

from diamant.protocol.batches.batch import iter_headers
from diamant.protocol.batches.batch_records import build_batch, iter_records
from diamant.protocol.batches.control import parse_control_type
from diamant.protocol.batches.header import Record
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.storage.log.log import Log
from diamant.storage.segments.log_config import LogConfig
from tests.builder import make_marker
from tests.injected_faults import Operation
from tests.memory_env import MemoryEnv
from tests.storage.logs import read_all
from tests.storage.one_log import create_one, load_one

PATH = "/data/t-0"
EXPIRATION_MS = 1 << 40
CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=100)
"""A handful of batches in a segment."""

OUTCOMES = [(7, False), (8, True), (7, True), (9, False), (8, False), (7, False), (9, True)]
"""Transactions one after the other: producer and whether it commits. Producer 5's stays open to the end."""
IDEMPOTENT = 3
"""A client's producer without transactions."""
MAX_CALLS = 200
CALLS: list[tuple[Operation, str, int]] = [
    *((operation, "*", 0) for operation in ("open", "create", "pread", "pwrite", "truncate", "rename", "remove")),
    *(("append", files, size) for files, size in (("*", 20), ("*.log", 0), ("*.log", 1000), ("*.txnindex", 20))),
    *(("create", files, 0) for files in ("*.log", "*.txnindex")),
]  # fmt: skip
"""Operation, files, and the bytes that a failing append leaves: 1000 are a whole batch."""


def new_log(env: MemoryEnv) -> Log:
    """Return an empty partition."""
    env.make_dirs("/data")
    return create_one(env, CONFIG, expiration_ms=EXPIRATION_MS)


def load(env: MemoryEnv, *, is_clean: bool) -> Log:
    """Open the log as the next start does, without checkpoints."""
    return load_one(env, CONFIG, expiration_ms=EXPIRATION_MS, is_clean=is_clean)


class ClosedLog(Exception):
    """The disk does not recover, or the log refuses appends until it is reopened."""


class Workload:
    """Appends of two records to one log, each retried while the disk recovers, and the values of those acknowledged."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.acknowledged: list[bytes | None] = []
        self.sequence = 0

    def run(self, outcomes: Sequence[tuple[int, bool]]) -> None:
        """Some transactions, and between them batches without a producer, and of an idempotent one."""
        self.write(5)
        for producer_id, commit in outcomes:
            self.write(producer_id)
            if commit:
                self._append(self._batch())
            else:
                self._append(self._batch(IDEMPOTENT, self.sequence), is_client=True)
                self.sequence += 2
            self.end(producer_id, commit=commit)

    def write(self, producer_id: int) -> None:
        """Append a batch of a transaction."""
        self._append(self._batch(producer_id, is_transactional=True))

    def end(self, producer_id: int, *, commit: bool) -> None:
        """Append a marker."""
        self._append(make_marker(producer_id, is_commit=commit, timestamp=1000))

    def _batch(self, producer_id: int = -1, sequence: int = -1, *, is_transactional: bool = False) -> bytearray:
        records = [Record(offset, 1000, None, b"%d" % len(self.acknowledged) + b"x" * 30) for offset in range(2)]
        fields = {"producer_id": producer_id, "producer_epoch": min(producer_id, 0), "base_sequence": sequence}
        return build_batch(records, base_offset=0, is_transactional=is_transactional, **fields)

    def _append(self, batch: bytearray, *, is_client: bool = False) -> None:
        for _ in range(3):
            end, copy = self.log.log_end_offset, bytearray(batch)
            try:
                result = self.log.append_as_leader(memoryview(copy)) if is_client else self.log.append_internal(copy)
            except KafkaError as error:
                assert error.code is ErrorCode.KAFKA_STORAGE_ERROR  # noqa: PT017
                continue
            assert (result.base_offset, result.is_duplicate) == (end, False)
            self.acknowledged += [record.value for record in iter_records(batch)]
            return
        raise ClosedLog

    def check(self, log: Log) -> None:
        """Compare the log with the acknowledged values, and its aborted transactions with its batches."""
        assert read_all(log) == self.acknowledged
        opened: dict[int, int] = {}
        expected = []
        next_offset = 0
        for segment in log.segments:
            data = segment.file.pread(segment.size, 0)
            for position, header in iter_headers(data):
                assert header.base_offset == next_offset
                next_offset = header.next_offset
                if not header.is_control:
                    if header.is_transactional:
                        opened.setdefault(header.producer_id, header.base_offset)
                    continue
                marker = next(iter_records(data, position))
                first = opened.pop(header.producer_id, None)
                if first is not None and parse_control_type(marker.key) == 0:
                    expected.append((header.producer_id, first, header.base_offset))
        assert next_offset == log.log_end_offset
        found = [entry[:3] for segment in log.segments for entry in segment.txn_index.all()]
        assert found == expected
        assert log.last_stable_offset == min(opened.values(), default=log.log_end_offset)


def fails(call: tuple[Operation, str, int], after: int, *, times: int | None, is_reopened: bool) -> bool:
    """One round; False if the fault was not reached."""
    env = MemoryEnv()
    operation, files, partial_bytes = call
    workload = Workload(new_log(env))
    outcomes = OUTCOMES
    if is_reopened:
        workload.run(OUTCOMES[:3])
        outcomes = OUTCOMES[3:]
        workload.log.close()
        workload.log = load(env, is_clean=True)
    fault = env.fail(operation, f"{PATH}/{files}", errno.ENOSPC, after=after, times=times, partial_bytes=partial_bytes)
    try:
        workload.run(outcomes)
    except ClosedLog:
        assert times is None
    if not fault.hits:
        return False
    fault.clear()
    workload.check(workload.log)
    if workload.log.write_failure is None:
        workload.end(5, commit=False)
    killed = env.copy()
    workload.log.close(is_clean=workload.log.write_failure is None)
    if workload.log.write_failure is None:
        workload.check(load(env, is_clean=True))
    workload.log = load(killed, is_clean=False)
    workload.run(OUTCOMES[:1])
    workload.check(workload.log)
    return True


@pytest.mark.parametrize("is_reopened", [False, True], ids=["new", "reopened"])
@pytest.mark.parametrize("times", [1, None], ids=["once", "from then on"])
@pytest.mark.parametrize("call", CALLS, ids=lambda call: " ".join(map(str, call)))
def test_any_call_may_fail(call: tuple[Operation, str, int], times: int | None, is_reopened: bool) -> None:
    """See the strategy and the invariants above."""
    for after in range(MAX_CALLS):
        if not fails(call, after, times=times, is_reopened=is_reopened):
            return
    pytest.fail(f"{call}: more than {MAX_CALLS} calls")


def test_the_disk_fails_twice() -> None:
    """If neither the marker can be written nor its entry removed, the log refuses appends, and the next start repairs it."""
    env = MemoryEnv()
    workload = Workload(new_log(env))
    workload.write(7)
    env.fail("append", f"{PATH}/*.log", errno.EIO)
    env.fail("truncate", f"{PATH}/*.txnindex", errno.EIO)
    with pytest.raises(ClosedLog):
        workload.end(7, commit=False)
    assert workload.log.write_failure is not None
    assert [entry.last_offset for entry in workload.log.active.txn_index.all()] == [2]
    workload.log = load(env.copy(), is_clean=False)
    for _ in range(2):
        workload.check(workload.log)
        assert workload.log.active.txn_index.all() == []
        workload.end(7, commit=True)
