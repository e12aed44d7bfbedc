"""What a scan finds in files, and places that it cannot read."""

from __future__ import annotations

from typing import Any, NamedTuple

VALUE = "value"
"""A record of the key with a value."""
TOMBSTONE = "tombstone"
"""A record of the key without one."""
SAME_KEY = "same-key"
"""A record of the same key in a topic that the erasure is not about."""
SAME_BYTES = "same-bytes"
"""Bytes of the key or of one of its values in a record that has another key."""
UNDECIDED = "undecided"
"""A record of which nobody can tell whether it is meant."""
RAW = "raw"
"""Bytes of the key or of a value outside of any record."""

DECIDING = frozenset({VALUE, TOMBSTONE, UNDECIDED})
"""What makes a difference to a partition, according to its offset."""


class Finding(NamedTuple):
    """One place. What was found there is told by digests only."""

    what: str
    topic: str | None
    partition: int | None
    file: str
    """Relative to the data directory."""
    position: int
    """Of the batch, or of the bytes."""
    offset: int | None
    field: str
    """`key`, `value` or `header` of a record; empty outside of records."""
    digest: str
    """HMAC of the value, of the key for a tombstone, of the needle otherwise."""
    horizon_ms: int | None = None
    """From when on a tombstone may go; None while nobody knows."""
    has_value: bool | None = None
    """Of a record of the same key that is not in the erasure's topics: whether it has a value. None for everything else."""
    has_headers: bool | None = None
    """True of a tombstone with headers: nobody can tell whether they say what it has deleted. Else None."""

    def to_fields(self) -> dict[str, Any]:
        return {name: value for name, value in self._asdict().items() if value is not None and value != ""}


class Unreadable(NamedTuple):
    """A place of which nobody can tell what is in it."""

    topic: str | None
    partition: int | None
    file: str
    position: int | None
    reason: str

    def to_fields(self) -> dict[str, Any]:
        return {name: value for name, value in self._asdict().items() if value is not None}
