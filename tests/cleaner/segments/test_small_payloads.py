"""The fast path to decompress small batches: its result equals the general decompressor's, or is None."""

from __future__ import annotations

import zlib
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from diamant.cleaner.engines import compiled, plain_round
from diamant.cleaner.segments.payload_buffer import Unpacker
from diamant.cleaner.segments.rebuilt_batch import compress_like_kafka
from diamant.cleaner.segments.small_payloads import MAX_BYTES, SmallPayloads
from diamant.protocol.batches import compression
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import Record
from diamant.protocol.errors import CorruptBatch
from diamant.storage.errors import CorruptLog
from tests.builder import with_payload
from tests.cleaner.engines.engines import one_by_one, outcome
from tests.cleaner.facts.segment_history import NOW_MS, SegmentHistory

CODECS = range(1, 5)
PAYLOADS = SmallPayloads()


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("size", [1, 20, 1000, 5000, 30_000])
def test_payloads_of_clients_are_taken(codec: int, size: int) -> None:
    """Payloads are taken whether compressible or not, with and without a declared size."""
    for plain in (bytes(size), zlib.compress(bytes(range(256)) * 200)[:size], b"a customer's name " * size):
        data = plain[:size]
        assert PAYLOADS.unpack(codec, compression.compress(codec, data)) == data
        assert PAYLOADS.unpack(codec, compress_like_kafka(codec, data)) == data


@pytest.mark.parametrize("codec", CODECS)
def test_payloads_packed_in_a_row_are_packed_as_alone(codec: int) -> None:
    """A payload's bytes do not depend on the payloads packed before, short or long, text or noise."""
    noise = zlib.compress(bytes(range(256)) * 500)
    for size in (1, 30, 500, 20, 70_000, 500, 3_000_000, 10, 0, 400):
        for data in ((noise * (1 + size // len(noise)))[:size], (b"a customer's name " * size)[:size], bytes(size)):
            assert PAYLOADS.pack(codec, data) == compress_like_kafka(codec, data)
            assert PAYLOADS.pack(codec, memoryview(data)) == compress_like_kafka(codec, data)


@given(
    st.sampled_from(CODECS),
    st.binary(max_size=300),
    st.integers(0, 400),
    st.binary(max_size=3),
    st.sampled_from([b"", b"\0", b"more"]),
)
def test_a_changed_frame_gives_the_general_decompressors_bytes_or_none(
    codec: int, plain: bytes, at: int, change: bytes, tail: bytes
) -> None:
    """Strategy: a frame with changed or appended bytes. Invariant: the general decompressor's bytes, or None."""
    frame = bytearray(compress_like_kafka(codec, plain * 3))
    at %= len(frame)
    frame[at : at + len(change)] = change
    found = PAYLOADS.unpack(codec, bytes(frame + tail))
    if found is not None:
        assert found == compression.decompress(codec, bytes(frame + tail))


@pytest.mark.parametrize("rest", ["", "000000", "010000ff"])
def test_a_zstd_frame_that_declares_no_bytes_is_read_to_its_end(rest: str) -> None:
    """The library stops after its header, whatever follows."""
    frame = bytes.fromhex("28b52ffd 2000" + rest)
    assert PAYLOADS.unpack(compression.ZSTD, frame) is None
    with pytest.raises(CorruptBatch):
        Unpacker().unpack(compression.ZSTD, memoryview(frame), max_bytes=1 << 30)
    assert PAYLOADS.unpack(compression.ZSTD, bytes.fromhex("28b52ffd 2000 010000")) == b""


@pytest.mark.parametrize("codec", CODECS)
def test_two_frames_are_left_to_others(codec: int) -> None:
    """Two members of gzip, blocks of snappy or lz4, or frames of zstd are left to the general decompressors."""
    if codec in (compression.GZIP, compression.ZSTD):
        frames = 2 * compression.compress(codec, b"one")
    else:
        frames = compression.compress(codec, bytes(MAX_BYTES) + b"two")
    assert PAYLOADS.unpack(codec, frames) is None


@pytest.mark.parametrize("engine", [plain_round.clean, compiled.clean])
@pytest.mark.parametrize("count", [1, 2])
def test_no_engine_passes_over_what_is_behind_a_frame(engine: Any, count: int) -> None:
    """Even after zstd frames without a declared size, which the library ignores: they give the plain engine's error."""
    history = SegmentHistory()
    history.batch([(b"k", b"v")])
    batch = build_batch([Record(1 + index, NOW_MS, b"k", b"v") for index in range(count)], base_offset=1)
    batch[22] |= compression.ZSTD
    frames = compress_like_kafka(compression.ZSTD, batch[61:]) + compress_like_kafka(compression.ZSTD, b"more")
    history.append(with_payload(batch, frames))
    env, plan = history.stored()
    expected, files = outcome(one_by_one, env, plan)
    assert (expected["error"], files) == (CorruptLog, {})
    assert outcome(engine, env, plan) == (expected, {})


@pytest.mark.parametrize("codec", CODECS)
def test_no_frame_makes_it_take_more_than_the_bound(codec: int) -> None:
    """Whatever size it declares or has; larger inputs are not read."""
    bomb = bytes(MAX_BYTES + 1)
    for frame in (compression.compress(codec, bomb), compress_like_kafka(codec, bomb), bomb):
        assert PAYLOADS.unpack(codec, frame) is None
    if codec == compression.SNAPPY:
        # A declared length of 2 GiB - 1.
        block = b"\xff\xff\xff\xff\x07" + bytes(10)
        header = compression.compress(codec, b"x")[:16]
        assert PAYLOADS.unpack(codec, header + len(block).to_bytes(4, "big") + block) is None


@pytest.mark.parametrize("codec", [0, 5, 6, 7])
def test_codecs_that_are_none(codec: int) -> None:
    """The result is None."""
    assert PAYLOADS.unpack(codec, b"data") is None


@pytest.mark.parametrize("window_log", [27, 28])
def test_a_window_that_no_reader_has_is_left_to_others(window_log: int) -> None:
    """Kafka reads windows of up to 128 MiB; larger ones are left to the general decompressor."""
    options = zstandard.ZstdCompressionParameters(window_log=window_log, compression_level=3, write_content_size=False)
    stream = zstandard.ZstdCompressor(compression_params=options).compressobj()
    frame = stream.compress(b"text") + stream.flush()
    assert PAYLOADS.unpack(compression.ZSTD, frame) == (b"text" if window_log == 27 else None)


@pytest.mark.parametrize("window_log", [27, 28])
def test_a_declared_size_excuses_neither_the_window_nor_the_rest(window_log: int) -> None:
    """The library ignores the window of a whole frame that declares its size. It accepts no bytes after one."""
    text = b"a name" * 50
    header = b"\x28\xb5\x2f\xfd" + bytes([1 << 6, window_log - 10 << 3]) + (len(text) - 256).to_bytes(2, "little")
    frame = header + (len(text) << 3 | 1).to_bytes(3, "little") + text
    assert zstandard.frame_content_size(frame) == len(text)
    assert PAYLOADS.unpack(compression.ZSTD, frame) == (text if window_log == 27 else None)
    assert PAYLOADS.unpack(compression.ZSTD, frame + b"x") is None
