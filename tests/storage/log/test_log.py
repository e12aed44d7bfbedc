"""The log of one partition: appends, rolls, reads, offsets by time, deletion (storage of Kafka's UnifiedLog)."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from diamant.cleaner.rules.retention import deletable_segments
from diamant.protocol.batches.batch_records import build_batch, iter_records
from diamant.protocol.batches.header import Record, parse_header
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.storage.env.clocks import SettableClock
from diamant.storage.env.env import RealEnv
from diamant.storage.log.log import Log
from diamant.storage.segments.log_config import LogConfig
from tests.builder import make_marker
from tests.storage.conftest import START_MS
from tests.storage.logs import batch, make_log, read_all, reopen, values
from tests.storage.one_log import offset_for_timestamp, offset_of_max_timestamp

TOPIC_ID = UUID(int=7)


def error_of(log: Log, records: memoryview, **options: int) -> KafkaError:
    with pytest.raises(KafkaError) as caught:
        log.append_as_leader(records, **options)
    assert log.log_end_offset == 0
    return caught.value


def test_appended_batches_are_read_back_with_consecutive_offsets(env: RealEnv, tmp_path: Path) -> None:
    """Offsets are assigned without gaps, and a read gives the bytes as they were sent from the leader epoch on."""
    log = make_log(env, tmp_path)
    sent = batch(b"a", b"b")
    tail = bytes(sent[16:])
    assert log.append_as_leader(sent).base_offset == 0
    assert log.append_as_leader(batch(b"c")).base_offset == 2
    result = log.read(0, 1 << 20, isolation_level=0, min_one_message=True)
    assert values(result) == [b"a", b"b", b"c"]
    assert result.slices[0].read()[16 : len(sent)] == tail
    assert (result.high_watermark, result.last_stable_offset, result.log_start_offset) == (3, 3, 0)


def test_read_from_inside_a_batch_gives_the_whole_batch(env: RealEnv, tmp_path: Path) -> None:
    """Kafka returns the batch that holds the fetch offset even if it begins before it."""
    log = make_log(env, tmp_path)
    log.append_as_leader(batch(b"a", b"b", b"c"))
    assert values(log.read(1, 1 << 20, isolation_level=0, min_one_message=True)) == [b"a", b"b", b"c"]


def test_read_limits(env: RealEnv, tmp_path: Path) -> None:
    """A read returns whole batches within max_bytes; the first one even if larger, unless min_one_message is off; nothing at
    the end.
    """
    log = make_log(env, tmp_path)
    size = len(batch(b"a"))
    for value in (b"a", b"b", b"c"):
        log.append_as_leader(batch(value))
    assert values(log.read(0, 2 * size + 1, isolation_level=0, min_one_message=True)) == [b"a", b"b"]
    assert values(log.read(0, 1, isolation_level=0, min_one_message=True)) == [b"a"]
    assert values(log.read(0, 1, isolation_level=0, min_one_message=False)) == []
    assert values(log.read(3, 1 << 20, isolation_level=0, min_one_message=True)) == []


@pytest.mark.parametrize("offset", [-1, 4])
def test_read_out_of_range(env: RealEnv, tmp_path: Path, offset: int) -> None:
    """Below the log start or beyond the log end is OFFSET_OUT_OF_RANGE."""
    log = make_log(env, tmp_path)
    log.append_as_leader(batch(b"a", b"b", b"c"))
    with pytest.raises(KafkaError) as caught:
        log.read(offset, 100, isolation_level=0, min_one_message=True)
    assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_every_offset_can_be_read_across_many_segments_and_index_entries(env: RealEnv, tmp_path: Path) -> None:
    """Index floor plus header scan finds each offset, with small and large reads, before and after a restart."""
    log = make_log(env, tmp_path, segment_bytes=4096, index_interval_bytes=256)
    count = 300
    for number in range(count):
        log.append_as_leader(batch(b"%d" % number))
    assert len(log.segments) > 3
    for current in (log, reopen(log)):
        assert read_all(current) == [b"%d" % number for number in range(count)]
        for number in range(count):
            assert values(current.read(number, 1, isolation_level=0, min_one_message=True)) == [b"%d" % number]
            some = values(current.read(number, 500, isolation_level=0, min_one_message=True))
            assert some == [b"%d" % (number + index) for index in range(len(some))]


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (lambda b: b[:10], ErrorCode.INVALID_RECORD),
        (lambda b: b[:-1], ErrorCode.INVALID_RECORD),
        (lambda b: b + b, ErrorCode.INVALID_RECORD),
        (lambda b: b[:16] + b"\x01" + b[17:], ErrorCode.INVALID_RECORD),
        (lambda b: b[:16] + b"\x07" + b[17:], ErrorCode.CORRUPT_MESSAGE),
        (lambda b: b[:8] + b"\x00\x00\x00\x05" + b[12:], ErrorCode.CORRUPT_MESSAGE),
        (lambda b: b[:8] + b"\xff\xff\xff\xff" + b[12:], ErrorCode.CORRUPT_MESSAGE),
        (lambda b: b[:-1] + b"\x55", ErrorCode.CORRUPT_MESSAGE),
        (lambda b: b"\x00" * 7 + b"\x01" + b[8:], ErrorCode.INVALID_RECORD),
    ],
)
def test_damaged_batches_are_refused_and_nothing_is_stored(
    env: RealEnv, tmp_path: Path, damage: object, code: ErrorCode
) -> None:
    """Framing, magic, CRC and base offset are checked before anything is written."""
    log = make_log(env, tmp_path)
    assert error_of(log, memoryview(bytearray(damage(bytes(batch(b"abc")))))).code == code  # type: ignore[operator]
    assert log.active.size == 0


def test_size_limits(env: RealEnv, tmp_path: Path) -> None:
    """Over max.message.bytes is MESSAGE_TOO_LARGE, over segment.bytes RECORD_LIST_TOO_LARGE."""
    log = make_log(env, tmp_path, max_message_bytes=100)
    assert error_of(log, batch(b"x" * 200)).code == ErrorCode.MESSAGE_TOO_LARGE
    log.update_config(LogConfig(segment_bytes=100))
    assert error_of(log, batch(b"x" * 200)).code == ErrorCode.RECORD_LIST_TOO_LARGE


def test_compacted_topic_refuses_records_without_key(env: RealEnv, tmp_path: Path) -> None:
    """The error names the index of each record without a key."""
    log = make_log(env, tmp_path, cleanup_policy=frozenset({"compact"}))
    error = error_of(log, memoryview(build_batch([Record(0, START_MS, b"k", b"v"), Record(1, START_MS, None, b"v")])))
    assert error.code == ErrorCode.INVALID_RECORD
    assert [index for index, _ in error.record_errors] == [1]


def test_wrong_max_timestamp_in_the_header_is_corrected(env: RealEnv, tmp_path: Path) -> None:
    """Like Kafka, the log computes the maximum; a wrong header is rewritten with a new CRC."""
    log = make_log(env, tmp_path)
    from diamant.protocol.batches.batch import crc_is_valid, set_timestamps

    sent = batch(b"a")
    set_timestamps(sent, 0, is_log_append_time=False, max_timestamp=START_MS + 5)
    log.append_as_leader(sent)
    stored = log.read(0, 1000, isolation_level=0, min_one_message=True).slices[0].read()
    assert parse_header(stored).max_timestamp == START_MS
    assert crc_is_valid(stored, 0, len(stored))


def test_log_append_time(env: RealEnv, tmp_path: Path, clock: SettableClock) -> None:
    """With message.timestamp.type=LogAppendTime every record reads as stored at the broker's time."""
    log = make_log(env, tmp_path, message_timestamp_type="LogAppendTime")
    clock.advance_ms(1234)
    result = log.append_as_leader(batch(b"a", timestamp=5))
    assert result.log_append_time_ms == START_MS + 1234
    stored = log.read(0, 1000, isolation_level=0, min_one_message=True).slices[0].read()
    assert [record.timestamp for record in iter_records(stored)] == [START_MS + 1234]


