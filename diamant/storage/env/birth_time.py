"""The birth time of a file: Linux reports it through statx(2), Python's `os.stat` does not.

    offset  size  fields of struct statx used here
         0     4  mask of the fields that are filled in, of which STATX_BTIME is 0x800
        80     8  seconds of the birth time
        88     4  nanoseconds

The birth time belongs to the inode: renaming, writing and setting the modification time do not change it; a copy has its own.
"""

from __future__ import annotations

import os
import sys
from ctypes import CDLL, c_char_p, c_int, c_uint, create_string_buffer
from functools import cache
from struct import Struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    Statx = Callable[..., int]

_AT_FDCWD = -100
_STATX_BTIME = 0x800
_BUFFER_BYTES = 256
_MASK = Struct("=I")
_BIRTH = Struct("=qI")
_BIRTH_AT = 80


@cache
def load_statx() -> Statx | None:
    """Return statx(2) of the C library, if it has it."""
    if sys.platform != "linux":
        return None
    try:
        function = CDLL(None).statx
    except (OSError, AttributeError):
        return None  # a C library without it
    function.argtypes = [c_int, c_char_p, c_int, c_uint, c_char_p]
    function.restype = c_int
    return function


def birth_ms(path: str, load: Callable[[], Statx | None] = load_statx) -> int | None:
    """Return the creation time in ms since the epoch; None if the system or file system does not record it.

    OSError as from `os.stat`.
    """
    os.stat(path)  # for its errors
    statx = load()
    if statx is None:
        return None
    buffer = create_string_buffer(_BUFFER_BYTES)
    if statx(_AT_FDCWD, os.fsencode(path), 0, _STATX_BTIME, buffer) != 0:
        return None
    if not _MASK.unpack_from(buffer)[0] & _STATX_BTIME:
        return None
    seconds, nanoseconds = _BIRTH.unpack_from(buffer, _BIRTH_AT)
    return int(seconds) * 1000 + int(nanoseconds) // 1_000_000
