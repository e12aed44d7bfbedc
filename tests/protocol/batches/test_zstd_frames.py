"""zstd frames read by contexts that are kept, and without them where an interpreter hides libzstd's functions."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from diamant.protocol.batches import compression, zstd_frames
from diamant.protocol.batches.zstd_frames import frame_reader, read_declared

TEXT = b"a customer's name " * 50


def test_contexts_are_kept_here() -> None:
    """The functions of libzstd are found: otherwise each small batch would cost a new context."""
    assert zstd_frames._libzstd() is not None


@pytest.mark.parametrize("is_declared", [False, True])
@pytest.mark.parametrize("codec", [zstd_frames._codec(), (zstd_frames._without_context, lambda: None)])
def test_a_whole_frame_is_decompressed_with_and_without_a_context(codec: Any, is_declared: bool) -> None:
    """Into the room there is. A cut or changed frame and one that needs more give a size that there is no room for."""
    frame = zstandard.ZstdCompressor(write_content_size=is_declared).compress(TEXT)
    function, new_context = codec
    context = new_context()

    def decompress(frame: bytes, room: int) -> tuple[int, bytes]:
        into = ctypes.create_string_buffer(room)
        return function(context, into, ctypes.c_size_t(room), frame, ctypes.c_size_t(len(frame))), into.raw

    for other, room in ((frame[:-1], len(TEXT)), (frame[:6] + b"\xff" + frame[7:], len(TEXT)), (frame, len(TEXT) - 1)):
        assert decompress(other, room)[0] > room
        assert decompress(frame, len(TEXT)) == (len(TEXT), TEXT)


@pytest.mark.parametrize("is_declared", [False, True])
def test_one_frame_is_read_and_anything_else_is_left_to_others(is_declared: bool) -> None:
    """A second frame, a cut one, bytes behind it, no frame, and more bytes than the limit are left to others. Each leaves the
    reader usable.
    """
    frame = zstandard.ZstdCompressor(write_content_size=is_declared).compress(TEXT)
    skippable = b"\x50\x2a\x4d\x18\x01\0\0\0x"
    read = frame_reader(len(TEXT))
    for other in (b"", frame[:-1], frame + b"x", 2 * frame, skippable, frame + skippable):
        assert read(other) is None
        assert read(frame) == TEXT
    assert frame_reader(len(TEXT) - 1)(frame) is None


@given(st.binary(max_size=5000), st.integers(1, 3))
def test_a_declared_size_is_the_size_of_what_is_returned(plain: bytes, other: int) -> None:
    """The bytes are new each time; any other size gives None."""
    frame = compression.compress(compression.ZSTD, plain)
    assert read_declared(frame, len(plain)) == plain
    assert read_declared(frame, len(plain) + other) is None
    assert len(plain) < other or read_declared(frame, len(plain) - other) is None
    assert compression.decompress(compression.ZSTD, frame) == plain
