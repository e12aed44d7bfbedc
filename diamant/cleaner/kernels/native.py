"""Processor features that kernels need and numba does not offer: memory by its address, prefetch and CRC-32C.

Inner functions get the address of an array and not the array: numba would count references to it in every call, which takes
longer than to read a record. The kernel that was called with the array keeps it alive. Nothing here checks a bound:
callers do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from diamant.cleaner.kernels.cache import compiled, inlined

if TYPE_CHECKING:
    from numpy.typing import NDArray

    def address_of(array: NDArray[Any]) -> int:
        """Return where the elements of a contiguous array begin."""

    def load_uint8(address: int, position: int) -> int:
        """Return the byte at `address` + `position`, as a signed 64-bit integer."""

    def load_uint64(address: int, position: int) -> np.uint64:
        """Return the 8 bytes at `address` + `position`, little-endian."""

    def store_uint8(address: int, position: int, value: int | np.int64) -> None:
        """Write the low byte of `value` to `address` + `position`."""

    def copy_bytes(target: int, at: int, source: int, position: int, count: int) -> None:
        """Copy `count` bytes from `source` + `position` to `target` + `at`; they must not overlap."""

    def prefetch(address: int, position: int) -> None:
        """Begin to load what is at `address` + `position` into the processor's cache, to be written."""

    def hardware_crc64(crc: np.uint64, word: np.uint64) -> np.uint64:
        """Return the register of CRC-32C after 8 more bytes."""


_BYTE = ir.IntType(8)
_INT32 = ir.IntType(32)
_WORD = ir.IntType(64)


def _pointer(builder: Any, address: Any, position: Any) -> Any:
    return builder.inttoptr(builder.add(address, position), _BYTE.as_pointer())


if not TYPE_CHECKING:

    @intrinsic
    def address_of(typing_context, array):
        """See the declaration above."""

        def generate(context, builder, signature, arguments):
            data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
            return builder.ptrtoint(data, _WORD)

        return types.int64(array), generate

    @intrinsic
    def load_uint8(typing_context, address, position):
        """See the declaration above."""

        def generate(context, builder, signature, arguments):
            return builder.zext(builder.load(_pointer(builder, *arguments)), _WORD)

        return types.int64(types.int64, types.int64), generate

    @intrinsic
    def load_uint64(typing_context, address, position):
        """See the declaration above."""

        def generate(context, builder, signature, arguments):
            load = builder.load(builder.bitcast(_pointer(builder, *arguments), _WORD.as_pointer()))
            load.align = 1
            return load

        return types.uint64(types.int64, types.int64), generate

    @intrinsic
    def store_uint8(typing_context, address, position, value):
        """See the declaration above."""

        def generate(context, builder, signature, arguments):
            address, position, value = arguments
            builder.store(builder.trunc(value, _BYTE), _pointer(builder, address, position))
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.int64), generate

    @intrinsic
    def copy_bytes(typing_context, target, at, source, position, count):
        """See the declaration above."""

        def generate(context, builder, signature, arguments):
            target, at, source, position, count = arguments
            cgutils.raw_memcpy(
                builder, _pointer(builder, target, at), _pointer(builder, source, position), count, 1, align=1
            )
            return context.get_dummy_value()

        return types.void(*[types.int64] * 5), generate

    @intrinsic
    def prefetch(typing_context, address, position):
        """See the declaration above."""

        def generate(context, builder, signature, arguments):
            declared = cgutils.get_or_insert_function(
                builder.module,
                ir.FunctionType(ir.VoidType(), [_BYTE.as_pointer(), _INT32, _INT32, _INT32]),
                "llvm.prefetch.p0",
            )
            builder.call(declared, [_pointer(builder, *arguments), _INT32(1), _INT32(3), _INT32(1)])
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), generate

    @intrinsic
    def hardware_crc64(typing_context, crc, word):
        """See the declaration above."""

        def generate(context, builder, signature, arguments):
            declared = cgutils.get_or_insert_function(
                builder.module, ir.FunctionType(_WORD, [_WORD, _WORD]), "llvm.x86.sse42.crc32.64.64"
            )
            return builder.call(declared, arguments)

        return types.uint64(types.uint64, types.uint64), generate


