"""Work in a thread of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


async def in_own_thread(work: Callable[[], T]) -> T:
    """Run `work` in a new thread, so that it starts even if every thread of the loop's pool is blocked forever."""
    pool = ThreadPoolExecutor(1, "own")
    done = asyncio.get_running_loop().run_in_executor(pool, work)
    try:
        return await done
    finally:
        pool.shutdown(wait=not done.cancelled())
