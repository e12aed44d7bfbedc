"""The codecs: Kafka's framings, their bounds, and damaged input."""

from __future__ import annotations

import gzip
import os
import struct
import tracemalloc

import cramjam
import lz4.frame
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from diamant.protocol.batches.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD, compress, decompress
from diamant.protocol.errors import CorruptBatch, DecompressionBomb
from tests.effort import examples

CODECS = [GZIP, SNAPPY, LZ4, ZSTD]
SAMPLE = b"".join(b"key-%d value-%d " % (i % 50, i) for i in range(12_000))  # more than two LZ4 blocks
MIB = 1024 * 1024


@pytest.mark.parametrize("codec", [NONE, *CODECS])
@pytest.mark.parametrize("data", [b"", b"x", SAMPLE, os.urandom(150_000)], ids=["empty", "one", "text", "noise"])
def test_round_trip(codec: int, data: bytes) -> None:
    """Data survive compression, exactly at the bound and from any kind of buffer."""
    packed = compress(codec, data)
    assert decompress(codec, packed, max_bytes=len(data)) == data
    assert decompress(codec, memoryview(bytearray(b"??" + packed))[2:], max_bytes=MIB) == data
    assert compress(codec, memoryview(bytearray(data))) == packed


@pytest.mark.parametrize("codec", [NONE, *CODECS])
def test_one_byte_too_many_is_a_bomb(codec: int) -> None:
    """Data one byte over the bound is refused."""
    with pytest.raises(DecompressionBomb, match=f"more than {len(SAMPLE) - 1} bytes"):
        decompress(codec, compress(codec, SAMPLE), max_bytes=len(SAMPLE) - 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("codec", "levels"), [(GZIP, (1, 6, 9, -1)), (LZ4, (1, 9, 12, 17)), (ZSTD, (-5, 1, 3, 22)), (SNAPPY, (None,))]
)
def test_levels(codec: int, levels: tuple[int, ...]) -> None:
    """The output of every level that Kafka allows is readable."""
    for level in levels:
        assert decompress(codec, compress(codec, SAMPLE, level)) == SAMPLE


@pytest.mark.parametrize("codec", [5, 6, 7, -1])
def test_unknown_codecs(codec: int) -> None:
    """Unknown codec numbers are corrupt to read, and a ValueError to write."""
    with pytest.raises(CorruptBatch, match=f"codec is {codec}"):
        decompress(codec, b"abc")
    with pytest.raises(ValueError, match=f"codec is {codec}"):
        compress(codec, b"abc")


@pytest.mark.parametrize("codec", CODECS)
def test_every_truncation_is_corrupt(codec: int) -> None:
    """No truncated payload is accepted, except snappy at the end of a block, since it has no end mark."""
    packed = compress(codec, SAMPLE[:70_000])
    for size in {*range(40), *range(40, len(packed), 997), *range(len(packed) - 12, len(packed))}:
        try:
            out = decompress(codec, packed[:size])
        except CorruptBatch:
            continue
        if codec == SNAPPY:
            assert SAMPLE.startswith(out)
            assert len(out) % 32768 == 0
        else:
            pytest.fail(f"{size} of {len(packed)} bytes were taken for the whole")


@pytest.mark.parametrize("codec", CODECS)
@settings(max_examples=examples(150), deadline=None)
@given(damage=st.data())
def test_damage_raises_corrupt_batch_or_nothing(codec: int, damage: st.DataObject) -> None:
    """Flipped, cut, doubled and inserted bytes never raise anything but CorruptBatch, and the bound holds."""
    packed = bytearray(compress(codec, SAMPLE[: damage.draw(st.sampled_from([0, 50, 5_000]))]))
    for _ in range(damage.draw(st.integers(1, 6))):
        position = damage.draw(st.integers(0, len(packed)))
        kind = damage.draw(st.sampled_from(["set", "cut", "insert", "remove"]))
        if kind == "set" and position < len(packed):
            packed[position] = damage.draw(st.integers(0, 255))
        elif kind == "cut":
            del packed[position:]
        elif kind == "insert":
            packed[position:position] = damage.draw(st.binary(max_size=8))
        elif kind == "remove":
            del packed[position : position + damage.draw(st.integers(1, 8))]
    try:
        assert len(decompress(codec, packed, max_bytes=6_000)) <= 6_000
    except CorruptBatch:
        pass


@pytest.mark.parametrize("codec", CODECS)
@given(data=st.binary(max_size=100))
def test_any_bytes_give_bytes_or_corrupt_batch(codec: int, data: bytes) -> None:
    """Arbitrary bytes raise only CorruptBatch, with and without a valid start."""
    magic = {GZIP: b"\x1f\x8b\x08", SNAPPY: b"\x82SNAPPY\x00", LZ4: b"\x04\x22\x4d\x18", ZSTD: b"\x28\xb5\x2f\xfd"}
    for prefix in (b"", magic[codec]):
        try:
            decompress(codec, prefix + data, max_bytes=MIB)
        except CorruptBatch:
            pass


