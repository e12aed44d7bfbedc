"""Formats numbers, sizes and times for people, and facts about a person's records."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

_PERIODS = {"Y": "year", "M": "month", "W": "week", "D": "day"}


def moment(time_ms: object) -> str:
    """Format a time in ms since 1970 as a date and time in UTC."""
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
    """Say why a topic was not searched for a person. `entry` has the `topic` and its `identifiers`, none of which is known."""
    names = " or ".join(entry["identifiers"])
    return f"{entry['topic']} was not searched, or not in each role: no {names} of this person is known"


def stay_text(row: Mapping[str, Any]) -> str:
    """Say which records of a person stay in a topic, until when and why; "" if none stay. `row`: an entry of a plan or paper."""
    if row["do"] not in ("keep", "blank") or not row["records"]:
        return ""
    blanked = f", with {', '.join(row['fields'])} blanked" if row["fields"] else ""
    until, because = "as long as the topic keeps records", "the map asks for no more there"
    if not blanked:
        because = "the map gives neither a ground nor what is to be done, so the paper is not certified"
    if keep := row["keep"]:
        last_ms = row.get("kept_until_ms")  # Only plans have it.
        last = f" (the last until {moment(last_ms)})" if last_ms is not None and keep["until"].startswith("P") else ""
        until, because = f"{_until(keep['until'])}{last}", f"of {keep['because']}"
    records = f"{counted(row['records'], 'record')} {'stays' if row['records'] == 1 else 'stay'}"
    return f"{row['topic']}: {records}{blanked}, {until}, because {because}"


def _until(until: str) -> str:
    """Put the end of retention in words. `until`: a date, or a period such as `P10Y` that begins when a record is written."""
    if not until.startswith("P"):
        return f"until {until}"
    words, digits = [], ""
    for letter in until[1:]:
        if letter.isdigit():
            digits += letter
        elif digits and letter in _PERIODS:
            words.append(counted(int(digits), _PERIODS[letter]))
            digits = ""
    return f"for {' and '.join(words)} after each was written"


def number(value: object) -> str:
    """Format a number with thousands separators."""
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def size(count: object) -> str:
    """Format a number of bytes in a suitable decimal unit: `950 bytes`, `1.4 MB`."""
    if not isinstance(count, int) or count < 1_000:
        return counted(count, "byte")
    value, unit = count / 1_000, "kB"
    for greater in ("MB", "GB", "TB"):
        if value < 999.5:
            break
        value, unit = value / 1_000, greater
    return f"{value:.1f} {unit}" if value < 100 else f"{value:,.0f} {unit}"


def size_text(count: int) -> str:
    """Format a number of bytes in binary units: `512 B`, `1.5 KiB`, `-20.0 MiB`."""
    if abs(count) < 1024:
        return f"{count} B"
    power = min(5, (abs(count).bit_length() - 1) // 10)
    return f"{count / 1024**power:,.1f} {'KMGTP'[power - 1]}iB"
