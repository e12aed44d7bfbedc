"""How far a job is, as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def progress_text(progress: Mapping[str, Any]) -> str:
    """Return how far a job is: its stage, and how much of it is done as soon as anything is."""
    done, total = progress["done"], progress["total"]
    if not done:
        return f"{progress['stage']} ..."
    return (
        f"{progress['stage']} {100 * done // total} %" if total else f"{progress['stage']} {done:,} {progress['unit']}"
    )
