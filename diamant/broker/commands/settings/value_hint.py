"""Hints for configuration values that were given with a unit, such as 1h: for `segment.ms`, it has to be 3600000."""

from __future__ import annotations

import re

from diamant.storage.config_key import ConfigError, InvalidValue

_MS = {"ms": 1, "s": 1000, "sec": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_BYTES = {
    "b": 1,
    **{f"{letter}{rest}": 1024**power for power, letter in enumerate("kmgt", 1) for rest in ("", "b", "ib")},
}
_WITH_UNIT = re.compile(r"\s*(\d{1,15}(?:\.\d{1,6})?)\s*(%|[A-Za-z]{1,3})\s*", re.ASCII)


def with_hint(error: ConfigError) -> str:
    """Return the message of an error. If the value has a unit, the message suggests the number to use instead."""
    if not isinstance(error, InvalidValue) or (hint := _hint(error.name, str(error.value))) is None:
        return str(error)
    return f"{error}. {hint}"


def _hint(name: str, text: str) -> str | None:
    match = _WITH_UNIT.fullmatch(text)
    if match is None:
        return None
    number, unit = float(match[1]), match[2].lower()
    written = f"{match[1]}{match[2]}"
    if name.endswith(".ratio") and unit == "%":
        return f"It is a share: {written} is {number / 100:g}"
    if name.endswith(".ms") and unit in _MS:
        return f"It is in milliseconds: {written} is {number * _MS[unit]:.0f}"
    if (name.endswith(".bytes") or name.endswith(".size")) and unit in _BYTES:
        return f"It is in bytes: {written} is {number * _BYTES[unit]:.0f} (1024 bytes to the KiB)"
    return None
