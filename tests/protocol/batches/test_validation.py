"""A leader's validation of a client's batch, and its refusals."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diamant.kernels.constants.walk import NO_FAULT
from diamant.protocol.batches import validation
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import HEADER_SIZE, Record, parse_header
from diamant.protocol.batches.validation import (
    RecordChecks,
    WalkResult,
    check_client_header,
    validate_client_batch,
    walk_records,
)
from diamant.protocol.errors import ErrorCode, KafkaError
from tests import naive
from tests.builder import TIMESTAMP, Words, make_batch, make_records, with_header, with_payload
from tests.effort import examples

LONG_MAX = 2**63 - 1
CODECS = range(5)
PLAIN = RecordChecks(False, TIMESTAMP, LONG_MAX, LONG_MAX, False)
COMPACTED = PLAIN._replace(must_have_key=True)
LOG_APPEND_TIME = PLAIN._replace(is_log_append_time_topic=True)


def validate(batch: bytes | bytearray, checks: RecordChecks = PLAIN, max_bytes: int = 1 << 20) -> WalkResult:
    """Validate a batch at some position of a buffer."""
    buffer = memoryview(b"??" + bytes(batch) + b"??")
    return validate_client_batch(buffer, 2, parse_header(batch), checks, max_decompressed_bytes=max_bytes)


def refusal(
    batch: bytes | bytearray, checks: RecordChecks = PLAIN, max_bytes: int = 1 << 20
) -> tuple[ErrorCode, list[int]]:
    """Return the code and the record indexes with which a batch is refused."""
    with pytest.raises(KafkaError) as caught:
        validate(batch, checks, max_bytes)
    assert caught.value.detail
    return caught.value.code, [index for index, _ in caught.value.record_errors]


def at(*timestamps: int, codec: int = 0, **fields: int) -> bytearray:
    """Return a batch of records with these timestamps."""
    records = [Record(index, timestamp, b"k", b"v") for index, timestamp in enumerate(timestamps)]
    return with_header(build_batch(records, codec=codec), **fields)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    ("timestamps", "fields", "greatest"),
    [
        ((5, 9, 9, 7), {}, (9, 1)),
        # The header is not believed.
        ((5, 9), {"max_timestamp": 10**15}, (9, 1)),
        # Records without timestamps are accepted for any limits.
        ((-1, -1), {}, (-1, -1)),
        ((-1, TIMESTAMP, -1), {}, (TIMESTAMP, 1)),
    ],
)
def test_good_batches_give_their_greatest_timestamp(
    codec: int, timestamps: tuple[int, ...], fields: dict[str, int], greatest: tuple[int, int]
) -> None:
    """The result names the greatest timestamp of the records, and the first one that has it."""
    assert validate(at(*timestamps, codec=codec, **fields)) == WalkResult(*greatest)
    if -1 in timestamps:
        assert validate(at(*timestamps, codec=codec), PLAIN._replace(before_max_ms=0, after_max_ms=0)) == WalkResult(
            *greatest
        )


@pytest.mark.slow
def test_many_and_large_records() -> None:
    """Deltas and lengths of one to three bytes are walked over, headers as well."""
    records = [
        Record(index, TIMESTAMP + index * 37, b"k" * (index % 200), b"v" * (index * 7 % 20_000))
        for index in range(9_000)
    ]
    batch = build_batch(records)
    assert validate(batch, COMPACTED, 1 << 30) == WalkResult(TIMESTAMP + 8_999 * 37, 8_999)
    assert walk_records(batch[HEADER_SIZE:], 9_000, TIMESTAMP)[3:5] == (TIMESTAMP + 8_999 * 37, 8_999)
    with_headers = [record._replace(headers=(("h" * 70, b"x" * 9_000), ("n", None))) for record in records[:50]]
    assert validate(build_batch(with_headers)).offset_of_max == 49


# -- the header


@pytest.mark.parametrize(
    ("last_offset_delta", "count"), [(2, 3), (0, 3), (15, 3), (-3, 3), (5, 5), (5, 6), (1, 2), (-1, 0), (2, -3), (2, 0)]
)
def test_count_and_offsets_must_agree(last_offset_delta: int, count: int) -> None:
    """The count of three records, the last offset delta and the records themselves must all say three."""
    batch = with_header(make_batch("a=1", "b=2", "c=3"), last_offset_delta=last_offset_delta, record_count=count)
    if (last_offset_delta, count) == (2, 3):
        validate(batch)
    else:
        assert refusal(batch) == (ErrorCode.INVALID_RECORD, [])


@pytest.mark.parametrize(
    ("batch", "code"),
    [
        (build_batch([]), ErrorCode.INVALID_RECORD),
        (build_batch([], codec=1), ErrorCode.INVALID_RECORD),
        (make_batch("a=1", is_control=True), ErrorCode.INVALID_RECORD),
        (make_batch("a=1", producer_id=5, producer_epoch=0), ErrorCode.INVALID_RECORD),
        *(
            (with_header(make_batch("a=1"), attributes=codec), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
            for codec in (5, 6, 7)
        ),
    ],
    ids=["empty", "empty, compressed", "a marker", "no sequence", "codec 5", "codec 6", "codec 7"],
)
def test_headers_that_a_client_may_not_send(batch: bytearray, code: ErrorCode) -> None:
    """No records, markers, a producer without sequence, and unknown codecs, an error that clients do not retry."""
    assert refusal(batch)[0] is code
    with pytest.raises(KafkaError, match=code.name):
        check_client_header(parse_header(batch))


def test_a_producer_comes_with_a_sequence() -> None:
    """A batch has both or none; its header can be checked without a walk."""
    for producer_id, base_sequence in ((5, 0), (-1, -1)):
        batch = make_batch("a=1", producer_id=producer_id, producer_epoch=0, base_sequence=base_sequence)
        validate(batch)
        check_client_header(parse_header(batch))


# -- records


@pytest.mark.parametrize("codec", CODECS)
def test_null_keys_on_compacted_topics(codec: int) -> None:
    """Every record without a key is listed, and the whole batch refused; a tombstone needs no value."""
    batch = make_batch("a=1", "x", "b=2", (None, None), (b"", b"v"), codec=codec)
    assert refusal(batch, COMPACTED) == (ErrorCode.INVALID_RECORD, [1, 3])
    validate(batch)
    validate(make_batch("a=", "b=", codec=codec), COMPACTED)


@pytest.mark.parametrize("codec", CODECS)
def test_timestamps_out_of_range(codec: int) -> None:
    """Timestamps before and after have separate, inclusive limits."""
    checks = PLAIN._replace(before_max_ms=1000, after_max_ms=500)
    batch = at(TIMESTAMP - 1000, TIMESTAMP - 1001, TIMESTAMP + 500, TIMESTAMP + 501, TIMESTAMP, -1, codec=codec)
    assert refusal(batch, checks) == (ErrorCode.INVALID_TIMESTAMP, [1, 3])
    assert refusal(batch, checks._replace(before_max_ms=LONG_MAX)) == (ErrorCode.INVALID_TIMESTAMP, [3])
    assert refusal(batch, checks._replace(after_max_ms=LONG_MAX)) == (ErrorCode.INVALID_TIMESTAMP, [1])
    validate(at(TIMESTAMP - 1000, TIMESTAMP + 500, -1, codec=codec), checks)


def test_timestamp_errors_win_over_missing_keys() -> None:
    """All invalid records are listed; one without key only for that; the error code is that for timestamps."""
    checks = COMPACTED._replace(after_max_ms=500)
    records = [
        Record(0, TIMESTAMP, None, b"v"),
        Record(1, TIMESTAMP + 501, b"k", b"v"),
        Record(2, TIMESTAMP + 501, None, b"v"),
        Record(3, TIMESTAMP, b"k", b"v"),
    ]
    with pytest.raises(KafkaError) as caught:
        validate(build_batch(records), checks)
    assert caught.value.code is ErrorCode.INVALID_TIMESTAMP
    assert [(index, "key" in str(message)) for index, message in caught.value.record_errors] == [
        (0, True),
        (1, False),
        (2, True),
    ]


def test_log_append_time_topic_ignores_timestamps() -> None:
    """With LogAppendTime the producer's timestamps do not matter, but it may not set the type itself."""
    checks = LOG_APPEND_TIME._replace(before_max_ms=0, after_max_ms=0)
    assert validate(at(1, 2, TIMESTAMP * 3), checks).max_timestamp == TIMESTAMP * 3
    assert refusal(at(5, 6, attributes=8), checks) == (ErrorCode.INVALID_TIMESTAMP, [0, 1])


