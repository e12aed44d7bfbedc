"""Numbers, sizes and times in words, for people."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any


def moment(time_ms: object) -> str:
    """Return a time in ms since 1970, in UTC."""
    if not isinstance(time_ms, int):
        return str(time_ms)
    try:
        return f"{datetime.fromtimestamp(time_ms // 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, OSError, ValueError):
        return f"{time_ms} ms since 1970"


def counted(count: object, what: str, plural: str = "") -> str:
    """Return a number with its noun: `1 file`, `2,000 files`."""
    return f"{number(count)} {what if count == 1 else plural or what + 's'}"


def not_searched_text(entry: Mapping[str, Any]) -> str:
    """Return why a topic was not searched for a person: a `topic` and the `identifiers` that are not known of this person."""
    names = " or ".join(entry["identifiers"])
    return f"{entry['topic']} was not searched, or not in each role: no {names} of this person is known"


def number(value: object) -> str:
    """Return a number with separators for thousands."""
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def size(count: object) -> str:
    """Return bytes in a unit that fits: `950 bytes`, `1.4 MB`."""
    if not isinstance(count, int) or count < 1_000:
        return counted(count, "byte")
    value, unit = count / 1_000, "kB"
    for greater in ("MB", "GB", "TB"):
        if value < 999.5:
            break
        value, unit = value / 1_000, greater
    return f"{value:.1f} {unit}" if value < 100 else f"{value:,.0f} {unit}"
