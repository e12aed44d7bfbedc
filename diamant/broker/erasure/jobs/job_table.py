"""The unfinished jobs of one kind: their intents and certificates on disk, their due times, and counts of outcomes."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Generic

from diamant.broker.erasure.jobs.removal import IntentT
from diamant.cleaner.evidence.certificates.certificate import sign_certificate
from diamant.cleaner.evidence.certificates.files import certificate_path, conclude, name_pending
from diamant.cleaner.evidence.certificates.private_files import IntentFiles
from diamant.cleaner.evidence.certificates.signing_key import SigningKey
from diamant.json_types import JsonObject
from diamant.own_thread import to_its_end
from diamant.storage.certificate_states import LAST_STATES, NOT_CERTIFIED

if TYPE_CHECKING:
    from diamant.broker.node.node import Node

logger = logging.getLogger(__name__)

RETRY_MS = 60_000
"""The pause before an unfinished job is retried, on the broker's clock."""
MAX_RETRY_DOUBLINGS = 10
"""How many times this pause doubles, at most, for a job that cannot be certified: up to 17 hours."""
MAX_FAILURE_DOUBLINGS = 6
"""How many times this pause doubles, at most, if attempts fail before certification, as on a full disk: up to an hour."""
MAX_REMEMBERED = 1_000
"""The maximum number of IDs of ended jobs kept in memory."""

ID_BYTES = 16


