"""Responses of lines: the connection lives as long as they are made."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from aiohttp.test_utils import make_mocked_request

from diamant.broker.http.serving.lines import MIN_BYTES_PER_SECOND, Lines, send_lines


async def test_the_time_in_which_lines_are_made_is_not_the_readers() -> None:
    """However short the time of each, the life of the connection is extended by it: a log may have many partitions."""
    loop, made_s = asyncio.get_running_loop(), 0.0
    extended: list[float] = []

    async def work() -> AsyncGenerator[Lines, None]:
        nonlocal made_s
        for number in range(10):
            since_s = loop.time()
            await asyncio.sleep(0)
            made_s += loop.time() - since_s
            yield [{"number": number}]

    await send_lines(make_mocked_request("GET", "/"), extended.append, work())
    for_reading_s = 10 * (1 + len('{"number": 0}\n') / MIN_BYTES_PER_SECOND)
    assert sum(extended) - for_reading_s >= made_s > 0
