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
def test_the_output_of_every_level_is_readable(codec: int, levels: tuple[int, ...]) -> None:
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
    # No bytes are no frames of zstd, as in Kafka.
    for size in {*range(codec == ZSTD, 40), *range(40, len(packed), 997), *range(len(packed) - 12, len(packed))}:
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


# -- others' writers

HELLO = b"hello" * 100
LZ4_HELLO = compress(LZ4, HELLO)
LZ4_WRITER = cramjam.lz4.Compressor(level=1, content_checksum=True, block_linked=False)
LZ4_WRITER.compress(SAMPLE)
READABLE = {
    "gzip members": (GZIP, gzip.compress(b"one,") + gzip.compress(b"two,") + gzip.compress(b"three"), b"one,two,three"),
    "gzip members and zeros": (GZIP, gzip.compress(b"one,") + gzip.compress(b"two") + bytes(8), b"one,two"),
    "snappy without framing": (SNAPPY, bytes(cramjam.snappy.compress_raw(SAMPLE)), SAMPLE),
    "snappy streams in a row": (SNAPPY, compress(SNAPPY, b"one,") + compress(SNAPPY, b"two"), b"one,two"),
    "lz4 content checksum": (LZ4, bytes(LZ4_WRITER.finish()), SAMPLE),
    "lz4 all checksums": (
        LZ4,
        lz4.frame.compress(SAMPLE, block_linked=False, block_checksum=True, content_checksum=True, store_size=True),
        SAMPLE,
    ),
}


def test_the_header_checksum_of_magic_0_is_ignored_on_request() -> None:
    """Its clients computed it over too many bytes."""
    packed = LZ4_HELLO[:6] + b"\x1a" + LZ4_HELLO[7:]
    assert decompress(LZ4, packed, checks_lz4_header=False) == HELLO
    with pytest.raises(CorruptBatch, match="header's checksum is 0x1a, expected 0x82"):
        decompress(LZ4, packed)


@pytest.mark.parametrize(("codec", "packed", "data"), READABLE.values(), ids=list(READABLE))
def test_payloads_of_other_writers_are_read(codec: int, packed: bytes, data: bytes) -> None:
    """Members and streams in a row are one payload, as in Java; the bound holds for them, too."""
    assert decompress(codec, packed) == data
    with pytest.raises(DecompressionBomb):
        decompress(codec, packed, max_bytes=len(data) - 1)


def lz4_frame(header: str, rest: bytes = bytes(8)) -> bytes:
    """Return a frame that begins with these bytes."""
    return bytes.fromhex(header) + rest


BAD = {
    "gzip, cut off": (GZIP, gzip.compress(b"one,") + gzip.compress(b"two,")[:-1], ""),
    **{
        f"snappy, {size} bytes": (
            SNAPPY,
            compress(SNAPPY, b"") + struct.pack(">i", size) + b"abc",
            f"a block of {size} bytes",
        )
        for size in (0, -1, 5, 2**31 - 1)
    },
    "snappy, gigabytes": (SNAPPY, b"\xff\xff\xff\xff\x0f\x00", "cannot hold"),
    "lz4, magic": (LZ4, lz4_frame("04224d19604082"), "begins with"),
    "lz4, version": (LZ4, lz4_frame("04224d18204082"), "version is 0"),
    "lz4, linked blocks": (LZ4, lz4_frame("04224d18404082"), "depend on each other"),
    "lz4, reserved flag": (LZ4, lz4_frame("04224d18614082"), "reserved bits"),
    "lz4, another reserved flag": (LZ4, lz4_frame("04224d18624082"), "reserved bits"),
    "lz4, reserved low bits": (LZ4, lz4_frame("04224d18604182"), "reserved bits"),
    "lz4, reserved high bit": (LZ4, lz4_frame("04224d1860c082"), "reserved bits"),
    "lz4, block size": (LZ4, lz4_frame("04224d18603082"), "block size id is 3"),
    "lz4, block above its frame's size": (
        LZ4,
        lz4_frame("04224d18604082", struct.pack("<I", 0x80000000 | 65_537) + bytes(65_541)),
        "a block of 65537 bytes",
    ),
    # Single segment, content size of 8 bytes, one raw block of one byte.
    "zstd, a petabyte": (ZSTD, b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 1 << 50) + b"\x09\x00\x00x", "declares"),
    "zstd, window above 128 MiB": (ZSTD, b"\x28\xb5\x2f\xfd\x00\xb8" + b"\x09\x00\x00x", ""),
}


@pytest.mark.parametrize(("codec", "packed", "reason"), BAD.values(), ids=list(BAD))
def test_a_payload_that_kafka_refuses_is_corrupt(codec: int, packed: bytes, reason: str) -> None:
    """Sizes are not believed: more than the bytes can hold is refused before memory is allocated, whatever the bound."""
    with pytest.raises(CorruptBatch) as caught:
        decompress(codec, packed, max_bytes=1 << 60)
    assert reason in str(caught.value)


@pytest.mark.parametrize("codec", [GZIP, LZ4])
@pytest.mark.parametrize("rest", [b"\0", bytes(8), b"anything"])
def test_bytes_behind_the_end_are_ignored_or_refused(codec: int, rest: bytes) -> None:
    """Bytes after the end are ignored or corrupt, by the caller's choice; an lz4 frame may end with its content checksum."""
    data = compress(codec, b"hello") + rest
    assert decompress(codec, data) == b"hello"
    with pytest.raises(CorruptBatch, match=f"{len(rest)} bytes are left after the end"):
        decompress(codec, data, may_skip=False)
    with_checksum = lz4.frame.compress(b"hello", content_checksum=True, block_linked=False)
    assert decompress(LZ4, with_checksum, may_skip=False) == b"hello"


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