class JobTable(Generic[IntentT]):
    """The unfinished jobs of one kind. Belongs to the loop thread."""

    def __init__(
        self,
        noun: str,
        files: IntentFiles[IntentT],
        node: Node,
        *,
        on_known: Callable[[IntentT, SigningKey], object] = lambda _intent, _key: None,
        on_finished: Callable[[str], object] = lambda _: None,
    ) -> None:
        """`noun` names the kind in messages. `on_known` is called with each intent on disk, `on_finished` with each ended ID."""
        self.noun = noun
        self.files = files
        self.on_known = on_known
        self._on_finished = on_finished
        self._clock = node.env.clock
        self._scheduler = node.scheduler
        self.due: dict[str, int] = {}
        """When to resume each job, by job ID."""
        self.busy: Counter[str] = Counter()
        """The number of holds on each job, by attempts, resumptions and cancellations. A job with a hold is not resumed."""
        self.are_resumed = False
        """True while due jobs are being resumed. Jobs that become due during that time wait, and are then resumed together."""
        self.unread: set[str] = set()
        """The jobs in `due` whose intents have not been read yet, because the key was not available at the start."""
        self.waits_for: dict[str, str] = {}
        """Descriptions of the open transactions for which jobs wait, by job ID."""
        self.failures: dict[str, int] = {}
        """The number of consecutive failed attempts since the start, by job ID."""
        self._over: deque[str] = deque(maxlen=MAX_REMEMBERED)
        self.done = 0
        """Since the start, the number of jobs that ended with everything certified."""
        self.failed = 0
        """Since the start, the number of jobs that ended without certifying everything."""
        self.held = 0
        """Since the start, the number of attempts that certified nothing, but whose jobs are resumed later."""

    async def ids_on_disk(self) -> list[str]:
        """Return the ids of the intents on disk."""
        return await asyncio.to_thread(self.files.ids)

    async def save(self, intent: IntentT, key: SigningKey, due_ms: int | None = None) -> None:
        """Write an intent to disk, and schedule its job for `due_ms` (default: after a pause). Completes even if cancelled."""

        async def save() -> None:
            await asyncio.to_thread(self.files.write, intent, key)
            self.on_known(intent, key)
            later_ms = self._clock.now_ms() + self.pause_ms(intent.id)
            self.schedule(intent.id, later_ms if due_ms is None else due_ms)

        await to_its_end(save())

    def schedule(self, job_id: str, due_ms: int) -> None:
        """Schedule a job to be resumed at `due_ms`."""
        self.due[job_id] = due_ms
        self._scheduler.poke()

    def hold(self, job_id: str) -> None:
        """Keep a job from being resumed until `release`."""
        self.busy[job_id] += 1

    def release(self, job_id: str) -> None:
        """End a hold. If the job became due during the hold, it is resumed now."""
        self.busy[job_id] -= 1
        if not self.busy[job_id]:
            del self.busy[job_id]
        self._scheduler.poke()

    def next_due_ms(self) -> int | None:
        """Return when the next job has to be resumed; None if no job is waiting, or while other jobs are being resumed."""
        if self.are_resumed:
            return None
        return min((due_ms for one, due_ms in self.due.items() if one not in self.busy), default=None)

    def due_now(self) -> list[str]:
        """Return the jobs to resume now, in order of their due times. Empty while other jobs are being resumed."""
        now_ms = self._clock.now_ms()
        due = [(due_ms, one) for one, due_ms in self.due.items() if due_ms <= now_ms and one not in self.busy]
        return [] if self.are_resumed else [one for _, one in sorted(due)]

    @contextmanager
    def resuming(self, job_ids: Sequence[str]) -> Iterator[None]:
        """Keep these jobs, and any that become due, from being resumed elsewhere while the block resumes them."""
        self.are_resumed = True
        for one in job_ids:
            self.hold(one)
        try:
            yield
        finally:
            self.are_resumed = False
            for one in job_ids:
                self.release(one)

    def pause_ms(self, job_id: str) -> int:
        """Return the default pause before the next attempt. It grows with each consecutive failure."""
        return RETRY_MS << min(self.failures.get(job_id, 0), MAX_FAILURE_DOUBLINGS)

    def retry_ms(self, retries: int) -> int:
        """Return the time of the next attempt after `retries` scans that certified nothing."""
        now_ms: int = self._clock.now_ms()
        return now_ms + (RETRY_MS << min(retries, MAX_RETRY_DOUBLINGS))

    def is_over(self, job_id: str) -> bool:
        """Return whether a job has ended recently."""
        return job_id in self._over

    def finish(self, job_id: str) -> None:
        """Forget a job whose intent was removed."""
        self.due.pop(job_id, None)
        self.waits_for.pop(job_id, None)
        self.unread.discard(job_id)
        self.failures.pop(job_id, None)
        self._over.append(job_id)
        self._on_finished(job_id)

    async def finish_ended(self, job_id: str) -> None:
        """Forget a job that an earlier attempt has ended. If its certificate still lacks its final name, rename it and log it."""
        files = self.files
        named = await to_its_end(asyncio.to_thread(name_pending, files.env, files.directory, job_id, files.prefix))
        self.finish(job_id)
        if named is not None:
            is_done = named.endswith(tuple(f".{state}.json" for state in LAST_STATES))
            self.done, self.failed = self.done + is_done, self.failed + (not is_done)
            logger.warning("%s %s has already ended; its certificate: %s", self.noun, job_id, named)

    async def drop(self, job_id: str) -> None:
        """Remove the intent of a job that has changed nothing, and count the job as failed."""
        await to_its_end(asyncio.to_thread(self.files.remove, job_id))
        self.finish(job_id)
        self.failed += 1

    async def issue(self, fields: Mapping[str, Any], key: SigningKey, *, is_last: bool) -> tuple[JsonObject, str]:
        """Sign a certificate with these fields, write it to disk, and return it with its path. `is_last`: also remove the intent.

        The writes complete even if the caller is cancelled. Raises OSError.
        """
        files, job_id = self.files, fields["id"]
        path = certificate_path(files.directory, job_id, fields["state"], files.prefix)

        def signed_text() -> tuple[JsonObject, bytes]:
            signed = sign_certificate(fields, key)
            return signed, json.dumps(signed, indent=1, sort_keys=True).encode()

        async def end() -> None:
            await asyncio.to_thread(conclude, files.env, path, text, partial(files.remove, job_id))
            self.finish(job_id)

        signed, text = await asyncio.to_thread(signed_text)
        await to_its_end(end() if is_last else asyncio.to_thread(files.env.write_atomically, path, text))
        return signed, path

    def count_certificate(self, state: str, *, has_ended: bool) -> None:
        """Count a certificate as done, failed or held, by its state. `has_ended`: its job ended without being completed."""
        if state in LAST_STATES:
            self.done += 1
        elif has_ended:
            self.failed += 1
        elif state == NOT_CERTIFIED:
            self.held += 1

    def note_failure(self, job_id: str) -> None:
        """Count a failed attempt as held if its job will be resumed, else as failed, unless the job was counted when it ended."""
        if job_id in self.due:
            self.held += 1
        elif not self.is_over(job_id):
            self.failed += 1

    def fate_of(self, job_id: str) -> str:
        """Return part of a message that says what becomes of a job whose caller no longer waits."""
        if job_id in self.due:
            return "it continues in the broker"
        return "it has ended just now, see its certificate" if self.is_over(job_id) else "nothing was changed"
