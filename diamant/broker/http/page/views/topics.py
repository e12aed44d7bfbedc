"""The list of topics: sorted, filtered, one page at a time.

The list itself needs no disk reads. The superseded records of the compacted topics on the page are counted in the background
(`background_counts.py`); the live part shows each topic's share once it is known.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from aiohttp import web

from diamant.broker.http.page.making.live import live_view, stream
from diamant.broker.http.page.making.rendering import fragment, page, view
from diamant.broker.http.page.views import one_topic, topic_records, topic_settings
from diamant.broker.http.serving.authorization import STATUS
from diamant.broker.http.serving.route import Call
from diamant.broker.operations.figures.background_counts import MAX_BYTES
from diamant.broker.operations.figures.counted_partition import SupersededShare
from diamant.broker.operations.figures.segment_figures import SegmentFigures
from diamant.broker.topics.topic import Topic
from diamant.cleaner.service.metrics import PartitionStatus
from diamant.words import counted

PAGE_ROWS = 100
STATUS_S = 15.0
"""How long the live part caches the cleaner's status."""
NO_LIMIT_MS = (1 << 63) - 1


class TopicRow(NamedTuple):
    """A topic in the list."""

    name: str
    policy: str
    partitions: int
    offsets: int
    """The log end offsets minus the log start offsets, an upper bound of the number of records."""
    bytes: int
    superseded: float | None
    """The share of superseded records at the last count; None if the topic is not compacted or has uncounted partitions."""
    counted: str
    """A text that says how many partitions have been counted; empty if there is nothing to count."""
    dirty: float | None
    """The highest dirty ratio of the topic's partitions; None if it is not compacted."""
    lag_ms: int | None
    """An upper bound of the age of the topic's oldest superseded value; None if it has none, or is not compacted."""
    max_lag_ms: int | None
    """max.compaction.lag.ms; None if unlimited."""
    cleaned_ms: int | None


COLUMNS = (
    ("name", "Topic", False),
    ("policy", "Cleanup policy", False),
    ("partitions", "Partitions", True),
    ("offsets", "Records (max.)", True),
    ("bytes", "Size", True),
    ("superseded", "Superseded", True),
    ("dirty", "Highest dirty ratio", True),
    ("lag_ms", "Oldest superseded record", True),
    ("cleaned_ms", "Last round", True),
)


def _oldest_ms(share: SupersededShare, found: Sequence[PartitionStatus]) -> int | None:
    """Return an upper bound of the age of the oldest superseded value: the age of the oldest uncleaned record."""
    if share.ratio == 0:
        return None
    return max((one.compaction_lag_ms for one in found), default=0) or None


def _counted_text(share: SupersededShare, largest_bytes: int) -> str:
    if not share.partitions:
        return ""
    if share.counted:
        return f"{share.counted} of {counted(share.partitions, 'partition')} counted"
    return "not counted: too large" if largest_bytes > MAX_BYTES else "not counted yet"


def _row(
    name: str, topic: Topic, status: Mapping[tuple[str, int], PartitionStatus], figures: SegmentFigures
) -> TopicRow:
    logs = topic.logs.values()
    config = next((log.config for log in logs), None)
    found = [one for number in topic.logs if (one := status.get((name, number))) is not None]
    policy = "" if config is None else ",".join(sorted(config.cleanup_policy))
    max_lag_ms = None if config is None else config.max_compaction_lag_ms
    is_compacted = config is not None and config.is_compacted
    share = figures.share(logs if is_compacted else ())
    return TopicRow(
        name,
        policy,
        len(topic.logs),
        sum(log.log_end_offset - log.log_start_offset for log in logs),
        sum(log.size for log in logs),
        share.ratio,
        _counted_text(share, max((log.size for log in logs), default=0)),
        max((one.dirty_ratio for one in found), default=None),
        _oldest_ms(share, found),
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


class _Page(NamedTuple):
    text: str
    sort: str
    total: int
    rows: list[TopicRow]
    number: int
    pages: int


def _status(call: Call) -> dict[tuple[str, int], PartitionStatus]:
    return {(one.topic, one.partition): one for one in call.services.cleaning.status().partitions}


def _page_of(call: Call) -> _Page:
    """Return the page that the query parameters `q`, `sort` and `page` select. Invalid values count as missing."""
    query = call.request.query
    text, sort = query.get("q", "")[:249], query.get("sort", "name")[:40]
    topics = call.services.node.topics.by_name
    status = _status(call)
    figures = call.services.segment_figures()
    names = [name for name in sorted(topics) if text.lower() in name.lower()]
    rows = _sorted([_row(name, topics[name], status, figures) for name in names], sort)
    pages = max(1, -(-len(rows) // PAGE_ROWS))
    number = _page_number(query.get("page", "1"), pages)
    return _Page(text, sort, len(rows), rows[(number - 1) * PAGE_ROWS : number * PAGE_ROWS], number, pages)


async def show(call: Call) -> web.StreamResponse:
    """Return the view."""
    found = _page_of(call)
    return page(
        "topics.html.j2",
        {
            "q": found.text,
            "sort": found.sort,
            "columns": COLUMNS,
            "total": found.total,
            "all": len(call.services.node.topics.by_name),
            "rows": found.rows,
            "page": found.number,
            "pages": found.pages,
        },
        title="Topics",
        view="Topics",
    )


async def live(call: Call) -> web.StreamResponse:
    """Send the rows of the page as counts arrive. The topics on the page stay the same."""
    figures, counts = call.services.segment_figures(), call.services.background_counts()
    topics = call.services.node.topics.by_name
    names = [row.name for row in _page_of(call).rows]
    status: dict[tuple[str, int], PartitionStatus] = {}
    status_s = 0.0
    is_counting = True

    async def parts() -> dict[str, str]:
        nonlocal status, status_s, is_counting
        if time.monotonic() > status_s + STATUS_S:
            status_s = time.monotonic()
            status = _status(call)
        there = [name for name in names if name in topics]
        counts.look(log for name in there for log in topics[name].logs.values() if log.config.is_compacted)
        rows = [_row(name, topics[name], status, figures) for name in there]
        is_counting = any(row.superseded is None and row.counted for row in rows)
        return {"rows": fragment("topics_rows.html.j2", {"rows": rows})}

    return await stream(call, parts, lambda: is_counting)


ROUTES = (
    view("/topics", show, "The list of topics.", STATUS),
    live_view("/live/topics", live, STATUS),
    *one_topic.ROUTES,
    *topic_settings.ROUTES,
    *topic_records.ROUTES,
)
"""All views below `/topics`: the list, a topic, its settings, its records."""
