"""Responses with one JSON object per line, sent at the reader's pace.

An incomplete response lacks the final chunk. A reader that stays slower than `MIN_BYTES_PER_SECOND` is disconnected.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, TypeAlias

from aiohttp import web

from diamant.broker.operation_errors import OperationError

logger = logging.getLogger(__name__)

LOOK_S = 5.0
"""While lines are being made, the time limit of the connection is extended at least this often."""
MIN_BYTES_PER_SECOND = 256 * 1024

Lines: TypeAlias = Sequence[Mapping[str, Any]]


async def send_lines(
    request: web.BaseRequest, extend: Callable[[float], None], work: AsyncGenerator[Lines, None]
) -> web.StreamResponse:
    """Send the lines that `work` yields. If it raises OperationError before the first lines, so does this function; if later, the
    error is logged and the response ends early.

    `extend` extends the time limit of the connection by a number of seconds.
    """
    async with aclosing(work):
        lines = await _next(extend, work)
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson", "Cache-Control": "no-store"})
        response.force_close()
        await response.prepare(request)
        try:
            while lines is not None:
                sent = "".join(f"{json.dumps(one)}\n" for one in lines).encode()
                extend(1 + len(sent) / MIN_BYTES_PER_SECOND)
                await response.write(sent)
                lines = await _next(extend, work)
            await response.write_eof()
        except OperationError as error:
            logger.warning("%s ended early: %s", request.path, error)
            if request.transport is not None:
                request.transport.abort()
    return response


async def _next(extend: Callable[[float], None], work: AsyncGenerator[Lines, None]) -> Lines | None:
    async def read() -> Lines | None:
        return await anext(work, None)

    loop = asyncio.get_running_loop()
    reading, since_s = asyncio.ensure_future(read()), loop.time()
    try:
        while True:
            await asyncio.wait({reading}, timeout=LOOK_S)
            now_s = loop.time()
            # Extend by short times as well: otherwise, many lines that each take less than LOOK_S would use up the reader's time.
            extend(now_s - since_s)
            since_s = now_s
            if reading.done():
                return reading.result()
    except asyncio.CancelledError:
        reading.cancel()
        await asyncio.wait({reading})
        raise
