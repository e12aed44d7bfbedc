"""A hash that identifies keys during one run of a tool. Unlike `key_hasher`, it also works if kernels are not compiled."""

from __future__ import annotations

import os
from hashlib import blake2b
from struct import Struct

HASH_BYTES = 16
_HALVES = Struct("=QQ")


class RandomHash:
    """A keyed 16-byte hash with a random secret: SipHash-2-4 if kernels are compiled, otherwise BLAKE2b."""

    def __init__(self, *, is_compiled: bool, secret: bytes | None = None) -> None:
        """`secret`: `HASH_BYTES` bytes, the same in all processes that must compute the same hashes; None for a random secret."""
        secret = secret or os.urandom(HASH_BYTES)
        self.words: tuple[int, int] = _HALVES.unpack(secret)
        """The two halves of the secret, for kernels."""
        self._is_compiled = is_compiled
        self._hasher = blake2b(key=secret, digest_size=HASH_BYTES)

    def of(self, key: bytes) -> bytes:
        """Return the hash of a record's key."""
        if self._is_compiled:
            from diamant.kernels.offset_map import siphash

            return _HALVES.pack(*siphash(*self.words, key))
        hasher = self._hasher.copy()
        hasher.update(key)
        return hasher.digest()
