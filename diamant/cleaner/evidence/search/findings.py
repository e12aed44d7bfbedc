"""The findings of a scan in files, and the places that it cannot read.

Findings are kept per file and limited in number. However many there are, those that decide are always kept.

    listed     findings, while there is room: up to `MAX_LISTED` of each sort in a file, and as `ListCapacity` allows in a scan
    deciding   the finding with the lowest offset of each sort in a file. It is kept even if there is no room, provided that it
               is a record of the key in the erasure's topics, another record there that holds the bytes, bytes outside records,
               or anything in a file of no partition
    counted    all other findings

The sort of a finding is its kind. For tombstones, it also says whether they have headers; for findings that may be in a file of
no partition, whether they contain more than the key's bytes.

Memory: some 400 bytes per finding. A scan keeps as many findings of each sort as `ListLimits` allows, and ten per file.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

VALUE = "value"
"""A record of the key with a value."""
TOMBSTONE = "tombstone"
"""A record of the key without a value."""
SAME_KEY = "same-key"
"""A record of the same key in a topic outside the erasure."""
SAME_BYTES = "same-bytes"
"""Bytes of the key or of one of its values in a record with another key."""
UNDECIDED = "undecided"
"""A record that may or may not match."""
RAW = "raw"
"""Bytes of the key or of a value outside any record."""

DECIDING = frozenset({VALUE, TOMBSTONE, UNDECIDED})
"""Kinds of findings that affect a partition's claim, depending on their offset."""


class Finding(NamedTuple):
    """One place that holds the key or a value. Contents appear only as digests."""

    what: str
    topic: str | None
    partition: int | None
    file: str
    """Path relative to the data directory."""
    position: int
    """Position of the batch in the file, or of the bytes if they are outside batches."""
    offset: int | None
    field: str
    """`key`, `value` or `header` of a record; empty outside of records."""
    digest: str
    """HMAC of the record's value, of a tombstone's key, or of the needle for findings of `SAME_BYTES` and `RAW`."""
    horizon_ms: int | None = None
    """Time from which a tombstone may be removed; None while unknown."""
    has_value: bool | None = None
    """Whether a record of the same key outside the erasure's topics has a value; None for all other findings."""
    has_headers: bool | None = None
    """True for a tombstone with headers, which may describe the deleted value; otherwise None."""

    def to_fields(self) -> dict[str, object]:
        return {name: value for name, value in self._asdict().items() if value is not None and value != ""}


class Unreadable(NamedTuple):
    """A place that cannot be read."""

    topic: str | None
    partition: int | None
    file: str
    position: int | None
    reason: str

    def to_fields(self) -> dict[str, object]:
        return {name: value for name, value in self._asdict().items() if value is not None}


MAX_LISTED = 1000
MAX_DECIDING = 10_000


class ListLimits(NamedTuple):
    """Limits on the number of listed findings."""

    listed: int
    """Limit for each sort in a file, for each sort in a scan that is not deciding, and for unreadable places."""
    deciding: int
    """Limit for each deciding sort in a scan."""


_UNREADABLE = "unreadable"


class ListCapacity:
    """The room that is left for each sort in the list of a scan. Thread-safe."""

    def __init__(self, limits: ListLimits | None = None) -> None:
        self.limits = ListLimits(MAX_LISTED, MAX_DECIDING) if limits is None else limits
        self._taken: Counter[str] = Counter()
        self._lock = threading.Lock()

    def take(self, what: str, wanted: int) -> int:
        """Take room for up to `wanted` findings; return for how many there was room."""
        most = self.limits.deciding if what in DECIDING else self.limits.listed
        with self._lock:
            granted = max(0, min(wanted, most - self._taken[what]))
            self._taken[what] += granted
        return granted

    def give_back(self, taken: Counter[str]) -> None:
        """Give back the room that was taken for a file."""
        with self._lock:
            self._taken -= taken


@dataclass(slots=True)
class FoundList:
    """The findings in one file."""

    most: int = MAX_LISTED
    """Limit for each sort, and for unreadable places."""
    findings: list[Finding] = field(default_factory=list)
    unreadable: list[Unreadable] = field(default_factory=list)
    """Places that cannot be read."""
    unlisted: Counter[str] = field(default_factory=Counter)
    """Number of findings that are not listed, by kind."""
    taken: Counter[str] = field(default_factory=Counter)
    """The room in the scan's list that was taken for the file; set by `settle`."""
    _listed: Counter[str] = field(default_factory=Counter)
    _least: dict[tuple[str, object], Finding] = field(default_factory=dict)
    """The finding with the lowest offset of each deciding sort, listed or not."""

    def add(self, finding: Finding, kind: object = None, *, is_in_scope: bool = False) -> None:
        """Record a finding. `kind`: a distinction within its sort. `is_in_scope`: its topic is part of the erasure."""
        what = finding.what
        if what in DECIDING or what == RAW or is_in_scope or finding.topic is None:
            least = self._least.setdefault((what, kind), finding)
            if _offset(finding) < _offset(least):
                self._least[what, kind] = finding
        if self._listed[what] < self.most:
            self._listed[what] += 1
            self.findings.append(finding)
        else:
            self.unlisted[what] += 1

    def fail(self, place: Unreadable) -> None:
        """Record an unreadable place."""
        if len(self.unreadable) < self.most:
            self.unreadable.append(place)

    def settle(self, room: ListCapacity) -> None:
        """Shorten the list to the room that is left, but keep deciding findings. Must be called after the file was searched."""
        for what, count in self._listed.items():
            self.taken[what] = room.take(what, count)
        left = self.taken.copy()
        kept = []
        for one in self.findings:
            if left[one.what] > 0:
                left[one.what] -= 1
                kept.append(one)
            else:
                self.unlisted[one.what] += 1
        listed = {id(one) for one in kept}
        for one in self._least.values():
            if id(one) not in listed:
                kept.append(one)
                self.unlisted[one.what] -= 1
        self.findings = kept
        self._least.clear()
        if self.unreadable:
            self.taken[_UNREADABLE] = room.take(_UNREADABLE, len(self.unreadable))
            # One unreadable place is enough to prevent claims.
            del self.unreadable[max(1, self.taken[_UNREADABLE]) :]


def _offset(finding: Finding) -> int:
    return -1 if finding.offset is None else finding.offset
