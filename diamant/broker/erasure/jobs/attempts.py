"""Attempts at jobs. One attempt holds the lock and makes progress; others wait for the lock, or are being cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from diamant.broker.erasure.jobs.job_table import JobTable

if TYPE_CHECKING:
    from diamant.broker.erasure.jobs.job_group import JobGroup

T = TypeVar("T")


class JobLock(asyncio.Lock):
    """The lock that jobs of all kinds share: only its holder makes progress."""

    holder = ""
    """The kind and id of the job that holds the lock."""


class Attempts:
    """The attempts at jobs of one kind. Belongs to the loop thread."""

    def __init__(self, table: JobTable[Any], lock: JobLock) -> None:
        """`lock`: the lock that all kinds share."""
        self._table = table
        self.lock = lock
        self.waiting: set[str] = set()
        """The jobs that wait for the lock, or that were waiting for it when their caller left."""
        self.running: dict[asyncio.Task[Any], str] = {}
        """The attempts in progress, each with the ID of its job."""
        self.ending: dict[str, asyncio.Future[bool]] = {}
        """The jobs that are being cancelled; they are not resumed. The result of the future is whether the job was cancelled."""

    @asynccontextmanager
    async def locked(self, job_id: str, group: JobGroup | None = None) -> AsyncIterator[None]:
        """Run the block under the lock, or in a turn of the group that holds it. During the block, the job is not resumed."""
        self.waiting.add(job_id)
        async with self.lock if group is None else group.turn(job_id):
            self.waiting.discard(job_id)
            self._table.hold(job_id)
            if group is None:
                self.lock.holder = f"{self._table.noun} {job_id}"
            try:
                yield
            finally:
                if group is None:
                    self.lock.holder = ""
                self._table.release(job_id)

    async def run(self, job_id: str, work: Coroutine[Any, Any, T]) -> T:
        """Run an attempt as a task, so that cancelling the job can end it; return the attempt's result."""
        task = asyncio.get_running_loop().create_task(work)
        self.running[task] = job_id
        try:
            return await task
        finally:
            del self.running[task]

    async def stop(self, job_id: str) -> None:
        """End the attempts at a job and wait for them, including their writes to disk."""
        attempts = {task for task, one in self.running.items() if one == job_id}
        for task in attempts:
            task.cancel()
        if attempts:
            await asyncio.wait(attempts)

    def other_holder(self, job_id: str) -> str:
        """Return part of a message that names the job for which this job waits; "" if it does not wait."""
        if job_id not in self.waiting or not self.lock.holder:
            return ""
        return f" because it waits for {self.lock.holder}, which is in progress (cancel that one if it hangs)"
