"""Blocking work of a coroutine: work that comes to its end although the coroutine is cancelled, and work that ends with it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from diamant.cleaner.runners.contract import wait_in_spite_of_cancelling

T = TypeVar("T")


class Stopped(Exception):
    """Ends what a thread does for a caller that is gone."""


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Wait for what was begun, even if the caller is cancelled.

    So what is on the disk and what is known of it stay the same, and no other job takes up its files.
    """
    task = asyncio.get_running_loop().create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await wait_in_spite_of_cancelling(task)
        raise


async def in_thread(work: Callable[[Callable[[], object]], T]) -> T:
    """Run `work` in a thread. It gets a function to call now and then, which raises once no caller waits."""
    is_over = threading.Event()

    def check() -> None:
        if is_over.is_set():
            raise Stopped("the caller has stopped waiting")

    try:
        return await asyncio.to_thread(work, check)
    except asyncio.CancelledError:
        is_over.set()
        raise
