"""Records over HTTP, one JSON object per line: the compacted view of a topic (`POST /v1/latest`), a search (`POST /v1/find`).

{"topic": "users"}
    {"partition": 0, "offset": 42, "timestamp": 1700000000000, "key": {"text": "a"}, "value": {"text": "1"}, "headers": []}
{"topic": "users", "text": "Prague"}
    the same for each matching record, newest first, with the first `EXCERPT_BYTES` of key and value, and the progress

Bytes that are not UTF-8 are `{"base64": ...}`; the value of a tombstone is null. An incomplete response breaks off before its
last chunk. A reader that stays slower than `routes.MIN_BYTES_PER_SECOND` is disconnected.
"""

from __future__ import annotations

import asyncio
import json
import logging
from base64 import b64encode
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, TypeVar

from aiohttp import web

from diamant.broker.errors import BadArgument, VerbError
from diamant.broker.http.serving.route import Call, Route
from diamant.broker.operations.calls.parameters import Param
from diamant.broker.operations.records.search import FoundPage, PlacedDamage, PlacedRecord
from diamant.cleaner.queries.matching_records import Wanted
from diamant.cleaner.redaction.where import YES, WhereError, parse_where
from diamant.protocol.batches.header import Record

logger = logging.getLogger(__name__)

LOOK_S = 5.0
"""The interval at which the connection's life is extended while a page is being read."""
MIN_BYTES_PER_SECOND = 256 * 1024
EXCERPT_BYTES = 1024
MAX_FOUND = 10_000
MAX_PROBLEMS = 100

T = TypeVar("T")


async def latest(call: Call) -> web.StreamResponse:
    """Send the latest record of each key."""
    fields = call.fields
    reading = call.services.records().latest_pages(
        fields["topic"], fields["partition"], with_tombstones=fields["tombstones"]
    )
    async with aclosing(reading) as pages:
        page = await _next(call, pages)
        response = await _begin(call)
        try:
            while page is not None:
                await _send(call, response, [_fields(page.partition, record) for record in page.records])
                page = await _next(call, pages)
            await response.write_eof()
        except VerbError as error:
            logger.warning("%s: reading the latest records ended early: %s", fields["topic"], error)
            if call.request.transport is not None:
                call.request.transport.abort()
    return response


async def find(call: Call) -> web.StreamResponse:
    """Send the matching records and the progress. Ends if the reader disconnects. BadArgument, NotFound, TooMany."""
    fields = call.fields
    topic, partition, most = fields["topic"], fields["partition"], fields["limit"]
    total = sum(log.size for log in call.services.explain().logs(topic, partition))
    reading = call.services.search().newest_first(
        topic, partition, _wanted(fields), most=most + 1, cut_bytes=EXCERPT_BYTES
    )
    read = found = 0
    problems: list[str] = []
    is_cut = False
    async with aclosing(reading) as pages:
        page: FoundPage | None = await _next(call, pages)
        response = await _begin(call)
        try:
            while page is not None:
                records = [one for one in page.found if isinstance(one, PlacedRecord)]
                is_cut = found + len(records) > most
                records = records[: most - found]
                found += len(records)
                read += page.bytes_read
                problems += [
                    f"{topic}-{one.partition}: {one.damage.text}" for one in page.found if isinstance(one, PlacedDamage)
                ]
                lines = [_excerpt(one) for one in records]
                await _send(call, response, [*lines, {"read_bytes": read, "total_bytes": max(read, total)}])
                page = await _next(call, pages)
            last = {"is_done": True, "found": found, "is_cut": is_cut, "problems": problems[:MAX_PROBLEMS]}
            await _send(call, response, [last])
        except VerbError as error:
            await _send(call, response, [{"error": str(error), "code": error.code}])
        await response.write_eof()
    return response