def test_log_append_time_batch_on_a_create_time_topic() -> None:
    """On a CreateTime topic such a batch is accepted if its records have timestamps; records without are refused."""
    assert validate(at(5, 6, attributes=8)) == WalkResult(6, 1)
    assert refusal(at(5, -1, attributes=8)) == (ErrorCode.INVALID_TIMESTAMP, [1])


def test_offset_deltas_must_be_consecutive() -> None:
    """Gaps, repeats and descents inside a batch are refused even where first and last agree with the header."""
    good = make_records("abcd")
    for offsets in ((0, 2, 1, 3), (0, 1, 1, 3), (1, 1, 2, 3), (0, 1, 2, 4)):
        records = [record._replace(offset=offset) for record, offset in zip(good, offsets, strict=True)]
        batch = with_header(build_batch(records, base_offset=0), last_offset_delta=3)
        assert refusal(batch) == (ErrorCode.INVALID_RECORD, [])


@pytest.mark.parametrize("codec", range(1, 5))
def test_payload_that_cannot_be_decompressed(codec: int) -> None:
    """With a valid CRC the client is at fault: UNKNOWN_SERVER_ERROR, as from Kafka, which it does not retry."""
    batch = make_batch("a=1", codec=codec)
    assert refusal(with_payload(batch, bytes(batch[HEADER_SIZE:-3])))[0] is ErrorCode.UNKNOWN_SERVER_ERROR
    assert refusal(with_payload(batch, b"\x01\x02\x03"))[0] is ErrorCode.UNKNOWN_SERVER_ERROR


