"""Writes the figures beside Kafka's into the documentation, from bench/compared.json: `python bench/charts.py`.

That file is a run of `bench/run.py` with Kafka as the other broker; docs/reference/measurements.md says how. The tables of that
page and of docs/explanation/performance.md are written, and the charts of the latter drawn. A bar is a median, its line reaches
from the least to the greatest round. Both brokers of a row are drawn to the same scale.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple, TypeAlias

ROOT = Path(__file__).resolve().parent.parent
COMPARED = Path(__file__).with_name("compared.json")
TARGET = ROOT / "docs/pictures"
BEGIN, END = "<!-- from bench/compared.json -->\n", "<!-- end -->\n"

WIDTH, LABELS, RIGHT, BAR, ROW, TOP, FOOT = 860, 300, 130, 13, 46, 62, 18
KAFKA, DIAMANT, INK, FAINT = "#e69f00", "#0072b2", "#1f2933", "#52606d"
"""Colours that people who are colour-blind can tell apart (Okabe and Ito)."""
FONT = "system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif"


class Measured(NamedTuple):
    """The rounds of one broker."""

    median: float
    least: float
    greatest: float

    @classmethod
    def of(cls, rounds: Sequence[float]) -> Measured:
        """Return median, least and greatest."""
        return cls(statistics.median(rounds), min(rounds), max(rounds))


class Chart(NamedTuple):
    """One picture. A row is its label, and the names of measurement and figure."""

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
            ("produce 1 KB, one partition", "librdkafka", "produce 1000 B, 1 p"),
            ("produce 1 KB, six partitions", "librdkafka", "produce 1000 B, 6 p"),
            ("produce 100 B, one partition", "librdkafka", "produce 100 B, 1 p"),
            ("consume 1 KB, one partition", "librdkafka", "consume 1000 B, 1 p"),
            ("consume 1 KB, six partitions", "librdkafka", "consume 1000 B, 6 p"),
            ("consume 100 B, one partition", "librdkafka", "consume 100 B, 1 p"),
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
            ("99 % of produces while cleaning, 1 KB", "compaction", "1000 B, produce latency, cleaning p99"),
            ("broker's processor, produce 1 KB", "librdkafka", "produce 1000 B, 1 p: broker CPU"),
            ("broker's processor, consume 1 KB", "librdkafka", "consume 1000 B, 1 p: broker CPU"),
        ),
    ),
)

SUMMARY = (
    ("start to the first acknowledged produce", "start", "spawn to first acknowledged produce"),
    ("memory after 2 s idle", "start", "RSS after 2 s idle"),
    ("produce 1 KB, one partition, librdkafka", "librdkafka", "produce 1000 B, 1 p"),
    ("produce 100 B, one partition, librdkafka", "librdkafka", "produce 100 B, 1 p"),
    ("consume 1 KB, one partition, librdkafka", "librdkafka", "consume 1000 B, 1 p"),
    ("consume 100 B, one partition, librdkafka", "librdkafka", "consume 100 B, 1 p"),
    ("the broker's processor, produce 1 KB", "librdkafka", "produce 1000 B, 1 p: broker CPU"),
    ("the broker's processor, consume 1 KB", "librdkafka", "consume 1000 B, 1 p: broker CPU"),
    ("one message at a time, 50 %", "latency", "one message at a time p50"),
    ("one message at a time, 99 %", "latency", "one message at a time p99"),
    ("end to end at 2,000 messages a second, 99 %", "end-to-end", "end to end at 2,000 msg/s p99"),
    ("creation of 1,000 partitions, answered", "partitions", "create 1000 partitions"),
    ("then three messages into each of them, acknowledged", "partitions", "3 messages into each"),
    ("restart after SIGKILL with a log of 2 GB", "recovery", "SIGKILL with a log of 2 GB: restart until it answers"),
    ("commits, 16 connections, one partition each", "commits", "commits, 16 connections, 1 partitions each"),
    ("transactions, 16 connections", "transactions", "transactions, 16 connections"),
    ("heartbeats, 100 connections", "groups", "heartbeats, 100 connections"),
    ("compaction of a backlog of 3 M records of 100 B", "compaction", "100 B, backlog: switched on to clean"),
    ("compaction of a backlog of 500,000 records of 1 KB", "compaction", "1000 B, backlog: switched on to clean"),
    ("99 % of produces of 100 B while cleaning, by idle", "compaction", "100 B, produce latency p99, cleaning / idle"),
    ("99 % of produces of 1 KB while cleaning, by idle", "compaction", "1000 B, produce latency p99, cleaning / idle"),
)
"""The rows of the table of performance.md: their labels, and the names of measurement and figure."""


class Figure(NamedTuple):
    """A figure of both brokers."""

    unit: str
    kafka: Sequence[float]
    diamant: Sequence[float]
    commit: str

    def cells(self) -> str:
        """Return the cells of its row: both medians with the least and the greatest round, and the ratio of the medians."""
        ratio = statistics.median(self.diamant) / statistics.median(self.kafka) if any(self.kafka) else 0.0
        return f"{self.unit} | {_rounds(self.kafka)} | {_rounds(self.diamant)} | {ratio:.2g} |"


Figures: TypeAlias = Mapping[tuple[str, str], Figure]


def read_figures(file: Path) -> Figures:
    """Return the figures that both brokers have, by measurement and name."""
    run = json.loads(file.read_text())
    return {
        (row["measurement"], row["figure"]): Figure(
            row["unit"], row["other"], row["rounds"], row.get("commit", run["commit"])
        )
        for row in run["figures"]
        if row.get("other")
    }


def pages(figures: Figures) -> dict[Path, str]:
    """Return the two pages with their tables."""
    commits = ", ".join(sorted({figure.commit for figure in figures.values()}))
    rounds = max(len(figure.diamant) for figure in figures.values())
    head = f"\nMeasured at {commits}: medians [least..greatest] of {rounds} rounds, the brokers in turns.\n\n"
    rule = "| unit | Kafka | Diamant | ratio |\n|---|---|---:|---:|---:|\n"
    short = "".join(f"| {label} | {figures[name, figure].cells()}\n" for label, name, figure in SUMMARY)
    long = "".join(f"| {name} | {figure} | {row.cells()}\n" for (name, figure), row in figures.items())
    tables = {
        "docs/explanation/performance.md": f"{head}| {rule}{short}\n",
        "docs/reference/measurements.md": f"{head}| measurement | figure {rule.replace('|---|', '|---|---|', 1)}{long}\n",
    }
    made = {}
    for page, table in tables.items():
        before, rest = (ROOT / page).read_text().split(BEGIN)
        made[ROOT / page] = f"{before}{BEGIN}{table}{END}{rest.split(END)[1]}"
    return made


def _rounds(values: Sequence[float]) -> str:
    if len(values) == 1:
        return _number(values[0])
    return f"{_number(statistics.median(values))} [{_number(min(values))}..{_number(max(values))}]"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def draw(chart: Chart, figures: Figures) -> str:
    """Return the picture."""
    rows = []
    for label, name, figure in chart.rows:
        row = figures[name, figure]
        rows.append((label, row.unit, Measured.of(row.kafka), Measured.of(row.diamant)))
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
            lines.append(_text(round(x, 1), top + BAR - 2, f"{_number(one.median)} {unit}", FAINT, 12))
    return "\n".join((*lines, "</svg>", ""))


def _text(x: float, y: float, text: str, color: str, size: int, *, anchor: str = "start", weight: int = 400) -> str:
    style = f'font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" fill="{color}"'
    return f'  <text x="{x}" y="{y}" {style}>{escape(text)}</text>'


def main() -> None:
    """Write them all."""
    figures = read_figures(COMPARED)
    made = pages(figures) | {TARGET / chart.file: draw(chart, figures) for chart in CHARTS}
    for path, text in made.items():
        path.write_text(text)
        print(path)


if __name__ == "__main__":
    main()
