"""Grounds for keeping records until a date, or for an ISO 8601 period such as `P10Y` that begins at a record's timestamp."""

from __future__ import annotations

import re
from calendar import monthrange
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from diamant.duration import parse_time_ms

_PERIOD = re.compile(r"P(?=\d)(?:(\d{1,4})Y)?(?:(\d{1,4})M)?(?:(\d{1,5})W)?(?:(\d{1,6})D)?")
_MAX_MS = 253_402_300_799_999
"""The end of the year 9999."""


@dataclass(frozen=True, slots=True)
class Keep:
    """A ground for keeping records, and how long to keep them."""

    until: str
    """An ISO 8601 period such as `P10Y`, or a date."""
    because: str

    def until_ms(self, timestamp_ms: int) -> int:
        """Return the time until which a record with this timestamp must be kept."""
        found = _PERIOD.fullmatch(self.until)
        if found is None:
            return parse_time_ms(self.until)
        years, months, weeks, days = (int(part or 0) for part in found.groups())
        try:
            moment = datetime.fromtimestamp(timestamp_ms // 1000, UTC)
            count = moment.month - 1 + months
            year, month = moment.year + years + count // 12, count % 12 + 1
            day = min(moment.day, monthrange(year, month)[1])
            moment = moment.replace(year=year, month=month, day=day) + timedelta(weeks=weeks, days=days)
        except (OverflowError, OSError, ValueError):
            return _MAX_MS
        return int(moment.timestamp()) * 1000 + timestamp_ms % 1000

    def to_fields(self) -> dict[str, str]:
        """Return the `keep` object of the map."""
        return {"until": self.until, "because": self.because}


def parse_keep(until: object, because: object) -> Keep:
    """Parse the fields of `keep`. Raises ValueError, whose message begins with the name of the invalid field."""
    if not isinstance(because, str) or not because.strip():
        raise ValueError("because: expected the ground on which the records are kept")
    if not isinstance(until, str) or not (_PERIOD.fullmatch(until) or _is_date(until)):
        raise ValueError(f"until: expected a period such as P10Y, P18M or P30D, or a date, found {str(until)[:40]!r}")
    return Keep(until, because)


def _is_date(text: str) -> bool:
    try:
        return bool(date.fromisoformat(text)) and "-" in text
    except ValueError:
        return False
