"""Calls of a broker's operations from any place: its own loop, another loop, or a thread without one.

State belongs to the broker's loop thread. `on_loop` runs a coroutine there and waits for it in the caller's loop;
`call` waits for it in a thread that has none.

    report = await broker.compact("t")              # from any event loop
    report = broker.call(broker.compact("t"))       # from a thread, as in a test with a plain `with Broker(...)`
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def on_loop(loop: asyncio.AbstractEventLoop, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run what `make` returns on `loop`. Cancelling the wait cancels it."""
    if asyncio.get_running_loop() is loop:
        return await make()
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(make(), loop))


def call(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
    """Run a coroutine on `loop` from another thread and return its result.

    TimeoutError after `timeout_s`: it is cancelled. RuntimeError on the loop's own thread, which would wait for itself.
    """
    if asyncio._get_running_loop() is loop:
        coroutine.close()
        raise RuntimeError("this is the thread of the broker's own loop: await the call instead")
    future = asyncio.run_coroutine_threadsafe(coroutine, loop)
    try:
        return future.result(timeout_s)
    except concurrent.futures.TimeoutError:
        future.cancel()
        raise TimeoutError(f"not done after {timeout_s} s") from None
