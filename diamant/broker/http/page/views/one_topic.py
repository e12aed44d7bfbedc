"""The view of a topic: live strips of its partitions' segments, the reasons that hold back the cleaner, and actions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from aiohttp import web

from diamant.broker.http.page.making.live import live_view, stream
from diamant.broker.http.page.making.rendering import ShownCall, fragment, page, shown_call, view
from diamant.broker.http.page.making.strip_svg import LEAST_ALIKE, Strip, are_alike, make_strip, ranges, total_of
from diamant.broker.http.page.views.topic_settings import readable
from diamant.broker.http.serving.authorization import EXPLAIN
from diamant.broker.http.serving.route import Call
from diamant.broker.operations.figures.strip_values import LABELS
from diamant.broker.operations.records.record_requests import ExplainRequest
from diamant.cleaner.explain.explanation import PartitionExplanation
from diamant.protocol.kraft.records import TOPIC_RESOURCE
from diamant.storage.log.log import Log
from diamant.storage.names import CLEANED_SUFFIX, LOG_SUFFIX, SWAP_SUFFIX, parse_segment_file
from diamant.words import size

MAX_STRIPS = 12
"""The number of partitions on one page."""
GHOST_S = 20.0
"""How long a strip shows the space freed by a round."""
WAIT_S = 0.5
"""How long a view, or an update of its live part, waits for counts. Later counts appear with the next update."""
MAX_NUMBER = (1 << 31) - 1


def query_number(call: Call, name: str, default: int = 0) -> int:
    """Return a number from the query; `default` if it is missing, invalid or too large."""
    text = call.request.query.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else default


def _logs(call: Call) -> list[Log]:
    """Return the partitions to show. Raises NotFound."""
    found = call.services.explain().logs(call.path["topic"], None)
    first = min(query_number(call, "from"), MAX_NUMBER)
    return [log for log in found if log.partition >= first][:MAX_STRIPS]


def _offline(call: Call) -> list[tuple[int, str]]:
    """Return the partitions that could not be opened, with the reasons."""
    failures = call.services.node.directory.failures
    return sorted((one.partition, str(one.error)) for one in failures if one.topic == call.path["topic"])


def _written(log: Log) -> list[int]:
    """Return the sizes of a round's outputs that are not yet swapped in. Blocking."""
    found = []
    for name in sorted(log.env.list_dir(log.path)):
        parsed = parse_segment_file(name)
        if parsed is not None and parsed.suffix == LOG_SUFFIX and parsed.stage in (CLEANED_SUFFIX, SWAP_SUFFIX):
            with suppress(OSError):
                found.append(log.env.file_size(f"{log.path}/{name}"))
    return found


async def _strips(call: Call, logs: list[Log], scale_bytes: int, before: Mapping[int, int]) -> list[Strip]:
    services = call.services
    cleaner = services.cleaning.status()
    status = {one.partition: one for one in cleaner.partitions if one.topic == call.path["topic"]}
    rounds = {one.partition: one for one in cleaner.in_progress if one.topic == call.path["topic"]}
    figures = services.segment_figures()
    until_s = time.monotonic() + WAIT_S
    now_ms = services.node.env.clock.now_ms()
    found = []
    for log in logs:
        counted = figures.known(log)
        # A partition with a round in progress is counted after the round.
        if log.partition not in rounds and not log.is_exchanging and not log.is_deleted:
            counted = await figures.soon(log, until_s - time.monotonic())
        first_dirty = log.log_start_offset
        if log.config.is_compacted:
            first_dirty = (await services.cleaning.service()).states.first_dirty(log)
        in_progress = rounds.get(log.partition)
        found.append(
            make_strip(
                log,
                counted,
                status.get(log.partition),
                in_progress,
                first_dirty,
                scale_bytes,
                now_ms,
                await asyncio.to_thread(_written, log) if in_progress is not None or log.is_exchanging else (),
                before.get(log.partition),
                figures.progress(log),
            )
        )
    large = [log for log in logs if log.size > figures.unasked_bytes and log.partition not in rounds]
    if large:
        services.background_counts().look(large)
    return found


class Shrinking:
    """The sizes that partitions had before a round freed space, kept until `GHOST_S` after the round."""

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}
        self._before: dict[int, tuple[int, float]] = {}

    def before(
        self, logs: Sequence[Log], is_in_progress: Callable[[tuple[str, int]], bool], now_s: float
    ) -> dict[int, int]:
        """Return these sizes, by partition. Call this at each update: it compares the current sizes with the last ones.

        `is_in_progress` tells whether a round of a partition is in progress; it may exchange several groups of segments.
        """
        for log in logs:
            partition, last = log.partition, self._sizes.get(log.partition, log.size)
            first, _ = self._before.get(partition, (last, 0.0))
            if log.size < last or (partition in self._before and is_in_progress((log.topic, partition))):
                self._before[partition] = first, now_s + GHOST_S
            self._sizes[partition] = log.size
        self._before = {one: found for one, found in self._before.items() if found[1] > now_s}
        return {one: size for one, (size, _) in self._before.items()}


class HeldPartitions(NamedTuple):
    """Partitions that are held back for the same reasons."""

    partitions: str
    first: PartitionExplanation
    """The explanation of the partition whose next round comes first."""
    others: int
    last_round_ms: int | None