@pytest.mark.parametrize("offset_ms", [-1001, 1001])
def test_timestamps_out_of_bounds_are_refused(env: RealEnv, tmp_path: Path, offset_ms: int) -> None:
    """message.timestamp.before.max.ms and after.max.ms give INVALID_TIMESTAMP."""
    log = make_log(env, tmp_path, message_timestamp_before_max_ms=1000, message_timestamp_after_max_ms=1000)
    assert error_of(log, batch(b"a", timestamp=START_MS + offset_ms)).code == ErrorCode.INVALID_TIMESTAMP


@pytest.mark.parametrize(("name", "codec"), [("gzip", 1), ("snappy", 2), ("lz4", 3), ("zstd", 4), ("uncompressed", 0)])
@pytest.mark.parametrize("source", range(5))
def test_topic_compression_recompresses(env: RealEnv, tmp_path: Path, name: str, codec: int, source: int) -> None:
    """compression.type other than `producer` decides the stored codec; producer fields and records stay."""
    log = make_log(env, tmp_path, compression_type=name)
    log.append_as_leader(batch(b"a", b"b", codec=source, producer_id=9, producer_epoch=1, base_sequence=0))
    stored = log.read(0, 1000, isolation_level=0, min_one_message=True).slices[0].read()
    header = parse_header(stored)
    assert (header.codec, header.producer_id, header.producer_epoch, header.base_sequence) == (codec, 9, 1, 0)
    assert [record.value for record in iter_records(stored)] == [b"a", b"b"]


