"""Groups of jobs that share scans. The jobs change records one after the other; then a single scan certifies all of them.

    group = JobGroup(scan, {"0f3a": "erase-key in customers", ...}, ...)
    async with group.turn("0f3a"):                a job works only during its turn
        report = await group.scan("0f3a", asked)  ends the turn, and scans once every member has asked for a scan or has left
    group.leave("0f3a")                           the job's attempt is over, with or without success

So one scan certifies a request about a dozen topics. If the tombstones are removed immediately as well, there are two scans: one
after the values are gone, and one after the tombstones are gone. Each job gets a report about its own subject.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeAlias

from diamant.progress import Progress

if TYPE_CHECKING:
    from diamant.broker.erasure.certification.evidence import ScanRequest
    from diamant.cleaner.evidence.scan.report import ScanReport
    from diamant.cleaner.redaction.hits import HitsByPartition

Scan: TypeAlias = "Callable[[Sequence[ScanRequest], Progress], Awaitable[list[ScanReport]]]"

MOST = 256
"""The maximum number of members of a group. A scan keeps separate findings for each of them in memory."""


class JobGroup:
    """The members of one group. Belongs to the loop thread."""

    def __init__(
        self, scan: Scan, names: Mapping[str, str], progress: Progress, hits: Mapping[str, HitsByPartition]
    ) -> None:
        """`names`: the names that the progress shows, by job ID. `hits`: the findings of an earlier search, by job ID."""
        self.hits = hits
        self._scan = scan
        self._names = names
        self._progress = progress
        self._members = set(names)
        self._asked: dict[asyncio.Future[ScanReport], ScanRequest] = {}
        self._lock = asyncio.Lock()
        self._holder: str | None = None
        self._begun = 0
        self._scans: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def turn(self, job_id: str) -> AsyncIterator[None]:
        """Run the block while no other member works. The job of the request itself is not a member, and does not wait."""
        if job_id not in self._names:
            yield
            return
        await self._take_turn(job_id)
        self._begun += 1
        self._progress.begin(f"{self._names[job_id]} ({self._begun} of {len(self._names)})")
        try:
            yield
        finally:
            self._end_turn(job_id)

    async def scan(self, job_id: str, asked: ScanRequest) -> ScanReport:
        """Scan together with all other members; return this one's report. If the scan fails, every member gets the error."""
        future: asyncio.Future[ScanReport] = asyncio.get_running_loop().create_future()
        self._asked[future] = asked
        self._end_turn(job_id)
        self._scan_if_all_ask()
        try:
            report = await future
        finally:
            self._asked.pop(future, None)
        await self._take_turn(job_id)
        return report

    def leave(self, job_id: str) -> None:
        """Remove a member, so that the others do not wait for it."""
        self._members.discard(job_id)
        self._scan_if_all_ask()

    async def end(self) -> None:
        """Cancel the scans in progress. Call this after all members have left."""
        for task in self._scans:
            task.cancel()
        await asyncio.gather(*self._scans, return_exceptions=True)

    async def _take_turn(self, job_id: str) -> None:
        await self._lock.acquire()
        self._holder = job_id

    def _end_turn(self, job_id: str) -> None:
        if self._holder == job_id:
            self._holder = None
            self._lock.release()

    def _scan_if_all_ask(self) -> None:
        if self._asked and len(self._asked) == len(self._members) and not self._scans:
            task = asyncio.get_running_loop().create_task(self._scan_for(dict(self._asked)))
            self._scans.add(task)
            task.add_done_callback(self._scanned)

    def _scanned(self, task: asyncio.Task[None]) -> None:
        self._scans.discard(task)
        self._scan_if_all_ask()

    async def _scan_for(self, asked: Mapping[asyncio.Future[ScanReport], ScanRequest]) -> None:
        try:
            reports = await self._scan([*asked.values()], self._progress)
        except BaseException as error:
            for future in asked:
                if not future.done():
                    future.cancel() if isinstance(error, asyncio.CancelledError) else future.set_exception(error)
            if isinstance(error, asyncio.CancelledError):
                raise
        else:
            for future, report in zip(asked, reports, strict=True):
                if not future.done():
                    future.set_result(report)