def _held(explanations: Sequence[PartitionExplanation]) -> list[HeldPartitions]:
    groups: dict[tuple[object, ...], list[PartitionExplanation]] = {}
    for one in explanations:
        change = None if one.change is None else one.change.text
        key = (*(gate.kind for gate in one.gates), change, one.next_round_ms is None)
        groups.setdefault(key, []).append(one)
    return [
        HeldPartitions(
            ranges(one.partition for one in group),
            min(group, key=lambda one: one.next_round_ms or 0),
            len(group) - 1,
            max((one.next_round_ms for one in group if one.next_round_ms is not None), default=None),
        )
        for group in groups.values()
    ]


def _scale(logs: list[Log]) -> int:
    return max((log.size for log in logs), default=1)


def _actions(call: Call, logs: Sequence[Log]) -> list[tuple[str, ShownCall, str]]:
    large_bytes = sum(log.size for log in logs if log.size > call.services.segment_figures().unasked_bytes)
    found = _of_cleaner(call, is_compacted=logs[0].config.is_compacted)
    return [*found, _count_now(call, large_bytes)] if large_bytes else found


def _count_now(call: Call, large_bytes: int) -> tuple[str, ShownCall, str]:
    topic = call.path["topic"]
    shown = shown_call(
        call, "POST", "/v1/segments", {"topic": topic, "all": True}, f"diamant count {topic} --segments",
        f'diamant.Admin().segments("{topic}", all=True)',
    )  # fmt: skip
    hint = f"Counts the records of each segment now instead of in the background. This reads {size(large_bytes)}."
    return "Count now", shown, hint


def _of_cleaner(call: Call, *, is_compacted: bool) -> list[tuple[str, ShownCall, str]]:
    topic = call.path["topic"]
    path = "/v1/compact"
    roll = (
        "Roll",
        shown_call(
            call, "POST", "/v1/roll", {"topic": topic}, f"diamant roll {topic}", f'diamant.Admin().roll("{topic}")'
        ),
        "Closes the active segments, so that they can be cleaned, or removed by retention.",
    )
    if not is_compacted:
        return [roll]
    return [
        (
            "Compact now",
            shown_call(call, "POST", path, {"topic": topic}, f"diamant compact {topic}", f'broker.compact("{topic}")'),
            "Removes superseded records, and waits until this is done. The latest value of each key stays.",
        ),
        (
            "Compact with force",
            shown_call(
                call, "POST", path, {"topic": topic, "force": True}, f"diamant compact {topic} --force",
                f'broker.compact("{topic}", force=True)',
            ),
            "Like Compact now, but ignores min.compaction.lag.ms.",
        ),
        (
            "Compact and wait for tombstones",
            shown_call(
                call, "POST", path, {"topic": topic, "until": "tombstones-gone"},
                f"diamant compact {topic} --until tombstones-gone", f'broker.compact("{topic}", until="tombstones-gone")',
            ),
            "Like Compact now, but also waits until tombstones are removed, after their delete horizons by the broker's clock.",
        ),
        roll,
    ]  # fmt: skip


async def show(call: Call) -> web.StreamResponse:
    """Return the view. Raises NotFound."""
    topic = call.path["topic"]
    partitions = len(call.services.explain().logs(topic, None))
    logs = _logs(call)
    scale = _scale(logs)
    strips = await _strips(call, logs, scale, {})
    explanations: list[PartitionExplanation] = []
    for log in logs:
        found = await call.services.explain().explain(ExplainRequest(topic, partition=log.partition))
        explanations += found.partitions
    configs = call.services.node.topics.image.configs.get((TOPIC_RESOURCE, topic), {})
    return page(
        "topic.html.j2",
        {
            "topic": topic,
            "kinds": LABELS.items(),
            "first": logs[0].partition if logs else 0,
            "count": MAX_STRIPS,
            "partitions": partitions,
            "scale": scale,
            "strips": strips,
            "offline": _offline(call),
            "held": _held(explanations),
            "total": total_of(strips) if are_alike(strips) else None,
            "settings": [(name, value, readable(name, value)) for name, value in sorted(configs.items())],
            "actions": _actions(call, logs) if logs else [],
        },
        title=topic,
        view="Topics",
    )


async def live(call: Call) -> web.StreamResponse:
    """Send the strips when they change, at the scale at which the page was loaded, so that they visibly shrink."""
    least = query_number(call, "scale", 1)

    shrinking = Shrinking()
    shown = [(log.topic, log.partition) for log in _logs(call) if log.config.is_compacted]
    states = (await call.services.cleaning.service()).states if shown else None

    def is_in_progress(partition: tuple[str, int]) -> bool:
        return states is not None and states.is_in_progress(partition)

    async def parts() -> dict[str, str]:
        logs = _logs(call)
        before = shrinking.before(logs, is_in_progress, time.monotonic())
        strips = await _strips(call, logs, max(least, _scale(logs)), before)
        html = await asyncio.to_thread(fragment, "strips.html.j2", {"topic": call.path["topic"], "strips": strips})
        total = total_of(strips) if len(strips) >= LEAST_ALIKE else None
        return {"strips": html, "total": fragment("total.html.j2", {"total": total})}

    def is_busy() -> bool:
        return any(map(is_in_progress, shown))

    return await stream(call, parts, is_busy)


ROUTES = (view("/topics/{topic}", show, "A topic.", EXPLAIN), live_view("/live/topics/{topic}", live, EXPLAIN))
