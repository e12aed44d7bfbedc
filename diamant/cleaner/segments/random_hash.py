"""The hash that identifies a key during one run of a tool. Unlike `key_hasher` it works without kernels, too."""

from __future__ import annotations

import os
from hashlib import blake2b
from struct import Struct

HASH_BYTES = 16
_HALVES = Struct("=QQ")


class RandomHash:
    """A keyed hash of 16 bytes with a random secret: SipHash-2-4, computed by kernels, or BLAKE2b without kernels."""

    def __init__(self, *, is_compiled: bool, secret: bytes | None = None) -> None:
        """`secret`: the hash's key, `HASH_BYTES` long, if several processes must share the hash; None for a new random one."""
        secret = secret or os.urandom(HASH_BYTES)
        self.words: tuple[int, int] = _HALVES.unpack(secret)
        """The two halves of the hash's key, for kernels."""
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
