"""The compacted view of a topic over HTTP: `POST /v1/latest`, one JSON object on each line.

{"topic": "users"}
    {"partition": 0, "offset": 42, "timestamp": 1700000000000, "key": {"text": "a"}, "value": {"text": "1"}, "headers": []}

Bytes that are no UTF-8 are `{"base64": ...}`; the value of a tombstone is null. The connection breaks before the last chunk if
not everything could be sent. A reader that takes less than `routes.MIN_BYTES_PER_SECOND` for long is cut off.
"""

from __future__ import annotations

import asyncio
import json
import logging
from base64 import b64encode
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from aiohttp import web

from diamant.broker.client.errors import VerbError
from diamant.broker.http.serving.route import Call, Param, Route
from diamant.broker.operations.records import RecordPage

logger = logging.getLogger(__name__)

LOOK_S = 5.0
"""While a page is being read the connection is kept alive for so much longer again and again."""
MIN_BYTES_PER_SECOND = 256 * 1024


async def latest(call: Call) -> web.StreamResponse:
    """Send the latest record of each key."""
    fields = call.fields
    reading = call.services.records().latest_pages(
        fields["topic"], fields["partition"], with_tombstones=fields["tombstones"]
    )
    async with aclosing(reading) as pages:
        page = await _next(call, pages)
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson", "Cache-Control": "no-store"})
        response.force_close()
        await response.prepare(call.request)
        try:
            while page is not None:
                lines = "".join(f"{json.dumps(one)}\n" for one in _fields(page)).encode()
                call.extend(1 + len(lines) / MIN_BYTES_PER_SECOND)
                await response.write(lines)
                page = await _next(call, pages)
            await response.write_eof()
        except VerbError as error:
            logger.warning("%s: reading the latest records ended early: %s", fields["topic"], error)
            if call.request.transport is not None:
                call.request.transport.abort()
    return response


async def _next(call: Call, pages: AsyncGenerator[RecordPage, None]) -> RecordPage | None:
    async def read() -> RecordPage | None:
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


def _fields(page: RecordPage) -> list[dict[str, Any]]:
    return [
        {
            "partition": page.partition,
            "offset": record.offset,
            "timestamp": record.timestamp,
            "key": _bytes(record.key),
            "value": _bytes(record.value),
            "headers": [{"key": one.key, "value": _bytes(one.value)} for one in record.headers],
        }
        for record in page.records
    ]


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
        "The latest committed record of each key of a topic, one JSON object on each line.",
        fields=(
            Param("topic", "string", "The topic.", is_required=True),
            Param("partition", "integer", "One partition; all without it.", most=(1 << 31) - 1),
            Param("tombstones", "boolean", "Those of keys whose latest record is a deletion, too.", default=False),
        ),
        changes_data=True,  # It changes nothing, but hands out records.
        answer="Lines (application/x-ndjson) with partition, offset, timestamp, key, value and headers.",
    ),
)
