"""Strips for the page and commands: segments side by side, sized in proportion, each divided by the kinds of its records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from diamant.cleaner.rules.record_kinds import LIVE, RARE, SHOWN, SUPERSEDED, TOMBSTONES, shown

if TYPE_CHECKING:
    from diamant.cleaner.queries.segment_census import SegmentRecords

EXPIRED = "expired"
UNKNOWN = "unknown"
KINDS = (LIVE, TOMBSTONES, EXPIRED, SUPERSEDED, *(one for one in RARE if one in SHOWN), UNKNOWN)
"""The kinds from bottom to top. All tombstones of a segment count as expired once the last of them has expired."""
LABELS = {**{kind: shown(kind) for kind in KINDS}, EXPIRED: "expired tombstones", UNKNOWN: "not counted"}


class Drawn(Protocol):
    """A segment in a strip."""

    @property
    def size(self) -> int:
        """Size in bytes."""
        ...

    @property
    def counts(self) -> Mapping[str, int] | None:
        """The number of records of each kind. None: not counted."""
        ...


class DrawnSegment(NamedTuple):
    """A segment reduced to its size and counts."""

    size: int
    counts: Mapping[str, int] | None


Segment = TypeVar("Segment", bound=Drawn)


def drawn_counts(one: SegmentRecords, now_ms: int) -> Mapping[str, int]:
    """Return the counts of a segment, with its expired tombstones counted as such."""
    found = {**one.kinds.to_fields(), EXPIRED: 0}
    if one.last_horizon_ms is not None and one.last_horizon_ms <= now_ms:
        found[EXPIRED], found[TOMBSTONES] = found[TOMBSTONES], 0
    return found


def sums(segments: Sequence[Drawn]) -> dict[str, int]:
    """Return how many records of each kind the counted segments hold, in the order of `KINDS`, without kinds that are absent."""
    counted = [one.counts for one in segments if one.counts is not None]
    totals = ((kind, sum(one.get(kind, 0) for one in counted)) for kind in KINDS)
    return {kind: total for kind, total in totals if total}


def shares(segments: Sequence[Drawn]) -> dict[str, int]:
    """Like `sums`, but return only `UNKNOWN` if some segment has not been counted or there are no records."""
    found = sums(segments)
    return found if found and all(one.counts is not None for one in segments if one.size) else {UNKNOWN: 1}


def pieces(segments: Sequence[Segment], places: int) -> Iterator[tuple[int, list[Segment]]]:
    """Divide places among segments by size. Neighbours that are too small for a place of their own share one."""
    total = max(1, sum(one.size for one in segments))
    done = begun = 0
    group: list[Segment] = []
    for number, one in enumerate(segments, 1):
        done += one.size
        group.append(one)
        end = round(places * done / total)
        # Trailing segments that are too small for a place of their own share the last place.
        if end > begun and (end < places or number == len(segments)):
            yield end - begun, group
            begun, group = end, []
