"""Durations and times as text: `8d`, `1h30m`; `2026-01-31T12:00:00.000Z`."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from typing import TypeAlias

Duration: TypeAlias = "str | float"
"""Seconds, or a string such as `10m`."""

UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_PART = re.compile(r"(\d{1,15})(ms|[smhdw])")


def parse_duration_ms(duration: str | int) -> int:
    """Convert a string such as `8d`, `1h30m`, `90s` or `250ms` to milliseconds; return an int unchanged. Raises ValueError."""
    if isinstance(duration, int):
        return duration
    text = "".join(duration.lower().split())
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{duration!r} is not a duration: expected numbers with w, d, h, m, s or ms, such as 1h30m")
    return sum(int(number) * UNITS_MS[unit] for number, unit in parts)


def seconds_of(duration: Duration) -> float:
    """Return a duration in seconds. Raises ValueError."""
    if isinstance(duration, str):
        return parse_duration_ms(duration) / 1000
    if isinstance(duration, bool) or not isinstance(duration, int | float) or not math.isfinite(duration):
        raise ValueError(
            f"{duration!r} is not a duration: expected seconds, or numbers with w, d, h, m, s or ms, such as 1h30m"
        )
    return float(duration)


def duration_text(duration_ms: int) -> str:
    """Format a duration in its two largest units: `8d`, `1h 30m`, `-5s`."""
    rest, parts = abs(duration_ms), []
    for unit in ("d", "h", "m", "s", "ms"):
        count, rest = divmod(rest, UNITS_MS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return ("-" if duration_ms < 0 else "") + (" ".join(parts[:2]) or "0ms")


def parse_time_ms(text: str) -> int:
    """Convert a time, given as ms since 1970 or in ISO 8601 (by default in UTC), to ms since 1970. Raises ValueError."""
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is neither milliseconds since 1970 nor a time like 2026-01-31T12:00:00Z") from None
    # Computed in integers, because a float cannot represent every millisecond of the far future.
    past = (found if found.tzinfo is not None else found.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
    return (past.days * 86_400 + past.seconds) * 1000 + past.microseconds // 1000


def time_text(time_ms: int) -> str:
    """Format a time in ms since 1970 as ISO 8601 in UTC, like Java's Instant; return the number if it is out of range."""
    try:
        moment = datetime.fromtimestamp(time_ms // 1000, UTC)
    except (OverflowError, OSError, ValueError):
        return str(time_ms)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{time_ms % 1000:03d}Z"
