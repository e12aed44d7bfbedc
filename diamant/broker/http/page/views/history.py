"""The history: charts of the last 24 hours, for the broker or one topic."""

from __future__ import annotations

from aiohttp import web

from diamant.broker.http.page.making.rendering import page, view
from diamant.broker.http.serving.authorization import HISTORY
from diamant.broker.http.serving.route import Call
from diamant.broker.operation_errors import NotFound
from diamant.cleaner.rules.result import REASONS

MAX_ROWS = 10

CHARTS = (
    ("Throughput", "bytes/s", (("bytes_in_per_s", "incoming"), ("bytes_out_per_s", "outgoing"))),
    ("Size on disk", "bytes", (("bytes", "all segments"),)),
    ("Removed by the cleaner", "records/s", (("records_removed_per_s", "all reasons"),)),
    (
        "Superseded share and dirty ratio",
        "",
        (("superseded_ratio", "superseded share"), ("dirty_ratio", "highest dirty ratio")),
    ),
)
BROKER_CHARTS = (
    *CHARTS[:2],
    ("Latency, 99th percentile", "ms", (("produce_p99_ms", "produce"), ("fetch_p99_ms", "fetch"))),
    (
        "Removed by the cleaner",
        "records/s",
        (
            ("removed_superseded_per_s", "superseded"),
            ("removed_tombstones_per_s", "tombstones"),
            ("removed_aborted_per_s", "aborted"),
            ("removed_markers_per_s", "transaction markers"),
        ),
    ),
    CHARTS[3],
    ("Memory", "bytes", (("memory_bytes", "resident"),)),
)


async def show(call: Call) -> web.StreamResponse:
    """Return the view. Raises NotFound."""
    history = call.services.history()
    topic = call.request.query.get("topic") or None
    found = history.to_fields(topic, 0)
    if found is None:
        raise NotFound("this topic has no history: only the largest topics have one")
    charts = CHARTS if topic else BROKER_CHARTS
    names = [name for _, _, series in charts for name, _ in series]
    latest = range(max(0, len(found["times_ms"]) - MAX_ROWS), len(found["times_ms"]))
    context = {
        "topic": topic,
        "topics": history.topics(),
        "charts": charts,
        "names": names,
        "rows": [(found["times_ms"][at], [found["series"][name][at] for name in names]) for at in reversed(latest)],
        "rounds": history.rounds(topic)[::-1],
        "reasons": REASONS,
        "began_ms": found["times_ms"][0] if found["times_ms"] else None,
    }
    return page("history.html.j2", context, title="History", view="History")


ROUTES = (view("/history", show, "The history.", HISTORY),)
