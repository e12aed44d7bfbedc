"""Batches of this broker's coordinators: they skip the checks of clients' batches, but not the handling of offsets and disks."""

from __future__ import annotations

import errno

import pytest

from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import Record
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.storage.log.log import Log
from diamant.storage.segments.log_config import LogConfig
from tests.memory_env import MemoryEnv
from tests.storage.one_log import create_one

START_MS = 1_700_000_000_000
CONFIG = LogConfig(
    segment_bytes=1000, index_interval_bytes=150, segment_ms=50_000, cleanup_policy=frozenset({"compact"})
)


def make_log(env: MemoryEnv, name: str = "t-0") -> Log:
    """Return a log of small segments with many index entries."""
    log = create_one(env, CONFIG, path=f"/{name}", expiration_ms=1 << 40)
    log.become_leader(0)
    return log


def make_batch(number: int, **fields: int) -> bytearray:
    """Between one and four records; every tenth batch is much later than the one before."""
    timestamp = START_MS + number + number // 10 * 60_000
    records = [Record(offset, timestamp, b"k%d" % offset, b"v" * number) for offset in range(number % 4 + 1)]
    return build_batch(records, **fields)


def files(env: MemoryEnv, log: Log) -> dict[str, bytes]:
    """Return all of the log's files; its indexes as after a close."""
    log.close()
    return {name: env.read_bytes(f"{log.path}/{name}") for name in env.list_dir(log.path)}


def test_they_lie_there_as_those_of_clients(memory: MemoryEnv) -> None:
    """Offsets, epochs, rolls, indexes and bytes equal those of clients' batches; listeners are notified of each append."""
    internal, from_clients = make_log(memory), make_log(memory, "u-0")
    told: list[int] = []
    internal.on_change.append(lambda: told.append(internal.log_end_offset))
    for number in range(40):
        if number == 25:
            internal.become_leader(3)
            from_clients.become_leader(3)
        appended = internal.append_internal(make_batch(number))
        assert appended == from_clients.append_as_leader(memoryview(make_batch(number)))
        assert told[-1] == appended.last_offset + 1 == internal.log_end_offset
    assert len(told) == 40
    assert len(internal.segments) > 4
    assert files(memory, internal) == files(memory, from_clients)


def test_internal_appends_with_a_producer_count_in_its_state() -> None:
    """They may begin a transaction and repeat sequence 0, which a client's may not."""
    log = make_log(MemoryEnv())
    for _ in range(2):
        log.append_internal(make_batch(0, producer_id=5, producer_epoch=1, base_sequence=0, is_transactional=True))
    assert (log.last_stable_offset, log.log_end_offset) == (0, 2)
    with pytest.raises(KafkaError) as caught:
        log.append_internal(make_batch(0, producer_id=5, producer_epoch=0, base_sequence=0, is_transactional=True))
    assert caught.value.code == ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_batch_over_the_segment_size_is_refused() -> None:
    """RECORD_LIST_TOO_LARGE, as for a client, and nothing is stored."""
    log = make_log(MemoryEnv())
    with pytest.raises(KafkaError) as caught:
        log.append_internal(make_batch(1003))
    assert caught.value.code == ErrorCode.RECORD_LIST_TOO_LARGE
    assert log.log_end_offset == 0


def test_a_closed_log_takes_none() -> None:
    """KAFKA_STORAGE_ERROR once a sync has failed, or the partition is deleted."""
    for is_deleted in (False, True):
        log = make_log(MemoryEnv())
        if is_deleted:
            log.is_deleted = True
        else:
            log.fail(OSError(errno.EIO, "no"))
        with pytest.raises(KafkaError) as caught:
            log.append_internal(make_batch(1))
        assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
