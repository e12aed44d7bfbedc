"""The queue of erasures and redactions: jobs that change segments, end with a certificate, and survive a restart of the broker.

Each job has an intent on disk until it ends. Unfinished jobs resume at the next start, or at their due time. A broker runs one
job at a time, of either kind. Bounds: `MAX_WAITING` waiting calls, `MAX_UNFINISHED` unfinished jobs.

A job that can never be certified is retried forever, with growing pauses, unless a user cancels it (`pending_jobs.py`).

Error messages and log lines never contain a key, a value or the condition of a request.
"""

from __future__ import annotations

import asyncio
import logging
import os
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from diamant.broker.erasure.certification.evidence import Evidence
from diamant.broker.erasure.certification.scope import Present, Scope, present_of, scope_of
from diamant.broker.erasure.certification.signing_keys import reason_of
from diamant.broker.erasure.jobs.attempts import Attempts, JobLock
from diamant.broker.erasure.jobs.job_group import MOST, JobGroup
from diamant.broker.erasure.jobs.job_table import ID_BYTES, RETRY_MS, JobTable
from diamant.broker.erasure.jobs.removal import Ended, IntentT, Removal, RemovalKind, ResultT, SubjectT
from diamant.broker.operation_errors import NotPossible, OperationError, TimedOut, TooMany
from diamant.broker.snapshots.snapshot_store import SnapshotFiles
from diamant.cleaner.evidence.certificates.files import tidy
from diamant.cleaner.evidence.certificates.signing_key import SigningKey
from diamant.json_types import JsonObject
from diamant.own_thread import to_its_end
from diamant.progress import Progress
from diamant.storage.env.clocks import SystemClock
from diamant.storage.errors import StorageError

if TYPE_CHECKING:
    from diamant.broker.erasure.certification.evidence import ScanRequest
    from diamant.broker.node.node import Node
    from diamant.cleaner.evidence.scan.report import ScanReport

logger = logging.getLogger(__name__)

DEFAULT_TIMEOUT_S = 600
MAX_WAITING = 64
MAX_UNFINISHED = 10_000

T = TypeVar("T")


