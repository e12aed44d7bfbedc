"""zstd: the standard library's module (from Python 3.14 on) or its backport, and frames read by contexts that are kept.

A decompressor of that module serves one frame. On a virtual machine, where asking for the processor's features traps, a new
one takes 8 µs, more than all the rest of a round over small batches. So ctypes calls libzstd, the one that the module is made
of. An interpreter with the module built in may hide libzstd's functions: there, each frame takes those 8 µs.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache, partial
from typing import TypeAlias

if sys.version_info >= (3, 14):
    import _zstd
    from compression import zstd
else:
    from backports import zstd
    from backports.zstd import _zstd

__all__ = ["ZSTD_MAGIC", "frame_reader", "read_declared", "zstd"]

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_WINDOW_DESCRIPTOR = (27 - 10) << 3
"""The descriptor of the largest window that readers accept, 128 MiB."""
_SINGLE_SEGMENT = 1 << 5
"""Flag of a frame without a window descriptor: its window is its declared size."""

_Decompress: TypeAlias = Callable[["int | bytes", int, bytes, int], int]
"""Takes an address, the room there in bytes, a whole frame and its size. Returns the size; more than the room if it failed."""

_new_bytes = ctypes.pythonapi.PyBytes_FromStringAndSize
_new_bytes.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t]
_new_bytes.restype = ctypes.py_object
_spare: list[_Decompress] = []
"""Those of `read_declared` that no thread uses now."""


class _Context(ctypes.c_void_p):
    """libzstd's context for decompression: 160 KB."""

    def __del__(self) -> None:
        if (library := _libzstd()) is not None:
            library.ZSTD_freeDCtx(self)


@cache
def _libzstd() -> ctypes.CDLL | None:
    """Return the library with the functions of libzstd, or None. They are found from the module that is made of them."""
    library = ctypes.CDLL(getattr(_zstd, "__file__", None))
    try:
        library.ZSTD_createDCtx.restype = _Context
        library.ZSTD_freeDCtx.argtypes = [_Context]
        function = library.ZSTD_decompressDCtx
    except AttributeError:
        return None
    function.argtypes = [_Context, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t]
    function.restype = ctypes.c_size_t
    return library


def _new_decompress() -> _Decompress:
    """Return a function with a context of its own, for one thread at a time."""
    library = _libzstd()
    return _without_context if library is None else partial(library.ZSTD_decompressDCtx, library.ZSTD_createDCtx())


def _without_context(at: int | bytes, room: int, frame: bytes, _size: int) -> int:
    decompressor = zstd.ZstdDecompressor()
    try:
        plain = decompressor.decompress(frame, room + 1)
    except zstd.ZstdError:
        return room + 1
    if len(plain) > room or not decompressor.eof:
        return room + 1
    ctypes.memmove(at, plain, len(plain))  # type: ignore[arg-type]  # Typeshed knows no bytes here.
    return len(plain)


def read_declared(frame: bytes, size: int) -> bytes | None:
    """Decompress a whole frame that declares `size` bytes; return None if it is corrupt."""
    try:
        decompress = _spare.pop()
    except IndexError:
        decompress = _new_decompress()
    plain: bytes = _new_bytes(None, size)  # Filled before it is seen, as CPython's own functions do.
    got = decompress(plain, size, frame, len(frame))
    _spare.append(decompress)
    return plain if got == size else None


def frame_reader(limit: int) -> Callable[[bytes], memoryview | None]:
    """Return a function that decompresses one frame, with nothing behind it and a window that all readers accept. It returns None
    for anything else, and for more than `limit` bytes; a view is valid until the next call.

    Owned by one thread. Memory: a context, and `limit` bytes once an output was as large.
    """
    room = memoryview(bytearray(limit))
    at = ctypes.addressof(ctypes.c_char.from_buffer(room))
    decompress, frame_size, error = _new_decompress(), zstd.get_frame_size, zstd.ZstdError

    def read(data: bytes) -> memoryview | None:
        size = len(data)
        try:
            if data[:4] != ZSTD_MAGIC or frame_size(data) != size:
                return None
        except error:
            return None
        if not (data[4] & _SINGLE_SEGMENT or data[5] <= _WINDOW_DESCRIPTOR):
            return None
        got = decompress(at, limit, data, size)
        return room[:got] if got <= limit else None

    return read
