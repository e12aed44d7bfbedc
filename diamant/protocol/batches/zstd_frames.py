"""The zstd module of the standard library (from Python 3.14 on) or its backport, and decompression with reused contexts.

The module needs a new decompressor for each frame. Creating one takes 8 µs on a virtual machine, where querying the processor's
features traps; that is more than all other work on a small batch. So we call the libzstd inside the module through ctypes, and
reuse its contexts. An interpreter with a built-in zstd module may hide libzstd's functions; each frame then takes 8 µs more.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar

if sys.version_info >= (3, 14):
    import _zstd
    from compression import zstd
else:
    from backports import zstd
    from backports.zstd import _zstd

__all__ = ["ZSTD_MAGIC", "frame_reader", "read_declared", "zstd"]

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_WINDOW_DESCRIPTOR = (27 - 10) << 3
"""Window descriptor for 128 MiB, the largest window that all readers accept."""
_SINGLE_SEGMENT = 1 << 5
"""Flag of a frame without a window descriptor; its window is as large as its declared content."""

_new_bytes = ctypes.pythonapi.PyBytes_FromStringAndSize
_new_bytes.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t]
_new_bytes.restype = ctypes.py_object
_spare: list[_Context | None] = []
"""Contexts for `read_declared` that are not in use."""


class _Context(ctypes.c_void_p):
    """A decompression context of libzstd, which takes 160 KB. Only one thread at a time may use it."""

    free: ClassVar[Any]
    """libzstd's function that frees a context, set before the first one is created. At exit, the module's names may be gone."""

    def __del__(self) -> None:
        self.free(self)


@cache
def _libzstd() -> ctypes.CDLL | None:
    """Return the shared library of the zstd module, or None if it does not export libzstd's functions.

    `argtypes` is left unset: without it, passing arguments that already are ctypes objects takes half the time.
    """
    library = ctypes.CDLL(getattr(_zstd, "__file__", None))
    try:
        library.ZSTD_createDCtx.restype = _Context
        library.ZSTD_decompressDCtx.restype = ctypes.c_size_t
        _Context.free = library.ZSTD_freeDCtx
    except AttributeError:
        return None
    return library


def _codec() -> tuple[Callable[..., int], Callable[[], _Context | None]]:
    """Return libzstd's function that decompresses one frame, and a function that creates a context for it.

    The first takes the context, the output's address and size (`limit`), the frame and the frame's size. It returns the number of
    bytes written, or a number above `limit` if it fails.
    """
    library = _libzstd()
    return (
        (_without_context, lambda: None) if library is None else (library.ZSTD_decompressDCtx, library.ZSTD_createDCtx)
    )


def _without_context(_context: object, at: Any, limit: ctypes.c_size_t, frame: bytes, _size: object) -> int:
    failed = limit.value + 1
    decompressor = zstd.ZstdDecompressor()
    try:
        plain = decompressor.decompress(frame, failed)
    except zstd.ZstdError:
        return failed
    if len(plain) == failed or not decompressor.eof:
        return failed
    ctypes.memmove(at, plain, len(plain))
    return len(plain)


def read_declared(frame: bytes, size: int) -> bytes | None:
    """Decompress a whole frame that declares `size` bytes; return None if it is corrupt."""
    decompress, new_context = _codec()
    try:
        context = _spare.pop()
    except IndexError:
        context = new_context()
    plain: bytes = _new_bytes(None, size)  # filled below, before other code sees it
    got = decompress(context, plain, ctypes.c_size_t(size), frame, ctypes.c_size_t(len(frame)))
    _spare.append(context)
    return plain if got == size else None


def frame_reader(limit: int) -> Callable[[bytes], bytes | None]:
    """Return a function that decompresses one frame to at most `limit` bytes. It returns None if the frame is invalid or
    decompresses to more, if other bytes follow it, or if it has a window that not all readers accept.

    Only one thread may use the function. Memory: a context, and a buffer of `limit` bytes, of which only the part that the
    largest output has filled takes memory.
    """
    room = memoryview(bytearray(limit))
    at = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(room)))
    bound, count = ctypes.c_size_t(limit), ctypes.c_size_t()
    decompress, new_context = _codec()
    context = new_context()
    frame_size, error = zstd.get_frame_size, zstd.ZstdError

    def read(data: bytes) -> bytes | None:
        count.value = size = len(data)
        try:
            if data[:4] != ZSTD_MAGIC or frame_size(data) != size:
                return None
        except error:
            return None
        if not (data[4] & _SINGLE_SEGMENT or data[5] <= _WINDOW_DESCRIPTOR):
            return None
        got = decompress(context, at, bound, data, count)
        return bytes(room[:got]) if got <= limit else None

    return read