@pytest.mark.parametrize("codec", range(1, 5))
def test_decompression_bombs_are_too_large(codec: int) -> None:
    """A batch beyond the decompressed limit gets MESSAGE_TOO_LARGE, so that clients split it."""
    batch = make_batch(bytes(100_000), codec=codec)
    assert refusal(batch, max_bytes=50_000)[0] is ErrorCode.MESSAGE_TOO_LARGE
    validate(batch, max_bytes=100_100)


def test_batch_past_its_buffer() -> None:
    """A batch that extends past its buffer is refused without reads beyond it."""
    batch = make_batch("a=1")
    with pytest.raises(KafkaError, match="only"):
        validate_client_batch(batch[:-1], 0, parse_header(batch), PLAIN, max_decompressed_bytes=100)


@pytest.mark.parametrize("base_timestamp", [2**63 - 1, -(2**63), 2**62 + 1])
def test_timestamps_beyond_64_bits(base_timestamp: int) -> None:
    """Timestamps that could leave 64 bits are refused."""
    assert refusal(at(1, 2, base_timestamp=base_timestamp))[0] is ErrorCode.INVALID_RECORD
    assert refusal(at(2**62, -(2**63)))[0] is ErrorCode.INVALID_RECORD


def test_listed_records_are_bounded() -> None:
    """A refusal lists a bounded number of records, and states the total."""
    with pytest.raises(KafkaError, match="10007 of 10007 records") as caught:
        validate(make_batch(*["x"] * 10_007), COMPACTED)
    assert [index for index, _ in caught.value.record_errors] == [*range(10_000)]


def test_another_walk_can_be_used() -> None:
    """The caller chooses the walk."""
    calls = []

    def walk(payload: bytes, count: int, base: int) -> validation.WalkOutcome:
        calls.append((count, base))
        return walk_records(payload, count, base)

    batch = make_batch("a=1", "b=2")
    validate_client_batch(batch, 0, parse_header(batch), PLAIN, max_decompressed_bytes=100, walk=walk)
    assert calls == [(2, TIMESTAMP)]


# -- any bytes


