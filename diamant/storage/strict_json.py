"""Parses JSON that all programs read alike (RFC 8259, I-JSON): UTF-8 without a byte order mark, and no ambiguous values.

Programs disagree about duplicate names in an object, about NaN and about -0, and Python itself accepts UTF-16 and UTF-32. A
signed document or a request must not mean one thing here and another elsewhere.
"""

from __future__ import annotations

import json
from typing import Any


def parse_strict(text: bytes | bytearray) -> Any:
    """Parse strict JSON and return its value. Raises ValueError for other input, RecursionError if it is nested too deeply."""
    return json.loads(text.decode("utf-8"), parse_constant=_refuse, parse_int=_integer, object_pairs_hook=_unique)


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not allowed as a number")


def _integer(text: str) -> int:
    if text == "-0":
        _refuse(text)
    return int(text)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name is given twice in an object")
    return found
