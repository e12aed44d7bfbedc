"""Jobs: HTTP calls that may take longer than their callers wait.

POST <verb>?wait_ms=5000    200 with the result if the job ends in time, else 202 with the job
GET  /v1/jobs               the jobs kept, without their results
GET  /v1/jobs/<id>          one job; ?wait_ms=5000 waits up to 5 s for its end
DELETE /v1/jobs/<id>        cancel a job that can stop halfway (`Route.can_be_ended`) and has started no erasure or redaction

A job runs whether or not a caller waits for it, but ends when the broker stops. `JobLimits` bounds the number of jobs, the number
of waiting callers, and the total size of the results.

A job never shows the key or value of a record. The result fields that hold keys or values (`Route.not_kept`) are returned only
by the POST: in the job they are null, and they are dropped when the caller of the POST stops waiting. The list of jobs has no
results. A result that the POST has returned is dropped; any other result is kept for a while.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypedDict

from diamant.broker.http.serving.json_body import JsonError
from diamant.broker.http.serving.limits import DEFAULT_LIMITS, JobLimits
from diamant.broker.operation_errors import NotFound, NotPossible, OperationError, TooMany
from diamant.json_types import JsonObject
from diamant.kernels import KernelsMissing
from diamant.progress import Progress
from diamant.storage.env.clocks import SystemClock

logger = logging.getLogger(__name__)

DEFAULT_WAIT_MS = 5_000
MAX_WAIT_MS = 60_000

RUNNING, DONE, FAILED = "running", "done", "failed"

_real_clock = SystemClock()


class ErrorFields(TypedDict):
    """The JSON fields of a failure. `error`: a sentence. `status`: the HTTP status."""

    error: str
    code: str
    status: int


def error_fields(error: BaseException) -> ErrorFields:
    """Return a failure for JSON. An unexpected failure has no details."""
    if isinstance(error, OperationError | JsonError):
        return {"error": str(error), "code": error.code, "status": error.status}
    if isinstance(error, KernelsMissing):
        return {"error": str(error), "code": "kernels-missing", "status": 501}
    if isinstance(error, asyncio.CancelledError):
        return {"error": "the broker stops", "code": "stopping", "status": 503}
    return {"error": "internal error, see the broker's log", "code": "internal", "status": 500}


class HttpJob:
    """One job. `state` is running, done or failed."""

    def __init__(self, number: int, verb: str, not_kept: Sequence[str] = (), *, can_be_ended: bool = False) -> None:
        self.id = str(number)
        self._can_be_ended = can_be_ended
        self.is_ended = False
        """True once a caller has cancelled it."""
        self._not_kept = not_kept
        self._is_left = False
        self.verb = verb
        self.progress = Progress()
        self.state = RUNNING
        self.started_ms = _real_clock.now_ms()
        self.ended_ms: int | None = None
        self.result: Mapping[str, Any] | None = None
        """The result of a finished job, while it is kept."""
        self.error: ErrorFields | None = None
        self.result_bytes = 0
        self.task: asyncio.Task[None] | None = None

    def forget_result(self) -> None:
        """Drop the result, but record that there was one."""
        self.result, self.result_bytes = None, 0

    def leave(self) -> None:
        """Drop the fields that only the POST may return. Call this when its caller has stopped waiting."""
        self._is_left = True
        self.result = self._kept

    @property
    def _kept(self) -> Mapping[str, Any] | None:
        if self.result is None or not self._not_kept:
            return self.result
        return {**self.result, **{name: None for name in self._not_kept if name in self.result}}

    def end(self, result: Mapping[str, Any]) -> None:
        """Mark the job done."""
        self.result, self.state = result, DONE
        self.result_bytes = len(json.dumps(result))
        if self._is_left:
            self.result = self._kept

    @property
    def can_be_ended(self) -> bool:
        """True if the job may be cancelled. It may not once it has started an erasure, which would continue by itself."""
        return self._can_be_ended and self.progress.job_id is None and self.state == RUNNING

    @property
    def href(self) -> str:
        """The path of the job's status."""
        return f"/v1/jobs/{self.id}"

    def to_fields(self, *, with_result: bool = True) -> JsonObject:
        """Return the job for JSON. Times are those of the real clock."""
        fields: JsonObject = {
            "id": self.id,
            "href": self.href,
            "verb": self.verb,
            "state": self.state,
            "progress": self.progress.to_fields(),
            "undertaking": self.progress.job_id,
            "can_be_ended": self.can_be_ended,
            "started_ms": self.started_ms,
            "ended_ms": self.ended_ms,
        }
        if with_result:
            fields["is_result_kept"] = self.result is not None
            fields["result"] = self._kept
            fields["error"] = self.error
        return fields


