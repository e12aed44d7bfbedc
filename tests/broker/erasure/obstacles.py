"""Obstacles to an erasure: damage, open transactions, full disks, and held, stopped or preceded steps."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.broker.erasure.erase.erase_result import EraseFailed, Erasure
from diamant.broker.erasure.jobs.job_queue import JobQueue
from diamant.broker.operation_errors import TimedOut
from diamant.progress import Progress
from tests.broker.erasure.brokers import data_of
from tests.broker.erasure.constants import KEY, PERSON
from tests.broker.erasure.erasing import erase
from tests.broker.erasure.faulty_env import Held
from tests.broker.erasure.records import Producer
from tests.waiting import wait_until

SCANNING = "waiting for readers of removed files"
"""The stage with which a certifying scan begins."""


class TimeLimit:
    """The timeout of a call with this value in ms: it expires when the test says so."""

    ms = 123_456

    def __init__(self, patched: pytest.MonkeyPatch) -> None:
        self._timeout: asyncio.Timeout | None = None
        real = asyncio.timeout

        def timeout(delay: float | None) -> asyncio.Timeout:
            made = real(delay)
            if delay == self.ms / 1000:
                self._timeout = made
            return made

        patched.setattr(asyncio, "timeout", timeout)

    def end(self) -> None:
        """Let the timeout expire."""
        assert self._timeout is not None
        self._timeout.reschedule(0)


async def told_at_its_limit(
    call: Coroutine[Any, Any, object], held: Held, limit: TimeLimit, queue: JobQueue[Any, Any]
) -> str:
    """Return the error of a call that times out while one of its steps is held; the step then continues."""
    waiting = asyncio.ensure_future(call)
    await wait_until(held.begun.is_set)
    limit.end()
    await wait_until(lambda: any(task.cancelling() for task in queue.attempts.running))
    held.go_on.set()
    with pytest.raises(TimedOut) as caught:
        await waiting
    return str(caught.value)


async def erase_in_vain(broker: Broker, patched: pytest.MonkeyPatch, *arguments: Any, **options: Any) -> Erasure:
    """Erase, and let the timeout expire after two compactions. Raises TimedOut unless the erasure ended before."""
    limit, rounds = TimeLimit(patched), 0

    def count(progress: Progress) -> None:
        nonlocal rounds
        rounds += progress.stage == "compacting" and progress.done == progress.total

    progress = Progress(count)
    call = asyncio.ensure_future(erase(broker, *arguments, timeout=f"{limit.ms}ms", progress=progress, **options))
    await wait_until(lambda: call.done() or rounds >= 2)
    if not call.done():
        limit.end()
    return await call


def at_stage(stage: str, act: Callable[[], object]) -> Progress:
    """Return the progress of a call, with an action at the beginning of each stage of that name."""
    seen = ""

    def look(progress: Progress) -> None:
        nonlocal seen
        if progress.stage != seen:
            seen = progress.stage
            if seen == stage:
                act()

    return Progress(look)


def stopped() -> None:
    """End the attempt at this point."""
    raise EraseFailed("stopped here")


def no_space(*_arguments: Any, **_options: Any) -> Any:
    """Raise the operating system's error for a full disk."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "somewhere")


def damage(broker: Broker, topic: str = "users", partition: int = 0, segment: int = 0) -> None:
    """Change a byte of a record in a segment of a partition; segments are numbered from 0."""
    path = sorted(data_of(broker).glob(f"{topic}-{partition}/*.log"))[segment]
    data = bytearray(path.read_bytes())
    data[80] ^= 1
    path.write_bytes(data)


def hold_up(broker: Broker, partition: int = 0) -> Producer:
    """Open a transaction with a value of the key; nothing after it can be cleaned until it ends."""
    producer = Producer(broker, "users", partition, 5)
    producer.write((KEY, PERSON))
    return producer
