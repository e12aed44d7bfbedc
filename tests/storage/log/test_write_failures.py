"""A log on a failing disk: whichever call fails, every acknowledged record exists once, at its offset.

Strategy: fail the n-th call of one operation while records are appended, once or from then on, for every n that is reached;
then let the disk work again, and finally open the log as after a crash.
Invariants: a refused batch leaves no trace, an acknowledged one stays; offsets have no gaps; appends work again at once, unless
the log reports that it refuses them.
"""

from __future__ import annotations

import errno
import itertools

import pytest

from diamant.protocol.batches.batch import iter_headers
from diamant.protocol.batches.header import Record
from diamant.protocol.batches.records import build_batch, iter_records
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.storage.env.memory import MemoryEnv
from diamant.storage.log.log import Log
from diamant.storage.segments.log_config import LogConfig
from tests.storage.one_log import create_one, load_one

# A few batches in a segment, an index entry for nearly each.
CONFIG = LogConfig(segment_bytes=900, index_interval_bytes=100)
MAX_CALLS = 200


class Workload:
    """One idempotent producer of single records, and its acknowledged records."""

    def __init__(self) -> None:
        self.acknowledged: list[bytes] = []
        self._serial = itertools.count()

    def append(self, log: Log, count: int) -> None:
        """Append records; a refused one is not resent, the next one gets its sequence."""
        for _ in range(count):
            value = b"%d" % next(self._serial) + b"x" * 50
            sequence = len(self.acknowledged)
            batch = build_batch(
                [Record(0, 1000 + sequence, None, value)],
                base_offset=0,
                producer_id=7,
                producer_epoch=0,
                base_sequence=sequence,
            )
            try:
                result = log.append_as_leader(memoryview(bytearray(batch)))
            except KafkaError as error:
                if error.code != ErrorCode.KAFKA_STORAGE_ERROR:
                    raise
            else:
                assert (result.base_offset, result.is_duplicate) == (sequence, False)
                self.acknowledged.append(value)

    def check(self, log: Log) -> None:
        """Check that the log holds exactly the acknowledged records."""
        assert read_all(log) == list(enumerate(self.acknowledged))


def read_all(log: Log) -> list[tuple[int, bytes | None]]:
    """Offset and value of all records."""
    found: list[tuple[int, bytes | None]] = []
    offset = 0
    while offset < log.log_end_offset:
        read = log.read(offset, 1 << 20, isolation_level=0, min_one_message=True)
        data = b"".join(piece.read() for piece in read.slices)
        records = [record for position, _ in iter_headers(data) for record in iter_records(data, position)]
        assert records, f"nothing at offset {offset} of {log.log_end_offset}"
        found += [(record.offset, record.value) for record in records]
        offset = records[-1].offset + 1
    return found


def load(env: MemoryEnv, *, is_clean: bool) -> Log:
    """Open the log as a start does, without checkpoints."""
    return load_one(env, CONFIG, expiration_ms=1 << 40, is_clean=is_clean)


def run(operation: str, calls: int, *, times: int | None, is_reopened: bool) -> bool:
    """One round; False if the fault was not reached."""
    env = MemoryEnv()
    env.make_dirs("/data")
    log = create_one(env, CONFIG, expiration_ms=1 << 40)
    log.become_leader(0)
    workload = Workload()
    workload.append(log, 12)
    if is_reopened:
        log.close()
        log = load(env, is_clean=True)
        log.become_leader(0)
    fault = env.fail(operation, "*", errno.EIO, after=calls, times=times, partial_bytes=40)  # type: ignore[arg-type]
    workload.append(log, 14)
    if fault.hits == 0:
        return False
    fault.clear()
    workload.check(log)
    before = len(workload.acknowledged)
    workload.append(log, 3)
    assert len(workload.acknowledged) == before + (3 if log.write_failure is None else 0)
    workload.check(log)
    log.close(is_clean=False)
    log = load(env, is_clean=False)
    log.become_leader(1)
    workload.check(log)
    workload.append(log, 3)
    workload.check(log)
    return True


@pytest.mark.parametrize("is_reopened", [False, True], ids=["new", "reopened"])
@pytest.mark.parametrize("operation", ["open", "create", "pread", "append", "pwrite", "truncate", "rename", "remove"])
def test_any_call_may_fail(operation: str, is_reopened: bool) -> None:
    """See the strategy and the invariants above."""
    for calls in range(MAX_CALLS):
        reached = [run(operation, calls, times=times, is_reopened=is_reopened) for times in (1, None)]
        if not any(reached):
            return
    pytest.fail(f"{operation}: more than {MAX_CALLS} calls")
