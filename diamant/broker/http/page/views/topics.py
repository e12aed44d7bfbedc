"""The list of topics: sorted, filtered, a page at a time. What it shows is in memory; no log is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from aiohttp import web

from diamant.broker.http.page.making.rendering import page, view
from diamant.broker.http.serving.route import Call
from diamant.broker.operations.figures.segment_figures import SegmentFigures
from diamant.broker.topics.topic import Topic
from diamant.cleaner.service.metrics import PartitionStatus

PAGE_ROWS = 100
NO_LIMIT_MS = (1 << 63) - 1


class TopicRow(NamedTuple):
    """A topic in the list."""

    name: str
    policy: str
    partitions: int
    offsets: int
    """From log start to log end: at most so many records."""
    bytes: int
    superseded: float | None
    """The share of its records that are superseded, as counted last; None if not all partitions were."""
    dirty: float | None
    """The highest dirty ratio of its partitions; None if it is not compacted."""
    lag_ms: int | None
    """The age of the oldest record that no round has been over."""
    max_lag_ms: int | None
    """max.compaction.lag.ms; None without a limit."""
    cleaned_ms: int | None


COLUMNS = (
    ("name", "Topic", False),
    ("policy", "Policy", False),
    ("partitions", "Partitions", True),
    ("offsets", "Offsets", True),
    ("bytes", "Size", True),
    ("superseded", "Superseded", True),
    ("dirty", "Dirty", True),
    ("lag_ms", "Oldest not cleaned", True),
    ("cleaned_ms", "Last round", True),
)


def _superseded(topic: Topic, figures: SegmentFigures) -> float | None:
    superseded = records = 0
    for log in topic.logs.values():
        known = figures.known(log)
        if known is None and log.log_start_offset < log.log_end_offset:
            return None
        for one in () if known is None else known.census.segments:
            superseded += one.superseded
            records += one.records
    return superseded / records if records else None


def _row(
    name: str, topic: Topic, status: Mapping[tuple[str, int], PartitionStatus], figures: SegmentFigures
) -> TopicRow:
    logs = topic.logs.values()
    config = next((log.config for log in logs), None)
    found = [one for number in topic.logs if (one := status.get((name, number))) is not None]
    policy = "" if config is None else ",".join(sorted(config.cleanup_policy))
    max_lag_ms = None if config is None else config.max_compaction_lag_ms
    return TopicRow(
        name,
        policy,
        len(topic.logs),
        sum(log.log_end_offset - log.log_start_offset for log in logs),
        sum(log.size for log in logs),
        _superseded(topic, figures),
        max((one.dirty_ratio for one in found), default=None),
        max((one.compaction_lag_ms for one in found), default=None),
        None if max_lag_ms == NO_LIMIT_MS else max_lag_ms,
        max((one.last_cleaned_ms for one in found if one.last_cleaned_ms is not None), default=None),
    )


def _sorted(rows: list[TopicRow], sort: str) -> list[TopicRow]:
    name = sort.removeprefix("-")
    if name not in TopicRow._fields:
        name = "name"

    def key(row: TopicRow) -> tuple[Any, ...]:
        value = getattr(row, name)
        return value is not None, 0 if value is None else value

    return sorted(rows, key=key, reverse=sort.startswith("-"))


def _page_number(text: str, pages: int) -> int:
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 9 else 1
    return min(max(1, number), pages)


async def show(call: Call) -> web.StreamResponse:
    """Return the view; the query has `q`, `sort` and `page`, and whatever is wrong there counts as left out."""
    query = call.request.query
    text, sort = query.get("q", "")[:249], query.get("sort", "name")[:40]
    topics = call.services.node.topics.by_name
    status = {(one.topic, one.partition): one for one in call.services.cleaning.status().partitions}
    figures = call.services.segment_figures()
    names = [name for name in sorted(topics) if text.lower() in name.lower()]
    rows = _sorted([_row(name, topics[name], status, figures) for name in names], sort)
    pages = max(1, -(-len(rows) // PAGE_ROWS))
    number = _page_number(query.get("page", "1"), pages)
    return page(
        "topics.html.j2",
        {
            "q": text,
            "sort": sort,
            "columns": COLUMNS,
            "total": len(rows),
            "all": len(topics),
            "rows": rows[(number - 1) * PAGE_ROWS : number * PAGE_ROWS],
            "page": number,
            "pages": pages,
        },
        title="Topics",
        view="Topics",
    )


ROUTES = (view("/topics", show, "The list of topics."),)
