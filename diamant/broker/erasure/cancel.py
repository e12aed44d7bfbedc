"""Cancels an unfinished erasure or redaction: removes its intent, and certifies the reason and that nothing is claimed.

A cancellation waits for the attempt that it ends, but not in the queue. Once begun it runs to its end, even if its
caller is gone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

from diamant.broker.client.errors import NotFound, NotPossible
from diamant.broker.erasure.job_queue import Undertakings, reason_of
from diamant.broker.operations.compact import BrokerStopping
from diamant.broker.operations.cross_loop import on_loop
from diamant.cleaner.evidence.certificates.signing_key import SigningKey
from diamant.storage.errors import StorageError

logger = logging.getLogger(__name__)

CANCELLED = "cancelled"
"""In a certificate, `ended.what` of one that its user has cancelled."""


class Cancelling(Undertakings):
    """Jobs that can be cancelled."""

    # -- any loop --------------------------------------------------------------------------------------------------------

    async def cancel(self, intent_id: str, *, reason: str) -> Any:
        """End one that is not over, and return what is said of it then; see `Broker.cancel`. None if there is none."""
        return await on_loop(self._loop, lambda: self._begin_cancelling(intent_id, reason))

    # -- the loop thread -------------------------------------------------------------------------------------------------

    async def _begin_cancelling(self, intent_id: str, reason: str) -> Any:
        """Cancel it; once begun this runs to its end, even without a caller, and the broker's stop waits for it."""
        self._check_reason(reason, "")
        if self._is_stopping:
            raise BrokerStopping("the broker is stopping, nothing was cancelled")
        task = self._loop.create_task(self._cancel(intent_id, reason))
        self._cancels.add(task)
        task.add_done_callback(self._cancels.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(task)

    async def _cancel(self, intent_id: str, reason: str) -> Any:
        async with self._cancel_turn:
            if intent_id not in await asyncio.to_thread(self._unfinished_ids):
                return None
            await self._check_why_cancelled(intent_id, reason, await self._usable_key())
            ending = self._ending[intent_id] = self._loop.create_future()
            is_cancelled = False
            try:
                await self._stop_attempts(intent_id)
                found = await self._end_cancelled(intent_id, reason)
                is_cancelled = True
            finally:
                # Not before: the attempt's caller learns what has become of it.
                del self._ending[intent_id]
                ending.set_result(is_cancelled)
                self._node.scheduler.poke()
        logger.info("%s %s: cancelled, not certified", self.noun, intent_id)
        return found

    async def _check_why_cancelled(self, intent_id: str, reason: str, key: SigningKey) -> None:
        """Refuse a reason that must not stand in a certificate, before anything is stopped for it."""
        try:
            intent = await asyncio.to_thread(self._read_unfinished, intent_id, key)
            sought, needles = self._sought(intent, key)
        except (OSError, ValueError):
            return  # An unreadable intent cannot be cancelled either; the caller gets that error.
        self._check_unsaid("the reason", [reason], sought, needles)

    async def _stop_attempts(self, intent_id: str) -> None:
        """End the attempts in progress. Their writes to the disk are finished when they are."""
        attempts = {task for task, one in self._running.items() if one == intent_id}
        for task in attempts:
            task.cancel()
        if attempts:
            await asyncio.wait(attempts)

    async def _end_cancelled(self, intent_id: str, reason: str) -> Any:
        ended = {"what": CANCELLED, "reason": reason, "at_ms": self._env.clock.now_ms()}
        try:
            return await self._give_up(intent_id, ended)
        except FileNotFoundError:
            raise NotFound(f"{self.noun} {intent_id} has just ended: see its certificate") from None
        except ValueError as error:
            raise NotPossible(
                f"{self.noun} {intent_id} cannot be read, so nothing can be said of it ({error}): bring back the key file "
                "and its secret, or remove the intent from the data directory yourself"
            ) from None
        except (StorageError, OSError) as error:
            raise self.failure(
                f"{self.noun} {intent_id} could not be cancelled, it continues: {reason_of(error)}"
            ) from None


async def cancel_job(queues: Iterable[Cancelling], intent_id: str, *, reason: str) -> Any:
    """End one that is not over, of whatever kind; see `Broker.cancel`. From any event loop."""
    for queue in queues:
        found = await queue.cancel(intent_id, reason=reason)
        if found is not None:
            return found
    raise NotFound(
        f"there is no erasure or redaction {intent_id[:64]!r} in progress, so nothing was cancelled: it has ended, or has "
        "another id. GET /v1/certificates lists those that are unfinished"
    )