class JobQueue(Generic[IntentT, SubjectT, ResultT]):
    """The jobs of one kind (erasures or redactions) in one broker. Belongs to the loop thread."""

    def __init__(
        self,
        kind: RemovalKind[IntentT, SubjectT, ResultT],
        table: JobTable[IntentT],
        evidence: Evidence,
        node: Node,
        lock: JobLock | None = None,
    ) -> None:
        """`lock`: the lock to share with the other kind, so that one job runs at a time; None to make a new one."""
        self.kind = kind
        self.table = table
        self.keys = evidence.keys
        self.loop = node.loop
        self.clock = node.env.clock
        self.attempts = Attempts(table, JobLock() if lock is None else lock)
        self.calls = 0
        """The number of calls that are waiting for their jobs."""
        self.is_stopping = False
        self.cancels: set[asyncio.Task[Any]] = set()
        """The cancellations in progress."""
        self.cancel_lock = asyncio.Lock()
        self._evidence = evidence
        self._resumed: set[asyncio.Task[None]] = set()

    # -- the broker's start and stop -------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Read the intents that an earlier run has left, and schedule their jobs."""
        table = self.table
        for path in await asyncio.to_thread(tidy, table.files.env, table.files.directory, table.files.prefix):
            logger.warning(
                "completed a job that an earlier stop interrupted after its last scan; its certificate: %s", path
            )
        ids = (await table.ids_on_disk())[:MAX_UNFINISHED]
        if not ids:
            return
        try:
            key = await self.keys.key()
        except (StorageError, OSError) as error:
            logger.error(
                "%d %ss are unfinished and cannot continue for now: %s", len(ids), table.noun, reason_of(error)
            )
            table.unread.update(ids)
            for job_id in ids:
                table.schedule(job_id, self.clock.now_ms() + RETRY_MS)
            return
        for job_id in ids:
            await self._read(job_id, key)

    async def _read(self, job_id: str, key: SigningKey) -> None:
        """Read an intent that an earlier run has left, and schedule its job, unless the intent is unreadable."""
        table = self.table
        table.unread.discard(job_id)
        try:
            intent = await asyncio.to_thread(table.files.read, job_id, key)
        except (ValueError, StorageError, OSError) as error:
            table.due.pop(job_id, None)
            logger.error("%s %s is unfinished and cannot be continued: %s", table.noun, job_id, error)
            return
        logger.warning("%s %s is unfinished (%s), it continues", table.noun, job_id, intent.phase)
        table.on_known(intent, key)
        due_ms = self.kind.due_ms(intent)
        table.schedule(job_id, self.clock.now_ms() if due_ms is None else due_ms)

    async def stop(self) -> None:
        """Cancel all attempts, and wait until they and the cancellations of jobs have ended. The intents remain on disk."""
        self.is_stopping = True
        tasks = [*self.attempts.running, *self._resumed]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *self.cancels, return_exceptions=True)

    # -- resuming --------------------------------------------------------------------------------------------------------

    async def resume_due(self) -> None:
        """Begin to resume the due jobs, unless the broker is stopping. Does not wait until they have ended (see `settled`)."""
        due = [] if self.is_stopping else self.table.due_now()[:MOST]
        if due:
            task = self.loop.create_task(self._try_all(due))
            self._resumed.add(task)
            task.add_done_callback(self._resumed.discard)

    async def settled(self) -> None:
        """Wait until the resumed jobs have ended or are due later. Returns early if calls wait, since they may come first."""
        while self._resumed and not self.calls:
            await asyncio.wait(set(self._resumed))

    async def _try_all(self, job_ids: Sequence[str]) -> None:
        """Make an attempt at each of these jobs. Several jobs share their scans if this kind allows it."""

        async def scan(asked: Sequence[ScanRequest], progress: Progress) -> list[ScanReport]:
            return await self._evidence.scan(asked, await self.keys.key(), progress)

        with self.table.resuming(job_ids):
            if len(job_ids) == 1 or not self.kind.shares_scans:
                await asyncio.gather(*(self._try(one) for one in job_ids), return_exceptions=True)
                return
            names = {one: f"{self.table.noun} {one}" for one in job_ids}
            group = JobGroup(scan, names, Progress(), {})
            lock = self.attempts.lock
            async with lock:
                lock.holder = names[job_ids[0]]
                try:
                    await asyncio.gather(*(self._try(one, group) for one in job_ids), return_exceptions=True)
                finally:
                    lock.holder = ""
                    await group.end()

    async def _try(self, job_id: str, group: JobGroup | None = None) -> None:
        table = self.table
        table.due[job_id] = self.clock.now_ms() + table.pause_ms(job_id)
        try:
            if job_id in table.unread:
                await self._read(job_id, await self.keys.key())
            elif job_id not in self.attempts.ending:
                await self.attempts.run(job_id, self._resume(job_id, group))
            table.failures.pop(job_id, None)
        except (OperationError, StorageError, OSError, ValueError) as error:
            self._note_failed_try(job_id, logging.WARNING, reason_of(error))
        except Exception as error:
            # The error message may contain record data, so log only the location.
            at = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{os.path.basename(at.filename)}:{at.lineno}, {at.name}"
            what = f"unexpected {type(error).__name__} at {where}; please report this"
            self._note_failed_try(job_id, logging.ERROR, what)
        finally:
            if group is not None:
                group.leave(job_id)

    async def _resume(self, job_id: str, group: JobGroup | None = None) -> None:
        async with self.attempts.locked(job_id, group):
            key = await self.keys.key()
            try:
                intent = await asyncio.to_thread(self.table.files.read, job_id, key)
            except FileNotFoundError:
                await self.table.finish_ended(job_id)
                return
            await self.carry_out(intent, key, group=group)

    def _note_failed_try(self, job_id: str, level: int, reason: str) -> None:
        table = self.table
        if job_id in table.due:
            table.held += 1
            table.failures[job_id] = table.failures.get(job_id, 0) + 1
            pause_s = max(0, table.due[job_id] - self.clock.now_ms()) // 1000
            logger.log(level, "%s %s: not finished, next attempt in %d s: %s", table.noun, job_id, pause_s, reason)

    async def carry_out(
        self,
        intent: IntentT,
        key: SigningKey,
        progress: Progress | None = None,
        *,
        is_new: bool = False,
        group: JobGroup | None = None,
    ) -> ResultT:
        """Carry out a job from its current phase on, or end it if its topics were deleted. The caller must hold the lock."""
        intent, removal, present = self._attempt(intent, key, progress, is_new=is_new, group=group)
        gone = [one.topic for one in present.ended]
        for topic in gone:
            logger.warning("%s %s: topic %s was deleted and is no longer covered", self.table.noun, intent.id, topic)
        if present.topics:
            return await self.kind.carry_out(intent, removal)
        await to_its_end(asyncio.to_thread(self._evidence.remove_doomed, gone, []))
        ended = Ended(self.kind.deleted(present), self.clock.now_ms())
        return await self.kind.end(intent, removal, ended, is_scanned=True)

    async def give_up(self, intent: IntentT, key: SigningKey, ended: Ended) -> ResultT:
        """End a job without changing any records. Its certificate records `ended`."""
        intent, removal, _ = self._attempt(intent, key)
        return await self.kind.end(intent, removal, ended)

    def _attempt(
        self,
        intent: IntentT,
        key: SigningKey,
        progress: Progress | None = None,
        *,
        is_new: bool = False,
        group: JobGroup | None = None,
    ) -> tuple[IntentT, Removal[SubjectT], Present]:
        is_manual = intent.is_manual_clock or not isinstance(self.clock, SystemClock)
        present = present_of(self._evidence.topics, intent)
        subject = self.kind.subject(intent, key, present.topics)
        removal = Removal(key, subject, progress or Progress(), progress is not None, is_new, group)
        return intent.changed(is_manual_clock=is_manual), removal, present

    # -- calls -----------------------------------------------------------------------------------------------------------

    @contextmanager
    def call(self, group: JobGroup | None = None, *, is_new: bool = True) -> Iterator[None]:
        """Count a call during the block. Jobs of a group are not counted, since their request is. Raises TooMany at the limit."""
        is_full = self.calls >= MAX_WAITING and group is None
        if is_full or (is_new and len(self.table.due) >= MAX_UNFINISHED):
            raise TooMany(f"too many {self.table.noun}s are waiting: try again when some of them have ended")
        self.calls += group is None
        try:
            yield
        finally:
            self.calls -= group is None

    async def begin(
        self,
        topics: Sequence[str],
        intent_of: Callable[[str, Scope], IntentT],
        timeout_s: float | None,
        progress: Progress,
        check: Callable[[Progress], Awaitable[None]] | None = None,
        *,
        job_id: str | None = None,
        group: JobGroup | None = None,
    ) -> ResultT:
        """Begin a job about some topics and carry it out for its caller. Every failure is raised as an OperationError.

        `intent_of` makes the intent from the job's ID and scope. `check` may refuse the job before it waits for its turn.
        `job_id`: None for a new ID. `group`: a group, holding the lock, that the job joins in order to share scans.
        """

        async def first(intent: IntentT, key: SigningKey) -> ResultT:
            if check is not None:
                await check(progress)
            async with self.attempts.locked(intent.id, group):
                return await self.carry_out(intent, key, progress, is_new=True, group=group)

        with self.call(group):
            SnapshotFiles(self._evidence.env, self._evidence.directory).check_none()
            scope = scope_of(self._evidence.topics, topics)
            key = await self.keys.usable()
            intent = intent_of(job_id or os.urandom(ID_BYTES).hex(), scope)
            return await self.run(intent.id, timeout_s, first(intent, key))

    def is_attempting(self, job_id: str) -> bool:
        """Return whether an attempt at a job is in progress or waiting for the lock."""
        return job_id in self.table.busy or job_id in self.attempts.waiting

    async def catch_up(self, job_id: str, group: JobGroup) -> None:
        """If an unfinished job is due, make an attempt at it. Raises the errors of the attempt."""
        if self.table.due.get(job_id, 0) <= self.clock.now_ms():
            await self.attempts.run(job_id, self._resume(job_id, group))

    async def run(self, job_id: str, timeout_s: float | None, work: Coroutine[Any, Any, T]) -> T:
        """Run work for which a caller waits. Raises an OperationError for any failure, and after `timeout_s` (None: default)."""
        limit_s = DEFAULT_TIMEOUT_S if timeout_s is None else timeout_s
        attempts, table, name = self.attempts, self.table, f"{self.table.noun} {job_id}"
        try:
            async with asyncio.timeout(limit_s):
                return await attempts.run(job_id, work)
        except TimeoutError:
            table.note_failure(job_id)
            raise TimedOut(
                f"{name} was not certified within {limit_s:g} s{attempts.other_holder(job_id)}; {table.fate_of(job_id)}"
            ) from None
        except asyncio.CancelledError:
            ending = attempts.ending.get(job_id)
            if ending is None or self._is_caller_cancelled():
                raise
            await asyncio.wait({ending})
            if not ending.result():
                table.note_failure(job_id)
                raise self.kind.failure(
                    f"{name} is being cancelled, which has ended this attempt; {table.fate_of(job_id)}"
                ) from None
            raise NotPossible(f"{name} was cancelled, it is not certified") from None
        except (StorageError, OSError) as error:
            table.note_failure(job_id)
            raise self.kind.failure(f"{name} could not continue: {reason_of(error)}") from None
        except OperationError:
            table.note_failure(job_id)
            raise
        finally:
            attempts.waiting.discard(job_id)

    def _is_caller_cancelled(self) -> bool:
        """Return whether the caller itself was cancelled, and not only the task that it awaits."""
        task = asyncio.current_task()
        return self.is_stopping or (task is not None and task.cancelling() > 0)

    # -- lists -----------------------------------------------------------------------------------------------------------

    def unfinished(self) -> list[JsonObject]:
        """Return the unfinished jobs that will be resumed."""
        return [self._row(one) for one in sorted(self.table.due)]

    async def unfinished_on_disk(self) -> list[JsonObject]:
        """Return all unfinished jobs. `due_ms` is None for a job that is not resumed because its intent cannot be read."""
        table = self.table
        found = await table.ids_on_disk()
        ids = {one for one in found if not table.is_over(one)} | set(table.due)
        return [self._row(one) for one in sorted(ids)]

    def _row(self, job_id: str) -> JsonObject:
        table = self.table
        due_ms, waits_for = table.due.get(job_id), table.waits_for.get(job_id)
        return {"id": job_id, "kind": table.noun, "due_ms": due_ms, "waits_for": waits_for}
