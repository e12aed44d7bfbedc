"""Remains of a job: bytes of removed values that no scan has seen gone, kept for later jobs that may concern them.

A job that ends without a certificate knows values that are no longer in any log, but may be in some file beside the logs. A later
job cannot find these values by itself. It inherits them:

    an erasure     from jobs that removed values of its key, whatever their topics
    a redaction    from jobs that removed values from its topic, because a digest does not tell whether a value matches
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from diamant.cleaner.evidence.search.needles import VALUE, Needle
from diamant.json_types import JsonObject

KEY_DIGEST_BYTES = 8
"""Number of bytes kept of a key's digest. Two keys with the same beginning only inherit too much."""
ANY_KEY = "*"
"""Stands for digests if there are too many keys, or if they are not known."""


def short_digest(digest: bytes) -> str:
    """Return the beginning of a key's digest, in hexadecimal."""
    return digest[:KEY_DIGEST_BYTES].hex()


@dataclass(frozen=True, slots=True)
class Remains:
    """The values that one job has removed, but that may remain somewhere."""

    id: str
    """Id of the job."""
    topics: tuple[str, ...]
    keys: tuple[str, ...]
    """`short_digest` of the keys that had the values, or `ANY_KEY`."""
    needles: tuple[Needle, ...]

    def concerns_key(self, digest: bytes, topics: Collection[str]) -> bool:
        """Tell whether an erasure of the key with this digest, from these topics, must look for these remains."""
        is_any = ANY_KEY in self.keys and not {*topics}.isdisjoint(self.topics)
        return is_any or short_digest(digest) in self.keys

    def includes(self, other: Remains) -> bool:
        """Tell whether every job that must look for `other` finds all its values in these remains, too."""
        wider = {*other.topics} <= {*self.topics} and {*other.keys} <= {*self.keys}
        return wider and other.digests <= self.digests

    @property
    def digests(self) -> frozenset[bytes]:
        """Digests of the values."""
        return frozenset(one.digest for one in self.needles)

    def to_bytes(self) -> bytes:
        rows = [one.to_fields() for one in self.needles]
        return json.dumps({"id": self.id, "topics": self.topics, "keys": self.keys, "needles": rows}).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Remains:
        """Undo `to_bytes`. Raises ValueError for any other input."""
        try:
            plain: JsonObject = json.loads(data)
            needles = tuple(Needle.from_fields(one) for one in plain["needles"])
            return cls(str(plain["id"]), tuple(plain["topics"]), tuple(plain["keys"]), needles)
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"it is not of this version: {error}") from None


def values_of(needles: Iterable[Needle]) -> tuple[Needle, ...]:
    """Return the needles that are values."""
    return tuple(one for one in needles if one.kind == VALUE)
