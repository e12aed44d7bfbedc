"""What every case yields."""

from __future__ import annotations

from typing import NamedTuple


class Figure(NamedTuple):
    """One measured number."""

    name: str
    value: float
    unit: str
