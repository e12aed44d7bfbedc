"""The records of a topic, newest first, or of one partition, from an offset or a time on. Each can be explained on demand."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from aiohttp import web

from diamant.broker.http.page.making.rendering import HEADERS, find_call, page, produce_call, shown_call, view
from diamant.broker.http.page.making.shown_records import (
    MAX_SHOWN,
    ShownDamage,
    ShownRecord,
    shown_damage,
    shown_record,
)
from diamant.broker.http.page.views.one_topic import query_number
from diamant.broker.http.serving.authorization import RECORDS
from diamant.broker.http.serving.lines import MIN_BYTES_PER_SECOND
from diamant.broker.http.serving.route import Call
from diamant.broker.operation_errors import NotFound, NotPossible
from diamant.broker.operations.records.record_requests import ExplainRequest
from diamant.broker.operations.records.search_operation import Found, PlacedDamage, PlacedRecord
from diamant.cleaner.segments.transaction_outcomes import TransactionOutcomes
from diamant.duration import parse_time_ms
from diamant.protocol.batches.compression import MAX_BATCH_BYTES
from diamant.protocol.errors import CorruptBatch
from diamant.storage.errors import StorageError
from diamant.storage.log.log import Log
from diamant.storage.log.time_search import at_or_after

PAGE_RECORDS = 50
MAX_BEFORE_CHARS = 20_000
"""The maximum length of a position in a page's address. A longer one is ignored: the page begins at the newest records."""


async def _shown(call: Call, found: Iterable[Found]) -> list[ShownRecord | ShownDamage]:
    """Return the records and damage found in a topic, as the page shows them."""
    explaining, topic = call.services.explain(), call.path["topic"]
    logs = {log.partition: log for log in explaining.logs(topic, None)}
    known: dict[int, TransactionOutcomes] = {}
    shown: list[ShownRecord | ShownDamage] = []
    for one in found:
        if one.partition not in logs:
            continue
        if isinstance(one, PlacedDamage):
            shown.append(shown_damage(one, logs[one.partition].log_end_offset))
            continue
        outcomes = known.get(one.partition)
        if outcomes is None:
            outcomes = TransactionOutcomes()
            if one.header.is_transactional:
                outcomes = known[one.partition] = await explaining.outcomes(logs[one.partition])
        shown.append(shown_record(one, outcomes, f"/topics/{topic}"))
    return shown


def _parse_before(text: str) -> dict[int, int]:
    """Parse a position such as `0:17,1:4`: an offset for each partition. Invalid entries are ignored."""
    found = {}
    for one in text.split(",") if len(text) <= MAX_BEFORE_CHARS else ():
        partition, _, offset = one.partition(":")
        if all(part.isascii() and part.isdigit() and len(part) <= 18 for part in (partition, offset)):
            found[int(partition)] = int(offset)
    return found


def _next_before(before: Mapping[int, int], found: Sequence[Found]) -> str:
    """Return the position of the next page, for `_parse_before`."""
    after = dict(before)
    for one in found:
        offset = one.damage.first_offset if isinstance(one, PlacedDamage) else one.record.offset
        after[one.partition] = min(offset, after.get(one.partition, offset))
    return ",".join(f"{partition}:{offset}" for partition, offset in sorted(after.items()))


async def show_topic(call: Call) -> web.StreamResponse:
    """Return the newest records of all partitions. Raises NotFound, TooMany."""
    before = _parse_before(call.request.query.get("before", ""))
    reading = call.services.search().newest_first(
        call.path["topic"], None, None, most=PAGE_RECORDS + 1, cut_bytes=MAX_SHOWN, before=before
    )
    found: list[Found] = []
    async for one in reading:
        found += one.found
    records = [one for one in found if isinstance(one, PlacedRecord)]
    has_more = len(records) > PAGE_RECORDS
    if has_more:
        found = found[: found.index(records[PAGE_RECORDS])]
    context = {
        **_context(call, None),
        "records": await _shown(call, found),
        "is_newest": not before,
        "problem": "",
        "older": _next_before(before, found) if has_more else None,
    }
    return page("topic_records.html.j2", context, title=f"{call.path['topic']}, records", view="Topics")


def _context(call: Call, partition: int | None) -> dict[str, object]:
    """Return the context common to the views of a topic and of a partition."""
    topic = call.path["topic"]
    return {
        "topic": topic,
        "partition": partition,
        "partitions": len(call.services.explain().logs(topic, None)),
        "find": find_call(call, topic, {"text": "TEXT"}),
        "produce": produce_call(call, topic),
    }