def test_a_recompressed_batch_has_the_same_limit(env: RealEnv, tmp_path: Path) -> None:
    """A batch that grows beyond max.message.bytes is refused."""
    log = make_log(env, tmp_path, compression_type="uncompressed", max_message_bytes=1000)
    assert error_of(log, batch(b"x" * 2000, codec=1)).code == ErrorCode.MESSAGE_TOO_LARGE


def test_a_leader_epoch_begins_with_its_first_batch(env: RealEnv, tmp_path: Path) -> None:
    """An epoch begins with its first batch, as OffsetsForLeaderEpoch and a reset of followers need it."""
    log = make_log(env, tmp_path)
    for epoch in (3, 3, 5):
        log.leader_epoch = epoch
        log.append_as_leader(batch(b"a"))
    assert log.epochs.entries == [(3, 0), (5, 2)]


def test_zstd_needs_produce_version_7(env: RealEnv, tmp_path: Path) -> None:
    """Kafka refuses zstd from producers below version 7 of Produce."""
    log = make_log(env, tmp_path)
    assert error_of(log, batch(b"a", codec=4), produce_version=6).code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


def test_idempotent_producer(env: RealEnv, tmp_path: Path) -> None:
    """A repeated batch is answered with its first offset and stored once, also after a restart; a gap is refused."""
    log = make_log(env, tmp_path)

    def send(current: Log, sequence: int, epoch: int = 0) -> tuple[int, bool]:
        result = current.append_as_leader(batch(b"x", producer_id=5, producer_epoch=epoch, base_sequence=sequence))
        return result.base_offset, result.is_duplicate

    assert [send(log, sequence) for sequence in range(3)] == [(0, False), (1, False), (2, False)]
    assert send(log, 1) == (1, True)
    with pytest.raises(KafkaError) as caught:
        send(log, 7)
    assert caught.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    for is_clean in (True, False):
        log = reopen(log, is_clean=is_clean)
        assert send(log, 2) == (2, True)
    assert log.log_end_offset == 3
    assert send(log, 0, epoch=1) == (3, False)
    with pytest.raises(KafkaError) as caught:
        send(log, 3)
    assert caught.value.code == ErrorCode.INVALID_PRODUCER_EPOCH


def test_transactions_hold_the_last_stable_offset_and_aborts_are_indexed(env: RealEnv, tmp_path: Path) -> None:
    """The LSO stays at the first open transaction; read_committed lists the aborted ones it crosses, also after a crash."""
    log = make_log(env, tmp_path, segment_bytes=400)
    log.append_as_leader(batch(b"plain"))
    log.append_as_leader(batch(b"t", producer_id=5, producer_epoch=0, base_sequence=0, is_transactional=True))
    assert log.last_stable_offset == 1
    for _ in range(4):
        log.append_as_leader(batch(b"plain"))
    assert read_all(log, isolation_level=1) == [b"plain"]
    marker = make_marker(5, is_commit=False, timestamp=START_MS)
    log.append_internal(marker)
    assert log.last_stable_offset == log.log_end_offset == 7
    for current in (log, reopen(log, is_clean=False)):
        assert len(current.segments) > 1
        found = current.read(1, 100_000, isolation_level=1, min_one_message=True).aborted
        assert found is not None
        assert [(txn.producer_id, txn.first_offset, txn.last_offset) for txn in found] == [(5, 1, 6)]
        assert current.last_stable_offset == 7


