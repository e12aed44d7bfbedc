"""Blocking work for coroutines, which completes even if the coroutine is cancelled, or stops with it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from diamant.cleaner.runners.contract import wait_in_spite_of_cancelling

T = TypeVar("T")


class Stopped(Exception):
    """An error that stops the work of a thread whose caller has left."""


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


async def in_thread(work: Callable[[Callable[[], object]], T]) -> T:
    """Run `work(check)` in a thread. `work` calls `check()` now and then, which raises Stopped once the caller has left."""
    is_over = threading.Event()

    def check() -> None:
        if is_over.is_set():
            raise Stopped("the caller has stopped waiting")

    try:
        return await asyncio.to_thread(work, check)
    except asyncio.CancelledError:
        is_over.set()
        raise