# -- CRC-32C -----------------------------------------------------------------------------------------------------------

HAS_HARDWARE_CRC = bool(llvmlite.binding.get_host_cpu_features().get("sse4.2"))
"""True if the processor computes CRC-32C itself; other kinds than x86 take tables."""

_LANE_BYTES = 512
"""Three lanes of so many bytes are computed side by side: an instruction takes three cycles, but one can begin in each."""


def _byte_tables() -> NDArray[np.uint64]:
    """Return table[k, b]: what byte b does to the register when k more bytes follow it."""
    table = np.zeros((8, 256), np.uint64)
    crc = np.arange(256, dtype=np.uint64)
    for _ in range(8):
        crc = crc >> np.uint64(1) ^ np.where(crc & np.uint64(1), np.uint64(0x82F63B78), np.uint64(0))
    table[0] = crc
    for following in range(1, 8):
        crc = crc >> np.uint64(8) ^ table[0][crc & np.uint64(0xFF)]
        table[following] = crc
    return table


_BYTES = _byte_tables()


def _lane_tables() -> NDArray[np.uint64]:
    """Return table[k, b]: what byte k of the register, being b, becomes when a lane of zeros follows."""
    bits = np.uint64(1) << np.arange(32, dtype=np.uint64)
    for _ in range(_LANE_BYTES):
        bits = bits >> np.uint64(8) ^ _BYTES[0][bits & np.uint64(0xFF)]
    table = np.zeros((4, 256), np.uint64)
    for place in range(4):
        for bit in range(8):
            has_bit = np.arange(256) >> bit & 1 == 1
            table[place][has_bit] ^= bits[8 * place + bit]
    return table


_LANES = _lane_tables()


@inlined
def software_crc64(crc: np.uint64, word: np.uint64) -> np.uint64:
    """Return the register of CRC-32C after 8 more bytes, by tables."""
    word ^= crc
    result = np.uint64(0)
    for index in range(8):
        result ^= _BYTES[7 - index, (word >> np.uint64(8 * index)) & np.uint64(0xFF)]
    return result


_advance = hardware_crc64 if HAS_HARDWARE_CRC else software_crc64


@inlined
def _after_lane(crc: np.uint64) -> np.uint64:
    """Return the register after a lane of zeros."""
    low = np.uint64(0xFF)
    return np.uint64(
        _LANES[0, crc & low]
        ^ _LANES[1, crc >> np.uint64(8) & low]
        ^ _LANES[2, crc >> np.uint64(16) & low]
        ^ _LANES[3, crc >> np.uint64(24) & low]
    )


@compiled
def crc32c_at(address: int, start: int, end: int) -> int:
    """Return the CRC-32C of the bytes from `address` + `start` to `address` + `end`."""
    crc = np.uint64(0xFFFFFFFF)
    position = start
    while position + 3 * _LANE_BYTES <= end:
        second = np.uint64(0)
        third = np.uint64(0)
        for _ in range(_LANE_BYTES >> 3):
            crc = _advance(crc, load_uint64(address, position))
            second = _advance(second, load_uint64(address, position + _LANE_BYTES))
            third = _advance(third, load_uint64(address, position + 2 * _LANE_BYTES))
            position += 8
        crc = _after_lane(_after_lane(crc) ^ second) ^ third
        position += 2 * _LANE_BYTES
    while position + 8 <= end:
        crc = _advance(crc, load_uint64(address, position))
        position += 8
    while position < end:
        byte = np.uint64(load_uint8(address, position))
        crc = crc >> np.uint64(8) ^ _BYTES[0, (crc ^ byte) & np.uint64(0xFF)]
        position += 1
    return np.int64(crc ^ np.uint64(0xFFFFFFFF))  # type: ignore[return-value]  # numba knows no int()


@compiled
def crc32c(data: NDArray[np.uint8]) -> int:
    """Return the CRC-32C of `data`."""
    return crc32c_at(address_of(data), 0, data.shape[0])
