"""A topic: each partition as a strip of its segments, live; what holds what is there; compact now."""

from __future__ import annotations

import asyncio

from aiohttp import web

from diamant.broker.client.errors import VerbError
from diamant.broker.http.page.live import stream
from diamant.broker.http.page.rendering import ShownCall, fragment, page, shown_call, view
from diamant.broker.http.page.strip import KINDS, Strip, make_strip
from diamant.broker.http.serving.route import Call
from diamant.broker.operations.explain import ExplainRequest
from diamant.cleaner.explain.explanation import PartitionExplanation
from diamant.protocol.kraft.records import TOPIC_RESOURCE
from diamant.storage.log.log import Log

MAX_STRIPS = 12
"""Partitions on one page."""
MAX_NUMBER = (1 << 31) - 1


def query_number(call: Call, name: str, default: int = 0) -> int:
    """Return a number of the query; what is none, or too large, counts as left out."""
    text = call.request.query.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else default


def _logs(call: Call) -> list[Log]:
    """Return the partitions that are shown. NotFound."""
    found = call.services.explain().logs(call.path["topic"], None)
    first = min(query_number(call, "from"), MAX_NUMBER)
    return [log for log in found if log.partition >= first][:MAX_STRIPS]


async def _strips(call: Call, logs: list[Log], scale_bytes: int) -> list[Strip]:
    services = call.services
    cleaner = services.cleaning.status()
    status = {one.partition: one for one in cleaner.partitions if one.topic == call.path["topic"]}
    rounds = {one.partition: one for one in cleaner.in_progress if one.topic == call.path["topic"]}
    figures = services.segment_figures()
    now_ms = services.node.env.clock.now_ms()
    found = []
    for log in logs:
        counted = figures.known(log)
        # What the round in progress reads is counted once it is over.
        if log.partition not in rounds and not log.is_exchanging and not log.is_deleted:
            try:
                counted = await figures.refreshed(log)
            except (VerbError, TimeoutError):
                counted = figures.known(log)
        first_dirty = log.log_start_offset
        if log.config.is_compacted:
            first_dirty = (await services.cleaning.service()).states.first_dirty(log)
        found.append(
            make_strip(
                log, counted, status.get(log.partition), rounds.get(log.partition), first_dirty, scale_bytes, now_ms
            )
        )
    return found


def _scale(logs: list[Log]) -> int:
    return max((log.size for log in logs), default=1)


def _actions(call: Call) -> list[tuple[str, ShownCall]]:
    topic = call.path["topic"]
    path = "/v1/compact"
    return [
        (
            "Compact now",
            shown_call(call, "POST", path, {"topic": topic}, f"diamant compact {topic}", f'broker.compact("{topic}")'),
        ),
        (
            "Compact what min.compaction.lag.ms protects, too",
            shown_call(
                call, "POST", path, {"topic": topic, "forced": True}, f"diamant compact {topic} --force",
                f'broker.compact("{topic}", force=True)',
            ),
        ),
        (
            "Compact until tombstones are gone",
            shown_call(
                call, "POST", path, {"topic": topic, "until": "tombstones-gone"},
                f"diamant compact {topic} --until tombstones-gone", f'broker.compact("{topic}", until="tombstones-gone")',
            ),
        ),
    ]  # fmt: skip


async def show(call: Call) -> web.StreamResponse:
    """Return the view. NotFound."""
    topic = call.path["topic"]
    partitions = len(call.services.explain().logs(topic, None))
    logs = _logs(call)
    scale = _scale(logs)
    strips = await _strips(call, logs, scale)
    explanations: list[PartitionExplanation] = []
    for log in logs:
        found = await call.services.explain().explain(ExplainRequest(topic, log.partition))
        explanations += found.partitions
    configs = call.services.node.topics.image.configs.get((TOPIC_RESOURCE, topic), {})
    return page(
        "topic.html.j2",
        {
            "topic": topic,
            "kinds": KINDS,
            "first": logs[0].partition if logs else 0,
            "count": MAX_STRIPS,
            "partitions": partitions,
            "scale": scale,
            "strips": strips,
            "explanations": explanations,
            "settings": sorted(configs.items()),
            "actions": _actions(call) if logs and logs[0].config.is_compacted else [],
        },
        title=topic,
        view="Topics",
    )


async def live(call: Call) -> web.StreamResponse:
    """Send the strips when they change, to the scale that they had when the page was opened: one sees them shrink."""
    least = query_number(call, "scale", 1)
    _logs(call)

    async def parts() -> dict[str, str]:
        logs = _logs(call)
        strips = await _strips(call, logs, max(least, _scale(logs)))
        html = await asyncio.to_thread(fragment, "strips.html.j2", {"topic": call.path["topic"], "strips": strips})
        return {"strips": html}

    return await stream(call, parts)


ROUTES = (view("/topics/{topic}", show, "A topic."), view("/live/topics/{topic}", live, "Its changes."))
