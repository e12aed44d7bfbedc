"""Bounds derived from a query's filters: topics, partitions, ranges of offsets and timestamps, and a key.

Pushed-down filters save reading and decoding. Spark evaluates every filter again, so a filter can be ignored here, or used in
part.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

_ORDERED = ("offset", "timestamp", "timestamp_ms")
LEAST = -(2**63)
GREATEST = 2**63 - 1


@dataclass(frozen=True, slots=True)
class FilterBounds:
    """Bounds of a read, all inclusive."""

    topics: frozenset[str] | None = None
    """Topics to read; None for any."""
    partitions: frozenset[int] | None = None
    min_offset: int = LEAST
    max_offset: int = GREATEST
    min_timestamp_ms: int = LEAST
    """A value above `LEAST` also excludes records without a timestamp."""
    max_timestamp_ms: int = GREATEST
    key: bytes | None = None
    """Excludes batches in which these bytes do not occur."""

    def holds(self, topic: str, partition: int) -> bool:
        """Return whether a partition can have requested records."""
        return (self.topics is None or topic in self.topics) and (
            self.partitions is None or partition in self.partitions
        )


def bounds_of(filters: Iterable[Filter]) -> FilterBounds:
    """Return the bounds of the records that pass all of these filters."""
    from pyspark.sql.datasource import (
        EqualNullSafe,
        EqualTo,
        GreaterThan,
        GreaterThanOrEqual,
        In,
        LessThan,
        LessThanOrEqual,
    )

    bounds = FilterBounds()
    for one in filters:
        attribute = getattr(one, "attribute", None)
        if attribute is None or len(attribute) != 1:
            continue
        column = attribute[0]
        if isinstance(one, In):
            values = [value for value in one.value if value is not None]
            bounds = _among(bounds, column, values)
        elif isinstance(one, EqualTo | EqualNullSafe):
            if one.value is not None:
                bounds = _among(bounds, column, [one.value])
        elif isinstance(one, GreaterThan | GreaterThanOrEqual):
            bounds = _at_least(bounds, column, one.value, is_strict=isinstance(one, GreaterThan))
        elif isinstance(one, LessThan | LessThanOrEqual):
            bounds = _at_most(bounds, column, one.value, is_strict=isinstance(one, LessThan))
    return bounds


def _among(bounds: FilterBounds, column: str, values: list[Any]) -> FilterBounds:
    if column == "topic":
        topics = frozenset(map(str, values))
        return replace(bounds, topics=topics if bounds.topics is None else bounds.topics & topics)
    if column == "partition":
        partitions = frozenset(map(int, values))
        return replace(bounds, partitions=partitions if bounds.partitions is None else bounds.partitions & partitions)
    if column == "key" and len(values) == 1:
        return replace(bounds, key=bytes(values[0]))
    if not values or column not in _ORDERED:
        return bounds
    bounds = _at_least(bounds, column, min(values), is_strict=False)
    return _at_most(bounds, column, max(values), is_strict=False)


def _at_least(bounds: FilterBounds, column: str, value: Any, *, is_strict: bool) -> FilterBounds:
    if column == "offset":
        return replace(bounds, min_offset=max(bounds.min_offset, int(value) + is_strict))
    if column == "timestamp_ms":
        return replace(bounds, min_timestamp_ms=max(bounds.min_timestamp_ms, int(value) + is_strict))
    if column == "timestamp" and isinstance(value, datetime):
        # Round down and include the bound itself; Spark filters again, with microseconds.
        return replace(bounds, min_timestamp_ms=max(bounds.min_timestamp_ms, _ms(value)))
    return bounds


def _at_most(bounds: FilterBounds, column: str, value: Any, *, is_strict: bool) -> FilterBounds:
    if column == "offset":
        return replace(bounds, max_offset=min(bounds.max_offset, int(value) - is_strict))
    if column == "timestamp_ms":
        return replace(bounds, max_timestamp_ms=min(bounds.max_timestamp_ms, int(value) - is_strict))
    if column == "timestamp" and isinstance(value, datetime):
        return replace(bounds, max_timestamp_ms=min(bounds.max_timestamp_ms, _ms(value)))
    return bounds


def _ms(moment: datetime) -> int:
    """Return ms since 1970, rounded down. Spark passes instants in UTC."""
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    elapsed = aware - datetime(1970, 1, 1, tzinfo=UTC)
    return (elapsed.days * 86_400 + elapsed.seconds) * 1000 + elapsed.microseconds // 1000
