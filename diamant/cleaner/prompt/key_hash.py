"""The hash under which a key is found in the filters of segments (`key_filter`), without the compiled loops.

SipHash-2-4 with a 128-bit result, as `kernels.offset_map.siphash128`, which hashes millions; this one is for a single
key.

Source: Aumasson and Bernstein, SipHash: a fast short-input PRF.
"""

from __future__ import annotations

_MASK = (1 << 64) - 1


def first_half(key: bytes, hash_key: bytes) -> int:
    """Return the first 64 bits of a key's hash under the 16 bytes of a data directory's hash key, as an unsigned number."""
    k0, k1 = int.from_bytes(hash_key[:8], "little"), int.from_bytes(hash_key[8:16], "little")
    state = [
        0x736F6D6570736575 ^ k0,
        0x646F72616E646F6D ^ k1 ^ 0xEE,
        0x6C7967656E657261 ^ k0,
        0x7465646279746573 ^ k1,
    ]
    whole = len(key) - len(key) % 8
    words = [int.from_bytes(key[at : at + 8], "little") for at in range(0, whole, 8)]
    words.append(int.from_bytes(key[whole:], "little") | (len(key) & 0xFF) << 56)
    for word in words:
        state[3] ^= word
        _rounds(state, 2)
        state[0] ^= word
    state[2] ^= 0xEE
    _rounds(state, 4)
    return state[0] ^ state[1] ^ state[2] ^ state[3]


def _rounds(state: list[int], count: int) -> None:
    v0, v1, v2, v3 = state
    for _ in range(count):
        v0 = (v0 + v1) & _MASK
        v2 = (v2 + v3) & _MASK
        v1 = _rotated(v1, 13) ^ v0
        v3 = _rotated(v3, 16) ^ v2
        v0 = _rotated(v0, 32)
        v2 = (v2 + v1) & _MASK
        v0 = (v0 + v3) & _MASK
        v1 = _rotated(v1, 17) ^ v2
        v3 = _rotated(v3, 21) ^ v0
        v2 = _rotated(v2, 32)
    state[:] = v0, v1, v2, v3


def _rotated(word: int, bits: int) -> int:
    return (word << bits | word >> (64 - bits)) & _MASK
