"""Frames of compressed records: what a running Kafka answers to a Produce of them is answered here, and by every reader."""

from __future__ import annotations

import pytest

from diamant.cleaner.segments.payload_buffer import Unpacker
from diamant.cleaner.segments.small_payloads import SmallPayloads
from diamant.protocol.batches.compression import MAX_BATCH_BYTES, decompress
from diamant.protocol.batches.header import parse_header
from diamant.protocol.batches.validation import RecordChecks, validate_client_batch
from diamant.protocol.errors import CorruptBatch, ErrorCode, KafkaError
from tests.builder import TIMESTAMP, with_payload
from tests.protocol.batches.frames import BATCH, FRAMES, OK, RECORDS, UNREADABLE

CHECKS = RecordChecks(False, TIMESTAMP, 1000, 1000, False)

by_frame = pytest.mark.parametrize("name", FRAMES)


@by_frame
def test_a_produced_batch_gets_kafkas_answer(name: str) -> None:
    """Checksums are verified where Kafka verifies them, and what its readers skip is accepted."""
    frame = FRAMES[name]
    batch = with_payload(BATCH, frame.data, attributes=frame.codec)
    answer = ErrorCode.NONE
    try:
        validate_client_batch(batch, 0, parse_header(batch), CHECKS, max_decompressed_bytes=MAX_BATCH_BYTES)
    except KafkaError as error:
        answer = error.code
    assert answer is frame.answer


@by_frame
def test_bytes_that_readers_skip_are_refused_on_request(name: str) -> None:
    """The certifying scan has to know of each byte in which something may hide."""
    frame = FRAMES[name]
    if frame.answer is OK and not frame.skipped:
        assert decompress(frame.codec, frame.data, may_skip=False) == RECORDS
    elif frame.skipped or frame.answer is UNREADABLE:
        with pytest.raises(CorruptBatch):
            decompress(frame.codec, frame.data, may_skip=False)


@by_frame
@pytest.mark.parametrize("may_skip", [False, True])
def test_the_readers_of_many_small_batches_do_the_same(name: str, *, may_skip: bool) -> None:
    """The fast paths of the engines and of the scan leave nothing unchecked."""
    frame = FRAMES[name]
    try:
        expected = decompress(frame.codec, frame.data, may_skip=may_skip)
    except CorruptBatch:
        expected = None
    if may_skip:
        assert SmallPayloads().unpack(frame.codec, frame.data) in (None, b"", expected)
    unpacker = Unpacker()
    try:
        start, end = unpacker.unpack(frame.codec, memoryview(frame.data), MAX_BATCH_BYTES, may_skip=may_skip)
        assert bytes(unpacker.buffer[start:end]) == expected
    except CorruptBatch:
        assert expected is None
