"""Operations on erasures and redactions as a whole: list them with their certificates and the public key, and cancel one.

A cancelled job gets a certificate with the reason and without claims. A cancellation does not wait for its turn in the queue,
only for the end of the attempt that it interrupts. Once begun, it completes even if its caller has left.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from diamant.broker import certificate_texts
from diamant.broker.erasure.certification.certificates import Certificates
from diamant.broker.erasure.certification.erasure_requests import CancelRequest, CertificatesRequest
from diamant.broker.erasure.certification.signing_keys import reason_of
from diamant.broker.erasure.jobs.job_queue import JobQueue
from diamant.broker.erasure.jobs.removal import Ended, RemovalResult
from diamant.broker.operation_errors import BrokerStopping, NotFound, NotPossible
from diamant.cleaner.evidence.certificates.signing_key import SigningKey
from diamant.cleaner.evidence.search.needles import Needles
from diamant.progress import Progress
from diamant.storage.errors import StorageError


async def certificates(
    kept: Certificates, queues: Callable[[], Iterable[AnyQueue]], _request: CertificatesRequest, _progress: Progress
) -> Mapping[str, Any]:
    """Return all certificates, the unfinished jobs and the public key, as described at `Broker.certificates`."""
    public_key = problem = None
    try:
        public_key = await kept.public_key()
    except NotPossible as error:
        problem = str(error)
    return {
        "certificates": await kept.list_all(),
        "unfinished": [one for queue in queues() for one in await queue.unfinished_on_disk()],
        "public_key": public_key,
        "key_problem": problem,
    }


logger = logging.getLogger(__name__)

CANCELLED = "cancelled"
"""`ended.what` in the certificate of a job that a user has cancelled."""

AnyQueue: TypeAlias = JobQueue[Any, Any, Any]


async def cancel(
    queues: Callable[[], Iterable[AnyQueue]], request: CancelRequest, _progress: Progress
) -> RemovalResult:
    """Cancel an unfinished erasure or redaction, and return its uncertified result; see `Broker.cancel`."""
    job_id = request.id
    for queue in queues():
        found = await _begin(queue, job_id, request.reason)
        if found is not None:
            ended: RemovalResult = found
            return ended
    raise NotFound(
        f"there is no erasure or redaction {job_id[:64]!r} in progress, so nothing was cancelled: it has ended, or the "
        "id is wrong. The list of certificates shows the unfinished ones"
    )


async def _begin(queue: AnyQueue, job_id: str, reason: str) -> Any:
    """Cancel a job and return its result, or None if there is no such job. A stop of the broker waits until this is done."""
    certificate_texts.check_reason(reason, "")
    if queue.is_stopping:
        raise BrokerStopping("the broker is stopping, so nothing was cancelled")
    task = queue.loop.create_task(_cancel(queue, job_id, reason))
    queue.cancels.add(task)
    task.add_done_callback(queue.cancels.discard)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return await asyncio.shield(task)


async def _cancel(queue: AnyQueue, job_id: str, reason: str) -> Any:
    attempts = queue.attempts
    async with queue.cancel_lock:
        if job_id not in await queue.table.ids_on_disk():
            return None
        await _check_why(queue, job_id, reason, await queue.keys.usable())
        ending = attempts.ending[job_id] = queue.loop.create_future()
        queue.table.hold(job_id)
        is_cancelled = False
        try:
            await attempts.stop(job_id)
            found = await _end(queue, job_id, reason)
            is_cancelled = True
        finally:
            # Do this last. The caller of the attempt uses `ending` to learn whether the job was cancelled.
            del attempts.ending[job_id]
            ending.set_result(is_cancelled)
            queue.table.release(job_id)
    logger.info("%s %s: cancelled, not certified", queue.table.noun, job_id)
    return found


async def _check_why(queue: AnyQueue, job_id: str, reason: str, key: SigningKey) -> None:
    """Refuse a reason that must not appear in a certificate. Called before anything is stopped."""
    try:
        intent = await asyncio.to_thread(queue.table.files.read, job_id, key)
        sought, needles = queue.kind.sought(intent), Needles(key.secret, intent.needles)
    except (OSError, ValueError):
        return  # A job with an unreadable intent cannot be cancelled. `_end` raises that error.
    certificate_texts.check_unsaid("the reason", [reason], sought, needles)


async def _end(queue: AnyQueue, job_id: str, reason: str) -> Any:
    name = f"{queue.table.noun} {job_id}"
    ended = Ended(CANCELLED, queue.clock.now_ms(), reason)
    try:
        key = await queue.keys.key()
        intent = await asyncio.to_thread(queue.table.files.read, job_id, key)
        return await queue.give_up(intent, key, ended)
    except FileNotFoundError:
        raise NotFound(f"{name} has just ended: see its certificate") from None
    except ValueError as error:
        raise NotPossible(
            f"{name} cannot be read, so it cannot be cancelled ({error}): restore the key file and its secret, or remove "
            "the intent from the data directory yourself"
        ) from None
    except (StorageError, OSError) as error:
        raise queue.kind.failure(f"{name} could not be cancelled, it continues: {reason_of(error)}") from None
