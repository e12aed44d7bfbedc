"""The jobs of one request, which change records one after the other and are proved by one scan.

    group = JobGroup(scan, {"0f3a": "erase-key in customers", ...})
    async with group.turn("0f3a"):           a member works while it has its turn
        report = await group.scan(asked)     lets the others work, and waits until all of them ask for a scan, or have left
    group.leave("0f3a")                      its attempt is over, however it has ended

So a request about a dozen topics is certified by one scan, or by two if keys are to be removed at once, since jobs also share the
scan that they ask for after removing their tombstones. Each job still gets a report about its own subject.
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
"""The most members of a group. A scan keeps findings about each of them."""


class JobGroup:
    """The members of one group. Belongs to the loop thread."""

    def __init__(
        self, scan: Scan, names: Mapping[str, str], progress: Progress, hits: Mapping[str, HitsByPartition]
    ) -> None:
        """`names`: the members' names for the progress, by job id. `hits`: the findings of an earlier search, by job id."""
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
        """Work as the only member. A job whose parts are the members needs no turn."""
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
        """Scan for all members together; return the report about this one's subject. A failure of the scan is raised for each."""
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
        """End the membership of a job."""
        self._members.discard(job_id)
        self._scan_if_all_ask()

    async def end(self) -> None:
        """Cancel the scans in progress. The members have left."""
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
