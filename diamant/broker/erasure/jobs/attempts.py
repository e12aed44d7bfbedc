"""The attempts in progress at jobs: one has the lock, others wait for it, some are being cancelled."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

T = TypeVar("T")


class JobLock(asyncio.Lock):
    """The lock of the one job that is in progress, of whatever kind."""

    holder = ""
    """The job that has it: its kind and id."""


class Attempts:
    """The attempts at jobs of one kind. Belongs to the loop thread."""

    def __init__(self, noun: str, lock: JobLock) -> None:
        """`lock`: the same for all kinds."""
        self._noun = noun
        self.lock = lock
        self.waiting: set[str] = set()
        """Jobs that wait for the lock, or did when their caller ceased to wait."""
        self.running: dict[asyncio.Task[Any], str] = {}
        """Attempts in progress, and the ids of their jobs."""
        self.ending: dict[str, asyncio.Future[bool]] = {}
        """Jobs that are being cancelled: they are not resumed. The future tells whether they were cancelled."""
        self.in_progress: Counter[str] = Counter()
        """Attempts that have the lock, or wait for it to resume a job; by id."""

    @property
    def is_at_work(self) -> bool:
        """True if a job is in progress, or waits for the lock to be resumed."""
        return bool(self.in_progress)

    def enter(self, job_id: str) -> None:
        """Count an attempt as in progress until `leave`."""
        self.in_progress[job_id] += 1

    def leave(self, job_id: str) -> None:
        """Count it as over."""
        self.in_progress[job_id] -= 1
        if not self.in_progress[job_id]:
            del self.in_progress[job_id]

    @asynccontextmanager
    async def locked(self, job_id: str) -> AsyncIterator[None]:
        """Hold the lock; the job is not resumed as long."""
        self.waiting.add(job_id)
        async with self.lock:
            self.waiting.discard(job_id)
            self.enter(job_id)
            self.lock.holder = f"{self._noun} {job_id}"
            try:
                yield
            finally:
                self.lock.holder = ""
                self.leave(job_id)

    async def run(self, job_id: str, work: Coroutine[Any, Any, T]) -> T:
        """Run an attempt as a task, which a cancellation of the job may end."""
        task = asyncio.get_running_loop().create_task(work)
        self.running[task] = job_id
        try:
            return await task
        finally:
            del self.running[task]

    async def stop(self, job_id: str) -> None:
        """End the attempts at a job. Their writes to the disk are finished when they are."""
        attempts = {task for task, one in self.running.items() if one == job_id}
        for task in attempts:
            task.cancel()
        if attempts:
            await asyncio.wait(attempts)

    def other_holder(self, job_id: str) -> str:
        """Return, in words, which job has the lock that this one waits for; "" if it does not wait."""
        if job_id not in self.waiting or not self.lock.holder:
            return ""
        return f", as its turn has not come: {self.lock.holder} is in progress (cancelling that ends it, if it hangs)"
