"""Counts of records by kind. Python, JSON, metrics, tables and pictures use the same word for each kind.

Every record belongs to exactly one kind, the first of these that applies:

    below_log_start   deleted, although its segment still exists
    aborted           belongs to an aborted transaction
    undecided         belongs to an open transaction
    keyless           has no key, so the cleaner removes it from a compacted topic
    superseded        a later record (neither aborted nor undecided) has the same key
    tombstones        the latest record of its key, without a value
    live              the latest record of its key, with a value

So `records` is the sum of these kinds, and the sum of live and tombstones is the number of distinct keys. Transaction markers do
not count as records.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import NamedTuple

LIVE = "live"
SUPERSEDED = "superseded"
TOMBSTONES = "tombstones"
ABORTED = "aborted"
KEYLESS = "keyless"
BELOW_LOG_START = "below_log_start"
MARKERS = "markers"

RARE = (ABORTED, "undecided", KEYLESS, BELOW_LOG_START, MARKERS)
"""The kinds that tables omit if there are no such records."""


@dataclass(frozen=True, slots=True)
class Kinds:
    """The number of records of each kind."""

    records: int = 0
    live: int = 0
    superseded: int = 0
    tombstones: int = 0
    aborted: int = 0
    undecided: int = 0
    keyless: int = 0
    below_log_start: int = 0
    markers: int = 0
    """Transaction markers, except those below the log start."""

    @property
    def distinct_keys(self) -> int:
        """Number of keys with a live record or a tombstone."""
        return self.live + self.tombstones

    def __add__(self, other: Kinds) -> Kinds:
        return Kinds(*(getattr(self, name) + getattr(other, name) for name in NAMES))

    def to_fields(self) -> dict[str, int]:
        """Return the fields for JSON."""
        return asdict(self)


NAMES = tuple(one.name for one in fields(Kinds))
COUNTS = ("records", "distinct_keys", *NAMES[1:])
"""The columns in tables of logs."""
SHOWN = tuple(name for name in NAMES if name != BELOW_LOG_START)
"""The kinds of records that a consumer can reach, and their sum."""


def shown(name: str) -> str:
    """Return the name of a kind in words, such as `below log start`."""
    return name.replace("_", " ")


def counted(count: int, name: str) -> str:
    """Return a number of records of a kind in words, such as `1 tombstone` or `2,000 keyless`."""
    word = shown(name)
    return f"{count:,} {word[:-1] if count == 1 and word.endswith((TOMBSTONES, MARKERS)) else word}"


def used(names: Iterable[str], rows: Iterable[Kinds]) -> list[str]:
    """Return the names without the `RARE` kinds that are 0 in all rows."""
    rows = tuple(rows)
    return [name for name in names if name not in RARE or any(getattr(one, name) for one in rows)]


class KindBounds(NamedTuple):
    """Lower and upper bounds for the number of records of each kind, which are equal if the number is known."""

    least: Kinds = Kinds()
    most: Kinds = Kinds()

    def plus(self, other: KindBounds) -> KindBounds:
        """Return the sum of the lower bounds and that of the upper bounds."""
        return KindBounds(self.least + other.least, self.most + other.most)

    def to_fields(self) -> dict[str, dict[str, int]]:
        """Return the fields for JSON: a lower and an upper bound for each kind."""
        return {name: {"least": getattr(self.least, name), "most": getattr(self.most, name)} for name in SHOWN}