class Jobs:
    """The jobs of a broker. Belongs to the loop thread."""

    def __init__(self, limits: JobLimits = DEFAULT_LIMITS.jobs) -> None:
        self._limits = limits
        self._by_id: dict[str, HttpJob] = {}
        self._last = 0
        self._waiters = 0
        self._forgetting: dict[str, asyncio.TimerHandle] = {}
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, job_id: object) -> bool:
        return job_id in self._by_id

    def list(self) -> list[HttpJob]:
        """Return all jobs kept, latest first."""
        return list(reversed(self._by_id.values()))

    def get(self, job_id: str) -> HttpJob:
        """Return one job. Raises NotFound."""
        found = self._by_id.get(job_id)
        if found is None:
            raise NotFound(
                f"there is no such job: only the last {self._limits.most} are kept, and only until the broker stops"
            )
        return found

    def begin(
        self,
        verb: str,
        run: Callable[[Progress], Awaitable[Mapping[str, Any]]],
        not_kept: Sequence[str] = (),
        *,
        can_be_ended: bool = False,
    ) -> HttpJob:
        """Start a job. `verb` names it, without keys or values; `not_kept`: result fields with keys or values. Raises TooMany."""
        if self._is_closed:
            raise asyncio.CancelledError
        self._make_room()
        self._last += 1
        job = self._by_id[str(self._last)] = HttpJob(self._last, verb, not_kept, can_be_ended=can_be_ended)
        job.task = asyncio.get_running_loop().create_task(self._run(job, run))
        return job

    async def wait(self, job: HttpJob, wait_ms: int) -> None:
        """Wait at most `wait_ms` for a job to end. Return immediately if too many callers are already waiting."""
        if job.task is None or job.state != RUNNING or not wait_ms or self._waiters >= self._limits.waiting:
            return
        self._waiters += 1
        try:
            await asyncio.wait({job.task}, timeout=wait_ms / 1000)
        finally:
            self._waiters -= 1

    async def end(self, job: HttpJob) -> None:
        """Cancel an unfinished job. Raises NotPossible."""
        if job.state != RUNNING or job.task is None:
            return
        if not job.can_be_ended:
            job_id = job.progress.job_id
            how = "wait for its end" if job_id is None else f"POST /v1/cancel cancels {job_id}"
            raise NotPossible(f"job {job.id}, {job.verb}, cannot be cancelled halfway: {how}")
        job.is_ended = True
        job.task.cancel()
        await asyncio.wait({job.task})

    def take_result(self, job: HttpJob) -> Mapping[str, Any]:
        """Return the result of a finished job to the caller that started it, and drop it."""
        result = job.result
        assert result is not None
        job.forget_result()
        return result

    async def close(self) -> None:
        """Cancel all jobs, and refuse new ones."""
        self._is_closed = True
        tasks = [job.task for job in self._by_id.values() if job.task is not None and not job.task.done()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for timer in self._forgetting.values():
            timer.cancel()
        for job in self._by_id.values():
            if job.state == RUNNING:  # cancelled before it could start
                job.error, job.state = error_fields(asyncio.CancelledError()), FAILED

    async def _run(self, job: HttpJob, run: Callable[[Progress], Awaitable[Mapping[str, Any]]]) -> None:
        try:
            job.end(await run(job.progress))
            self._forgetting[job.id] = asyncio.get_running_loop().call_later(
                self._limits.keep_result_s, self._forget_result, job
            )
        except asyncio.CancelledError as error:
            ended = NotPossible(f"job {job.id}, {job.verb}, was cancelled before its end")
            job.error, job.state = error_fields(ended if job.is_ended else error), FAILED
        except Exception as error:
            if not isinstance(error, OperationError | JsonError):
                logger.exception("job %s, %s, failed", job.id, job.verb)
            job.error, job.state = error_fields(error), FAILED
        job.ended_ms = _real_clock.now_ms()
        self._trim_results(job)

    def _make_room(self) -> None:
        if len(self._by_id) < self._limits.most:
            return
        over = next((job.id for job in self._by_id.values() if job.state != RUNNING), None)
        if over is None:
            raise TooMany(f"{self._limits.most} jobs are in progress: wait for one to end")
        self._forget(over)

    def _trim_results(self, latest: HttpJob) -> None:
        """Discard the oldest finished jobs, except `latest`, until the remaining results are within the limit."""
        total = sum(job.result_bytes for job in self._by_id.values())
        for job in [*self._by_id.values()]:
            if total <= self._limits.result_bytes:
                return
            if job is not latest and job.state != RUNNING:
                total -= job.result_bytes
                self._forget(job.id)

    def _forget(self, job_id: str) -> None:
        del self._by_id[job_id]
        timer = self._forgetting.pop(job_id, None)
        if timer is not None:
            timer.cancel()

    def _forget_result(self, job: HttpJob) -> None:
        self._forgetting.pop(job.id, None)
        job.forget_result()
