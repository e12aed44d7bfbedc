"""Calling a broker's operations from anywhere: from its own loop, another loop, or a thread without a loop.

A broker's state belongs to its loop thread. `on_loop` runs a coroutine there and waits for it in the caller's loop;
`call` waits for it in a thread without a loop.

    report = await broker.compact("t")              # from any event loop
    report = call(loop, broker.compact("t"))        # from a thread

`waiting` turns a coroutine method into a blocking one, for a class that wraps another class.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
Awaited = TypeVar("Awaited")
Awaited_co = TypeVar("Awaited_co", covariant=True)


async def on_loop(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on `loop`, and return its result. Cancelling this call cancels the coroutine."""
    if asyncio.get_running_loop() is loop:
        return await coroutine
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, loop))


def call(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
    """Run a coroutine on `loop` from another thread and return its result.

    After `timeout_s`, cancels the coroutine and raises TimeoutError. Raises RuntimeError on the loop's own thread, where waiting
    would deadlock.
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


class Wraps(Protocol[Awaited_co]):
    """A blocking wrapper around a class with coroutine methods, for threads without an event loop."""

    @property
    def awaited(self) -> Awaited_co: ...

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...


def waiting(
    method: Callable[Concatenate[Awaited, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Wraps[Awaited], P], T]:
    """Return a method for the wrapper that runs `method` of the wrapped object and waits for its result."""

    def wait(self: Wraps[Awaited], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return call(self.loop, method(self.awaited, *args, **kwargs))

    functools.update_wrapper(wait, method)
    return wait