def test_rolls_by_size_and_by_record_time(env: RealEnv, tmp_path: Path) -> None:
    """A segment rolls before an append would exceed segment.bytes, and when record time has advanced by segment.ms."""
    size = len(batch(b"a"))
    log = make_log(env, tmp_path, segment_bytes=2 * size, segment_ms=1000)
    for _ in range(2):
        log.append_as_leader(batch(b"a"))
    assert len(log.segments) == 1
    log.append_as_leader(batch(b"a"))
    assert [segment.base_offset for segment in log.segments] == [0, 2]
    log.append_as_leader(batch(b"b", timestamp=START_MS + 1001))
    assert [segment.base_offset for segment in log.segments] == [0, 2, 3]


def test_compacted_log_rolls_by_max_compaction_lag(env: RealEnv, tmp_path: Path) -> None:
    """On compacted topics max.compaction.lag.ms bounds a segment's age (KIP-354)."""
    log = make_log(env, tmp_path, cleanup_policy=frozenset({"compact"}), max_compaction_lag_ms=50)
    log.append_as_leader(batch(b"a"))
    log.append_as_leader(batch(b"a", timestamp=START_MS + 51))
    assert len(log.segments) == 2


def test_offset_for_timestamp(env: RealEnv, tmp_path: Path) -> None:
    """The offset is that of the first record at or after the time, compressed or not; none beyond the last."""
    log = make_log(env, tmp_path, segment_bytes=2000, index_interval_bytes=100)
    for number in range(50):
        records = [Record(index, START_MS + 100 * number + 10 * index, b"k", b"v") for index in range(3)]
        log.append_as_leader(memoryview(build_batch(records, codec=number % 5)))
    for current in (log, reopen(log)):
        for offset in range(150):
            timestamp = START_MS + 100 * (offset // 3) + 10 * (offset % 3)
            assert offset_for_timestamp(current, timestamp) == (timestamp, offset)
            assert offset_for_timestamp(current, timestamp - 1) == (timestamp, offset)
        assert offset_for_timestamp(current, START_MS + 10_000) is None
        assert offset_of_max_timestamp(current) == (START_MS + 4920, 149)


def test_delete_records_moves_the_log_start(env: RealEnv, tmp_path: Path) -> None:
    """Offsets below are gone at once, and after a restart; beyond the end is refused."""
    log = make_log(env, tmp_path, segment_bytes=200)
    for number in range(10):
        log.append_as_leader(batch(b"%d" % number))
    assert log.delete_records(5) == 5
    assert log.delete_records(3) == 5
    with pytest.raises(KafkaError) as caught:
        log.read(4, 100, isolation_level=0, min_one_message=True)
    assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    with pytest.raises(KafkaError):
        log.delete_records(11)
    for current in (log, reopen(log, log_start=5)):
        assert current.log_start_offset == 5
        assert read_all(current, 5) == [b"%d" % number for number in range(5, 10)]


def test_only_delete_policy_is_subject_to_retention_by_time(env: RealEnv, tmp_path: Path) -> None:
    """A compacted topic keeps old segments unless its policy has delete too."""
    log = make_log(env, tmp_path, cleanup_policy=frozenset({"compact"}), retention_ms=1)
    log.append_as_leader(batch(b"a"))
    assert deletable_segments(log, START_MS + 10_000) == 0


def test_leader_epochs(env: RealEnv, tmp_path: Path) -> None:
    """Batches carry the leader epoch; OffsetForLeaderEpoch knows where each ended."""
    log = make_log(env, tmp_path)
    log.append_as_leader(batch(b"a"))
    log.become_leader(3)
    log.append_as_leader(batch(b"b"))
    assert log.end_offset_for_epoch(0) == (0, 1)
    assert log.end_offset_for_epoch(3) == (3, 2)
    assert log.end_offset_for_epoch(4) == (-1, -1)
    stored = log.read(1, 1000, isolation_level=0, min_one_message=True).slices[0].read()
    assert parse_header(stored).partition_leader_epoch == 3
