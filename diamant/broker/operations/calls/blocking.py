"""Blocking work of a coroutine: work that completes although the coroutine is cancelled, and work that stops with it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from diamant.cleaner.runners.contract import wait_in_spite_of_cancelling

T = TypeVar("T")


class Stopped(Exception):
    """Stops the work of a thread whose caller has left."""


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Complete the work and return its result, even if the caller is cancelled.

    So memory stays consistent with the disk, and no other job touches the same files.
    """
    task = asyncio.get_running_loop().create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await wait_in_spite_of_cancelling(task)
        raise


async def in_thread(work: Callable[[Callable[[], object]], T]) -> T:
    """Run `work` in a thread. It is passed a function to call now and then, which raises Stopped once no caller waits."""
    is_over = threading.Event()

    def check() -> None:
        if is_over.is_set():
            raise Stopped("the caller has stopped waiting")

    try:
        return await asyncio.to_thread(work, check)
    except asyncio.CancelledError:
        is_over.set()
        raise