async def _at(call: Call, log: Log) -> tuple[int, str]:
    """Return the offset at which to start, and the error in the query, if any."""
    text = call.request.query.get("at", "")
    if text:
        try:
            at_ms = parse_time_ms(text)
        except ValueError:
            return log.log_start_offset, f"{text[:40]!r} is not a time: expected one such as 2026-01-31T12:00"
        try:
            for step in at_or_after(log, max(0, at_ms)):
                if (found := await asyncio.to_thread(step.run)) is not None:
                    return found.offset, ""
        except (CorruptBatch, StorageError) as error:
            return log.log_start_offset, f"The search by time stopped at a damaged batch: {error}"
        return log.log_end_offset, "No record has this timestamp or a later one."
    return min(max(query_number(call, "offset", log.log_start_offset), log.log_start_offset), log.log_end_offset), ""


async def show(call: Call) -> web.StreamResponse:
    """Return a partition's records from an offset on. Raises NotFound."""
    log = _log(call)
    offset, problem = await _at(call, log)
    found, after = await call.services.search().from_offset(log, offset, most=PAGE_RECORDS, cut_bytes=MAX_SHOWN)
    context = {
        **_context(call, log.partition),
        "log_start_offset": log.log_start_offset,
        "log_end_offset": log.log_end_offset,
        "last_stable_offset": log.last_stable_offset,
        "offset": offset,
        "at": call.request.query.get("at", "")[:40],
        "problem": problem,
        "records": await _shown(call, found),
        "previous": max(log.log_start_offset, offset - PAGE_RECORDS) if offset > log.log_start_offset else None,
        "next": after if found and after < log.log_end_offset else None,
    }
    return page("records.html.j2", context, title=f"{log.topic}-{log.partition}", view="Topics")


async def fate(call: Call) -> web.StreamResponse:
    """Return the explanation of a record and of all others with the same key. Raises NotFound, NotPossible."""
    log, offset = _log(call), _offset(call)
    found = await call.services.explain().explain(ExplainRequest(log.topic, partition=log.partition, offset=offset))
    records = [record for one in found.partitions for record in one.records]
    return page(
        "fate.html.j2",
        {
            "topic": log.topic,
            "partition": log.partition,
            "offset": offset,
            "records": records,
            "call": shown_call(
                call,
                "POST",
                "/v1/explain",
                {"topic": log.topic, "partition": log.partition, "offset": offset},
                f"diamant explain {log.topic} --partition {log.partition} --offset {offset}",
                f'diamant.Admin().explain("{log.topic}", partition={log.partition}, offset={offset})',
            ),
        },
        title=f"{log.topic}-{log.partition}, offset {offset}",
        view="Topics",
    )


async def value(call: Call) -> web.StreamResponse:
    """Return the whole value of a record, as a file. Raises NotFound, NotPossible."""
    log, offset = _log(call), _offset(call)
    found, _ = await call.services.search().from_offset(log, offset, most=1, cut_bytes=MAX_BATCH_BYTES)
    one = next((one for one in found if isinstance(one, PlacedRecord) and not one.header.is_control), None)
    if one is None or one.record.offset != offset or one.record.value is None:
        raise NotFound(f"{log.topic}-{log.partition} has no record with a value at offset {offset}")
    data = one.record.value
    name = f"{log.topic}-{log.partition}-{offset}.bin"
    headers = {**HEADERS, "Content-Disposition": f'attachment; filename="{name}"'}
    call.extend(len(data) / MIN_BYTES_PER_SECOND)
    return web.Response(body=data, content_type="application/octet-stream", headers=headers)


def _offset(call: Call) -> int:
    text = call.path["offset"]
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise NotPossible(f"{text[:40]!r} is not an offset")
    return int(text)


def _log(call: Call) -> Log:
    text = call.path["partition"]
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise NotPossible(f"{text[:40]!r} is not a partition: expected a number")
    return call.services.explain().logs(call.path["topic"], int(text))[0]


ROUTES = (
    view("/topics/{topic}/records", show_topic, "The newest records.", RECORDS),
    view("/topics/{topic}/{partition}", show, "Records.", RECORDS),
    view("/topics/{topic}/{partition}/{offset}", fate, "The explanation of a record.", RECORDS),
    view("/topics/{topic}/{partition}/{offset}/value", value, "The value of a record.", RECORDS),
)