@pytest.mark.parametrize("codec", CODECS)
def test_bombs_are_stopped_within_their_bound(codec: int) -> None:
    """Decompression of 64 MiB of zeros stops at 1 MiB, without memory for all of them."""
    if codec == ZSTD:
        packed = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(64 * MIB))
    else:
        packed = compress(codec, bytes(64 * MIB))
    tracemalloc.start()
    try:
        with pytest.raises(DecompressionBomb):
            decompress(codec, packed, max_bytes=MIB)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < len(packed) + 8 * MIB


# -- gzip


def test_gzip_reads_several_members() -> None:
    """Like Java, the reader concatenates gzip members, and ignores bytes after them."""
    packed = gzip.compress(b"one,") + gzip.compress(b"two,") + gzip.compress(b"three")
    assert decompress(GZIP, packed) == b"one,two,three"
    assert decompress(GZIP, packed + bytes(8)) == b"one,two,three"
    with pytest.raises(DecompressionBomb):
        decompress(GZIP, packed, max_bytes=8)
    with pytest.raises(CorruptBatch):
        decompress(GZIP, packed[:-1])


@pytest.mark.parametrize("codec", [GZIP, LZ4])
@pytest.mark.parametrize("rest", [b"\0", bytes(8), b"anything"])
def test_bytes_behind_the_end_are_ignored_or_refused(codec: int, rest: bytes) -> None:
    """Bytes after the end are ignored or corrupt, by the caller's choice; an lz4 frame may end with its content checksum."""
    data = compress(codec, b"hello") + rest
    assert decompress(codec, data) == b"hello"
    with pytest.raises(CorruptBatch, match=f"{len(rest)} bytes are left behind the end"):
        decompress(codec, data, ignores_rest=False)
    with_checksum = lz4.frame.compress(b"hello", content_checksum=True, block_linked=False)
    assert decompress(LZ4, with_checksum, ignores_rest=False) == b"hello"


# -- snappy


def test_snappy_stream_layout() -> None:
    """The output is snappy-java's header, then blocks of 32 KiB of input, each with its length."""
    packed = compress(SNAPPY, SAMPLE[:40_000])
    assert packed[:16].hex() == "82534e41505059000000000100000001"
    position, sizes = 16, []
    while position < len(packed):
        (size,) = struct.unpack_from(">i", packed, position)
        sizes.append(len(bytes(cramjam.snappy.decompress_raw(packed[position + 4 : position + 4 + size]))))
        position += 4 + size
    assert sizes == [32768, 40_000 - 32768]


def test_snappy_reads_raw_blocks() -> None:
    """Raw snappy without framing is accepted."""
    raw = bytes(cramjam.snappy.compress_raw(SAMPLE))
    assert decompress(SNAPPY, raw) == SAMPLE
    with pytest.raises(DecompressionBomb):
        decompress(SNAPPY, raw, max_bytes=len(SAMPLE) - 1)


def test_snappy_reads_streams_in_a_row() -> None:
    """A second header inside a stream begins another one."""
    assert decompress(SNAPPY, compress(SNAPPY, b"one,") + compress(SNAPPY, b"two")) == b"one,two"


@pytest.mark.parametrize("size", [0, -1, 5, 2**31 - 1])
def test_snappy_block_sizes_are_checked(size: int) -> None:
    """A block length beyond the data is corrupt."""
    with pytest.raises(CorruptBatch, match=f"a block of {size} bytes"):
        decompress(SNAPPY, compress(SNAPPY, b"") + struct.pack(">i", size) + b"abc")


def test_snappy_declared_size_is_not_believed() -> None:
    """A few bytes that declare gigabytes are corrupt before anything is allocated, whatever the bound."""
    with pytest.raises(CorruptBatch, match="cannot hold"):
        decompress(SNAPPY, b"\xff\xff\xff\xff\x0f\x00", max_bytes=1 << 40)


# -- lz4


def test_lz4_frame_layout() -> None:
    """The output is Kafka's frame header, 64 KiB blocks and the end mark."""
    packed = compress(LZ4, SAMPLE)
    assert packed[:7].hex() == "04224d18604082"
    assert packed[-4:] == bytes(4)
    assert bytes(cramjam.lz4.decompress(packed)) == SAMPLE


