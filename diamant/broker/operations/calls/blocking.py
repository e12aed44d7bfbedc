"""Blocking work for coroutines, which completes even if the coroutine is cancelled, or stops with it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Stopped(Exception):
    """An error that stops the work of a thread whose caller has left."""


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
