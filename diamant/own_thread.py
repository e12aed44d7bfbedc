"""Work in a thread of its own, and work that completes even if its caller is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


async def in_own_thread(work: Callable[[], T]) -> T:
    """Run `work` in a new thread, so that it starts even if every thread of the loop's pool is blocked forever.

    If the system refuses a thread, `work` blocks the loop.
    """
    pool = ThreadPoolExecutor(1, "own")
    try:
        done = asyncio.get_running_loop().run_in_executor(pool, work)
    except RuntimeError:
        return work()
    try:
        return await done
    finally:
        pool.shutdown(wait=not done.cancelled())


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Complete the work even if the caller is cancelled; return its result.

    This keeps memory consistent with the disk, and other jobs away from the same files.
    """
    task = asyncio.get_running_loop().create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await wait_in_spite_of_cancelling(task)
        raise


async def wait_in_spite_of_cancelling(future: asyncio.Future[Any]) -> None:
    """Wait until `future` is done, and ignore its error.

    For work that must end before its caller returns, even if the caller is cancelled.
    """
    while not future.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait({future})
    if not future.cancelled():
        future.exception()
