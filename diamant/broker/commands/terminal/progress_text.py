"""The progress of a job or a round, as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diamant.broker.client.duration import duration_text
from diamant.broker.commands.terminal.files import size_text


def progress_text(progress: Mapping[str, Any]) -> str:
    """Return how far a job is: its stage, and how much of it is done, how fast and for how long yet, as soon as that is known."""
    stage, done, total, unit = (progress[name] for name in ("stage", "done", "total", "unit"))
    if not done:
        return f"{stage} ..."
    rate, left_s = progress["rate_per_s"], progress["left_s"]
    parts = [f"{100 * done // total} %"] if total else []
    if unit == "bytes":
        parts.append(f"{size_text(done)} of {size_text(total)}" if total else size_text(done))
        if rate is not None:
            parts.append(f"{size_text(round(rate))}/s")
    elif not total:
        parts.append(f"{done:,} {unit}")
    if left_s is not None:
        parts.append(f"{duration_text(round(left_s) * 1000)} left" if left_s >= 1 else "0s left")
    return f"{stage} {', '.join(parts)}"


def round_text(one: Mapping[str, Any]) -> str:
    """Return how far a round of the cleaner is."""
    step = f", {one['step']}" if one["step"] else ""
    return progress_text(
        {
            "stage": f"{one['topic']}-{one['partition']} by {one['runner']}{step}:",
            "done": one["log_bytes_done"],
            "total": one["log_bytes"],
            "unit": "bytes",
            "rate_per_s": one["bytes_per_s"],
            "left_s": one["left_s"],
        }
    )
