"""Draws the charts of docs/explanation/performance.md from the table of docs/reference/measurements.md: `python bench/charts.py`.

A bar is a median, its line reaches from the least to the greatest round. Both brokers of a row are drawn to the same scale.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "docs/reference/measurements.md"
TARGET = ROOT / "docs/pictures"

WIDTH, LABELS, RIGHT, BAR, ROW, TOP, FOOT = 860, 300, 130, 13, 46, 62, 18
KAFKA, DIAMANT, INK, FAINT = "#e69f00", "#0072b2", "#1f2933", "#52606d"
"""Colours that people who are colour-blind can tell apart (Okabe and Ito)."""
FONT = "system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif"


class Measured(NamedTuple):
    """A cell of the table."""

    text: str
    median: float
    least: float
    greatest: float


class Chart(NamedTuple):
    """One picture. A row is its label, and case and figure of the table."""

    file: str
    title: str
    is_one_scale: bool
    """Else each row has its own: units differ."""
    rows: Sequence[tuple[str, str, str]]


CHARTS = (
    Chart(
        "performance-throughput.svg",
        "Throughput in MB/s: more is better",
        True,
        (
            ("produce 1 KB, one partition", "produce-1k", "librdkafka, 1 p"),
            ("produce 1 KB, six partitions", "produce-1k", "librdkafka, 6 p"),
            ("produce 100 B, one partition", "produce-100", "librdkafka, 1 p"),
            ("consume 1 KB, one partition", "consume-1k", "librdkafka, 1 p"),
            ("consume 1 KB, six partitions", "consume-1k", "librdkafka, 6 p"),
            ("consume 100 B, one partition", "consume-100", "librdkafka, 1 p"),
        ),
    ),
    Chart(
        "performance-cost.svg",
        "Time, memory and processor: less is better",
        False,
        (
            ("start to the first produce", "start", "spawn to first acknowledged produce"),
            ("memory after 2 s idle", "start", "RSS after 2 s idle"),
            ("one message at a time, 50 %", "latency", "one message at a time p50"),
            ("one message at a time, 99 %", "latency", "one message at a time p99"),
            ("restart after SIGKILL, log of 2 GB", "recovery", "SIGKILL with a log of 2 GB: restart until it answers"),
            ("compaction of 3 M records of 100 B", "compaction", "100 B, backlog: switched on to clean"),
            ("99 % of produces while cleaning, 1 KB", "compaction", "1 KB, produce latency, cleaning p99"),
            ("broker's processor, produce 1 KB", "produce-1k", "librdkafka, 1 p: broker CPU"),
            ("broker's processor, consume 1 KB", "consume-1k", "librdkafka, 1 p: broker CPU"),
        ),
    ),
)

_CELL = re.compile(r"([\d.,]+) \[([\d.,]+)\.\.([\d.,]+)\]")


def read_table(text: str) -> Mapping[tuple[str, str, str], tuple[Measured, Measured]]:
    """Return Kafka's and our figures by case, figure and unit."""
    found = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        parsed = [_CELL.fullmatch(cell) for cell in cells]
        if len(cells) == 6 and parsed[3] and parsed[4]:
            kafka, diamant = (
                Measured(one[1], *(float(part.replace(",", "")) for part in one.groups())) for one in parsed[3:5] if one
            )
            found[cells[0], cells[1], cells[2]] = kafka, diamant
    return found


def draw(chart: Chart, table: Mapping[tuple[str, str, str], tuple[Measured, Measured]]) -> str:
    """Return the picture."""
    rows = []
    for label, case, figure in chart.rows:
        units = [key[2] for key in table if key[:2] == (case, figure)]
        if not units:
            sys.exit(f"{TABLE}: no row of case {case!r} and figure {figure!r}; change CHARTS in bench/charts.py")
        unit = "MB/s" if "MB/s" in units else units[0]
        rows.append((label, unit, *table[case, figure, unit]))
    greatest = max(one.greatest for row in rows for one in row[2:])
    height = TOP + ROW * len(rows) + FOOT
    width = WIDTH - LABELS - RIGHT
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" '
        f'font-family="{FONT}">',
        f"  <title>{escape(chart.title)}</title>",
        f'  <rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        _text(20, 26, chart.title, INK, 16, weight=600),
    ]
    for x, color, name in ((LABELS, KAFKA, "Apache Kafka 4.3.1"), (LABELS + 160, DIAMANT, "Diamant")):
        lines.append(f'  <rect x="{x}" y="38" width="12" height="12" fill="{color}"/>')
        lines.append(_text(x + 18, 49, name, INK, 13))
    for at, (label, unit, kafka, diamant) in enumerate(rows):
        y = TOP + ROW * at
        scale = width / (greatest if chart.is_one_scale else max(kafka.greatest, diamant.greatest))
        lines.append(_text(LABELS - 14, y + BAR + 7, label, INK, 13, anchor="end"))
        for one, color, top in ((kafka, KAFKA, y), (diamant, DIAMANT, y + BAR + 3)):
            middle = top + BAR / 2
            lines.append(
                f'  <rect x="{LABELS}" y="{top}" width="{max(1, one.median * scale):.1f}" height="{BAR}" fill="{color}"/>'
            )
            lines.append(
                f'  <path d="M{LABELS + one.least * scale:.1f} {middle}H{LABELS + one.greatest * scale:.1f}" stroke="{INK}"/>'
            )
            x = LABELS + max(one.greatest, one.median) * scale + 8
            lines.append(_text(round(x, 1), top + BAR - 2, f"{one.text} {unit}", FAINT, 12))
    return "\n".join((*lines, "</svg>", ""))


def _text(x: float, y: float, text: str, color: str, size: int, *, anchor: str = "start", weight: int = 400) -> str:
    style = f'font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" fill="{color}"'
    return f'  <text x="{x}" y="{y}" {style}>{escape(text)}</text>'


def main() -> None:
    """Write them all."""
    table = read_table(TABLE.read_text())
    for chart in CHARTS:
        (TARGET / chart.file).write_text(draw(chart, table))
        print(TARGET / chart.file)


if __name__ == "__main__":
    main()