def test_lz4_stores_what_does_not_shrink() -> None:
    """Noise is stored, so that a frame is never much larger than its content."""
    noise = os.urandom(65_536)
    packed = compress(LZ4, noise)
    assert len(packed) == 7 + 4 + 65_536 + 4
    assert decompress(LZ4, packed) == noise


def test_lz4_reads_the_broken_checksum_of_magic_0() -> None:
    """The header checksum is not verified: old clients computed it over too many bytes."""
    packed = compress(LZ4, b"hello")
    assert decompress(LZ4, packed[:6] + b"\x1a" + packed[7:]) == b"hello"


def test_lz4_reads_frames_of_other_writers() -> None:
    """In frames of independent blocks, checksums and content sizes are skipped, and larger blocks accepted."""
    writer = cramjam.lz4.Compressor(level=1, content_checksum=True, block_linked=False)
    writer.compress(SAMPLE)
    assert decompress(LZ4, bytes(writer.finish())) == SAMPLE
    packed = compress(LZ4, b"hello" * 100)
    with_content_size = packed[:4] + b"\x68\x70" + struct.pack("<Q", 500) + packed[6:]
    assert decompress(LZ4, with_content_size) == b"hello" * 100
    block = packed[7:-4]
    with_block_checksum = packed[:4] + b"\x70\x40\x00" + block + b"\xde\xad\xbe\xef" + packed[-4:]
    assert decompress(LZ4, with_block_checksum) == b"hello" * 100


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ("04224d19604082", "begins with"),
        ("04224d18204082", "version is 0"),
        ("04224d18404082", "depend on each other"),
        ("04224d18614082", "reserved bits"),
        ("04224d18604182", "reserved bits"),
        ("04224d1860c082", "reserved bits"),
        ("04224d18603082", "block size id is 3"),
    ],
)
def test_lz4_refuses_what_kafka_refuses(header: str, reason: str) -> None:
    """Frame headers that Kafka's reader does not accept are corrupt here, too."""
    with pytest.raises(CorruptBatch, match=reason):
        decompress(LZ4, bytes.fromhex(header) + bytes(8))


def test_lz4_block_larger_than_its_frame_allows() -> None:
    """A stored block above the frame's block size is corrupt."""
    frame = bytes.fromhex("04224d18604082") + struct.pack("<I", 0x80000000 | 65_537) + bytes(65_537) + bytes(4)
    with pytest.raises(CorruptBatch, match="a block of 65537 bytes"):
        decompress(LZ4, frame)


# -- zstd


@pytest.mark.parametrize("size", [0, 1, 1000, 130_000, 600_000])
@pytest.mark.parametrize("checksum", [False, True])
def test_zstd_without_content_size(size: int, checksum: bool) -> None:
    """Frames of streaming writers, without a content size, are accepted."""
    data = (SAMPLE * 4)[:size]
    packed = zstandard.ZstdCompressor(write_content_size=False, write_checksum=checksum).compress(data)
    assert decompress(ZSTD, packed, max_bytes=max(size, 1)) == data
    if size:
        with pytest.raises(DecompressionBomb):
            decompress(ZSTD, packed, max_bytes=size - 1)
        with pytest.raises(CorruptBatch):
            decompress(ZSTD, packed[:-1])


def test_zstd_reads_streamed_blocks_and_several_frames() -> None:
    """Blocks flushed one by one, frames in a row and skippable frames between them are one payload."""
    stream = zstandard.ZstdCompressor().compressobj()
    flushed = b""
    for piece in (b"a" * 10, b"b" * 200_000, b""):
        flushed += stream.compress(piece) + stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    flushed += stream.flush()
    skippable = b"\x52\x2a\x4d\x18" + struct.pack("<I", 3) + b"xyz"
    packed = skippable + flushed + skippable + compress(ZSTD, b"end") + skippable
    assert decompress(ZSTD, packed) == b"a" * 10 + b"b" * 200_000 + b"end"
    for bad in (packed + b"x", packed[:-1], packed + skippable[:7], packed + skippable[:3]):
        with pytest.raises(CorruptBatch):
            decompress(ZSTD, bad)


def test_zstd_declared_size_is_not_believed() -> None:
    """A frame that declares more than its blocks can hold is corrupt, before memory is allocated."""
    # Single segment, content size of 8 bytes, one raw block of one byte.
    frame = b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 1 << 50) + b"\x09\x00\x00x"
    with pytest.raises(CorruptBatch, match="declares"):
        decompress(ZSTD, frame, max_bytes=1 << 60)


def test_zstd_window_is_bounded() -> None:
    """A frame that wants a window above 128 MiB is refused."""
    frame = b"\x28\xb5\x2f\xfd\x00\xb8" + b"\x09\x00\x00x"
    with pytest.raises(CorruptBatch):
        decompress(ZSTD, frame)