def _wanted(fields: Mapping[str, Any]) -> Wanted:
    key, text, where = fields["key"], fields["text"], fields["where"]
    if (key is not None) + (text is not None) + (where is not None) > 1:
        raise BadArgument("expected at most one of key, text and where")
    if key is not None:
        return Wanted.key(key)
    if text is not None:
        if not text:
            raise BadArgument("text: expected at least one character")
        return Wanted.text(text.encode())
    if where is None:
        return Wanted(lambda _: True, lambda _: True)
    try:
        parsed = parse_where(where)
    except WhereError as error:
        raise BadArgument(str(error)) from None
    return Wanted(lambda record: parsed.judge(record) == YES, parsed.may_be_in)


async def _begin(call: Call) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson", "Cache-Control": "no-store"})
    response.force_close()
    await response.prepare(call.request)
    return response


async def _send(call: Call, response: web.StreamResponse, rows: list[Mapping[str, Any]]) -> None:
    lines = "".join(f"{json.dumps(one)}\n" for one in rows).encode()
    call.extend(1 + len(lines) / MIN_BYTES_PER_SECOND)
    await response.write(lines)


async def _next(call: Call, pages: AsyncGenerator[T, None]) -> T | None:
    async def read() -> T | None:
        return await anext(pages, None)

    reading = asyncio.ensure_future(read())
    try:
        while not (await asyncio.wait({reading}, timeout=LOOK_S))[0]:
            call.extend(LOOK_S)
        return reading.result()
    except asyncio.CancelledError:
        reading.cancel()
        await asyncio.wait({reading})
        raise


def _fields(partition: int, record: Record) -> Mapping[str, Any]:
    return {
        "partition": partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": _bytes(record.key),
        "value": _bytes(record.value),
        "headers": [{"key": one.key, "value": _bytes(one.value)} for one in record.headers],
    }


def _excerpt(one: PlacedRecord) -> Mapping[str, Any]:
    record = one.record
    return {
        "partition": one.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": _cut(record.key, one.key_bytes),
        "key_bytes": one.key_bytes,
        "value": _cut(record.value, one.value_bytes),
        "value_bytes": one.value_bytes,
    }


def _cut(data: bytes | None, size: int) -> dict[str, str] | None:
    """As `_bytes`, for the first bytes of `size`, without a truncated character at the end."""
    if data is None or len(data) == size:
        return _bytes(data)
    for left in range(4):
        if "text" in (fields := _bytes(data[: len(data) - left]) or {}):
            return fields
    return _bytes(data)


def _bytes(data: bytes | None) -> dict[str, str] | None:
    if data is None:
        return None
    try:
        return {"text": data.decode()}
    except UnicodeDecodeError:
        return {"base64": b64encode(data).decode()}


ROUTES = (
    Route(
        "POST",
        "/v1/latest",
        latest,
        "The latest committed record of each key of a topic, one JSON object per line.",
        fields=(
            Param("topic", "string", "The topic.", is_required=True),
            Param("partition", "integer", "One partition. Default: all.", most=(1 << 31) - 1),
            Param("tombstones", "boolean", "Include keys whose latest record is a tombstone.", default=False),
        ),
        changes_data=True,  # It changes nothing, but hands out records.
        answer="Lines (application/x-ndjson) with partition, offset, timestamp, key, value and headers.",
    ),
    Route(
        "POST",
        "/v1/find",
        find,
        "The matching records of a topic, newest first over all partitions; one JSON object per line.",
        fields=(
            Param("topic", "string", "The topic.", is_required=True),
            Param("partition", "integer", "One partition. Default: all.", most=(1 << 31) - 1),
            Param("key", "key", "Records of this key. Default, without `text` and `where`: all records."),
            Param("text", "string", "Records with this text in the key, the value or a header."),
            Param("where", "string", "Records that match this condition, as in a redaction."),
            Param("limit", "integer", "The search stops at this number.", default=1000, least=1, most=MAX_FOUND),
        ),
        changes_data=True,  # It changes nothing, but hands out records.
        answer=(
            "Lines (application/x-ndjson): for each record its partition, offset, timestamp, the first bytes of key and value, "
            "and their sizes; regularly `read_bytes` of `total_bytes`; at the end `is_done`, `found`, `is_cut`, `problems`."
        ),
    ),
)
