"""Remains of a job: needles for removed values that no scan has proven gone, kept for later jobs that must look for them.

A job that ends without a certificate knows values that are no longer in any log, but may be in some file beside the logs. Later
jobs have no other way to know these values, so they inherit them:

    an erasure     from jobs that removed values of its key, whatever their topics
    a redaction    from jobs that removed values from its topic, because a digest does not show whether a value matches
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from diamant.cleaner.evidence.search.needles import VALUE, Needle
from diamant.json_types import JsonObject

KEY_DIGEST_BYTES = 8
"""Number of bytes kept of a key's digest. If two keys have these in common, their erasures only inherit too much."""
ANY_KEY = "*"
"""Used instead of digests if there are too many keys, or if the keys are not known."""


def short_digest(digest: bytes) -> str:
    """Return the beginning of a key's digest, in hexadecimal."""
    return digest[:KEY_DIGEST_BYTES].hex()


@dataclass(frozen=True, slots=True)
class Remains:
    """The values that one job has removed from the logs, but that may remain somewhere."""

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
        """Tell whether `other` is redundant: every job that inherits it inherits these remains, and they have all its values."""
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
        """Parse the output of `to_bytes`. Raises ValueError for any other input."""
        try:
            plain: JsonObject = json.loads(data)
            needles = tuple(Needle.from_fields(one) for one in plain["needles"])
            return cls(str(plain["id"]), tuple(plain["topics"]), tuple(plain["keys"]), needles)
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"these are not remains that this version can read: {error}") from None


def values_of(needles: Iterable[Needle]) -> tuple[Needle, ...]:
    """Return the needles that are values."""
    return tuple(one for one in needles if one.kind == VALUE)
