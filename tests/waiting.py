"""Waiting for what other tasks, threads and processes do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

PATIENCE_S = 60.0
"""The limit of everything that a quiet machine does within a second or two: a busy one may take many times as long."""
TURNS = 100
PAUSE_S = 0.005


async def wait_until(condition: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
    """Let the loop turn until a condition holds; after some turns look at it every 5 ms only, to leave time for other
    work.

    TimeoutError: it does not hold after `timeout_s`.
    """
    turns = 0
    async with asyncio.timeout(timeout_s):
        while not condition():
            turns += 1
            await asyncio.sleep(0 if turns < TURNS else PAUSE_S)