def expected_walk(payload: bytes, count: int, base_timestamp: int) -> tuple[int, int, bool] | None:
    """Return (max timestamp, its index, has null key) by the naive reader, None where it must be refused."""
    try:
        records = naive.parse_records(payload, count)
    except naive.Malformed:
        return None
    if [record.offset_delta for record in records] != list(range(count)):
        return None
    timestamps = [base_timestamp + record.timestamp_delta for record in records]
    if any(not -(2**63) <= timestamp < 2**63 for timestamp in timestamps):
        return None
    greatest = max([*timestamps, -1])
    return (
        greatest,
        timestamps.index(greatest) if greatest != -1 else -1,
        any(record.key is None for record in records),
    )


@settings(max_examples=examples(1500), deadline=None)
@given(payload=st.binary(max_size=40), count=st.integers(1, 4), data=st.data())
def test_walk_agrees_with_the_naive_reader(payload: bytes, count: int, data: st.DataObject) -> None:
    """For any bytes, and for slightly damaged records, the walk agrees with the naive reader."""
    if data.draw(st.integers(0, 3)):
        words: list[Words] = ["a=1", "b=" + "2" * 70, "c"]
        records = [record._replace(headers=(("h", b"x"),)) for record in make_records(words)]
        damaged = build_batch(records)[HEADER_SIZE:]
        for _ in range(data.draw(st.integers(0, 3))):
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
        payload, count = bytes(damaged), 3
    expected = expected_walk(payload, count, TIMESTAMP)
    outcome = walk_records(payload, count, TIMESTAMP)
    assert (outcome.fault == NO_FAULT) == (expected is not None), outcome
    if expected is not None:
        assert (outcome.max_timestamp, outcome.offset_of_max, outcome.has_null_key) == expected
    assert walk_records(memoryview(payload), count, TIMESTAMP) == outcome


@settings(max_examples=examples(500), deadline=None)
@given(codec=st.sampled_from(CODECS), data=st.data())
def test_damage_raises_kafka_error_or_nothing(codec: int, data: st.DataObject) -> None:
    """Random damage to header or payload never raises anything but KafkaError."""
    batch = make_batch("a=1", b"k" * 200, "c=", codec=codec, producer_id=3, base_sequence=0)
    for _ in range(data.draw(st.integers(1, 5))):
        place = data.draw(st.integers(17, len(batch) - 1))
        batch[place] = data.draw(st.integers(0, 255))
    checks = data.draw(st.sampled_from([PLAIN, COMPACTED, LOG_APPEND_TIME, PLAIN._replace(after_max_ms=5)]))
    code = None
    try:
        validate(batch, checks, 100_000)
    except KafkaError as error:
        code = error.code
    assert code in (
        None,
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    )


@pytest.mark.parametrize("codec", CODECS)
def test_a_record_above_the_limit_of_a_compressed_batch_is_refused(codec: int) -> None:
    """`max.decompressed.message.bytes` limits the size that each record declares; the text is Kafka's."""
    batch = make_batch("k=v", "k=" + "v" * 100, codec=codec)
    for limit in (108, 107):
        validated = partial(
            validate_client_batch,
            batch,
            0,
            parse_header(batch),
            PLAIN,
            max_decompressed_bytes=1 << 20,
            max_record_bytes=limit,
        )
        if limit == 108 or codec == 0:
            validated()
            continue
        with pytest.raises(KafkaError) as caught:
            validated()
        assert caught.value.code is ErrorCode.INVALID_RECORD
        assert caught.value.detail == "Invalid record size: 108 exceeds the configured maximum record size of 107."


@pytest.mark.parametrize("codec", CODECS[1:])
@pytest.mark.parametrize("count", [1, 2])
def test_a_bomb_is_refused_for_its_record_as_soon_as_the_limit_allows_no_more(codec: int, count: int) -> None:
    """It is not decompressed to the bound of all batches, whose error would have the client divide the batch for nothing."""
    batch = make_batch(*["k=" + "v" * 10_000_000] * count, codec=codec)
    validated = partial(validate_client_batch, batch, 0, parse_header(batch), PLAIN, max_decompressed_bytes=1 << 20)
    with pytest.raises(KafkaError) as caught:
        validated(max_record_bytes=1000)
    assert caught.value.code is ErrorCode.INVALID_RECORD
    assert (
        caught.value.detail
        == f"records decompress to more than 65536 bytes, too many for record count {count} and maximum record size 1000"
    )
    with pytest.raises(KafkaError) as caught:
        validated(max_record_bytes=1 << 20)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
