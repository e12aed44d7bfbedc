"""The hash by which a tool knows a key while it runs."""

from __future__ import annotations

import os
from hashlib import blake2b
from struct import Struct

HASH_BYTES = 16
_HALVES = Struct("=QQ")


class RandomHash:
    """A hash of 16 bytes under a random key: SipHash-2-4, as kernels compute it, or BLAKE2b where there are none."""

    def __init__(self, *, is_compiled: bool, secret: bytes | None = None) -> None:
        """`secret`: the key, of `HASH_BYTES`, where several processes have to know keys by the same hash; None: a new one."""
        secret = secret or os.urandom(HASH_BYTES)
        self.words: tuple[int, int] = _HALVES.unpack(secret)
        """The two halves of the hash's key, for kernels."""
        self._is_compiled = is_compiled
        self._hasher = blake2b(key=secret, digest_size=HASH_BYTES)

    def of(self, key: bytes) -> bytes:
        """Return the hash of a record's key."""
        if self._is_compiled:
            from diamant.kernels.offset_map import siphash128

            return _HALVES.pack(*siphash128(*self.words, key))
        hasher = self._hasher.copy()
        hasher.update(key)
        return hasher.digest()
