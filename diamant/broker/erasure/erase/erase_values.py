"""Phase `removing` of an erasure: partitions are compacted until no value of the key is left.

If a wrong filter hides a value, the certifying scan finds the value and refuses the claim.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from diamant.broker.erasure.certification.evidence import Evidence
from diamant.broker.erasure.certification.scope import claims_of
from diamant.broker.erasure.jobs.removal import Removal
from diamant.broker.operation_errors import BrokerStopping, OperationError
from diamant.broker.operations.compactions.compactions import PARTITIONS_PER_TURN, CompactedBytes
from diamant.broker.transactions.open_in_log import oldest_open
from diamant.cleaner.erasure_state.intent import Erased, Intent
from diamant.cleaner.evidence.scan.report import VALUES_PRESENT
from diamant.cleaner.evidence.search.record_search import Subject
from diamant.cleaner.on_demand.report import OPEN_TRANSACTION
from diamant.cleaner.on_demand.request import CompactRequest
from diamant.own_thread import to_its_end
from diamant.progress import Progress
from diamant.storage.checkpoints.checkpoints import TopicPartition

if TYPE_CHECKING:
    from diamant.broker.node.cleaner import NodeCleaner
    from diamant.broker.operations.compactions.compactions import Compactions

logger = logging.getLogger(__name__)

ROUNDS = 5
"""The maximum number of compactions that an attempt makes. It does not apply while a caller waits and waiting may help."""
LOOK_AGAIN_S = 0.05
MAX_LOOK_AGAIN_S = 2.0
"""The pause between two compactions doubles from `LOOK_AGAIN_S` to `MAX_LOOK_AGAIN_S`."""
COMPACTIONS_AT_ONCE = 128


@dataclass(frozen=True, slots=True)
class EraseValues:
    """The part of an erasure that compacts partitions until no value of the key is left."""

    evidence: Evidence
    cleaning: NodeCleaner
    compactions: Compactions
    waits_for: dict[str, str]
    """The dictionary `JobTable.waits_for`."""

    async def remove(self, intent: Intent, removal: Removal[Subject]) -> Intent:
        """Compact until no value is left below the claims, at most `ROUNDS` times; return the intent with these steps.

        While a caller waits, this continues beyond `ROUNDS` if waiting may help.
        """
        left: Sequence[TopicPartition] = claims_of(intent, self.evidence.topics).affected
        rounds, pause_s = 0, LOOK_AGAIN_S
        while True:
            rounds += 1
            intent = await self.compact(intent, left, "clean", "compacting", removal.progress)
            intent = await self.remove_files(intent.with_done(left, compactions=rounds), left)
            report, digest = await self.evidence.look(removal.subject, left), removal.subject.key_digest.hex()
            # Leave out clean partitions, so that they are not compacted again while others are held up.
            left = [one for one in left if report.state(one, intent.claims.get(one, 0), digest) == VALUES_PRESENT]
            is_held = removal.is_patient and any(self._is_held(intent, one) for one in left)
            if not left or (rounds >= ROUNDS and not is_held):
                return intent
            self._show_transaction(intent, left, removal.progress)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, MAX_LOOK_AGAIN_S)

    def _show_transaction(self, intent: Intent, left: Sequence[TopicPartition], progress: Progress) -> None:
        """If an open transaction holds up one of the partitions, show it in the progress."""
        for one in left:
            log = self.evidence.logs.get(one)
            opened = None if log is None else oldest_open(log)
            if opened is not None and opened.first_offset < intent.claims.get(one, 0):
                progress.begin(f"waiting for {opened.text}, of {one[0]}-{one[1]}")
                return

    async def compact(
        self, intent: Intent, partitions: Sequence[TopicPartition], until: str, stage: str, progress: Progress
    ) -> Intent:
        """Compact partitions, several at a time to keep the cleaner busy, and return the intent with the steps done."""
        self.waits_for.pop(intent.id, None)
        steps, room = {**intent.done}, asyncio.Semaphore(COMPACTIONS_AT_ONCE)
        # Load the cleaner first: otherwise all tasks would wait for it and resume in the same turn.
        await self.compactions.counts()
        present = {one: log for one in partitions if (log := self.evidence.logs.get(one)) is not None}
        compacted = CompactedBytes(await self.cleaning.service(), present.values(), progress)
        compacted.begin(stage)

        async def compact(partition: TopicPartition) -> None:
            step = steps.get(partition, Erased())
            steps[partition] = await self._compact_one(intent, partition, until, step, compacted)

        try:
            async with asyncio.TaskGroup() as group:
                for count, partition in enumerate(present, start=1):
                    await room.acquire()
                    task = group.create_task(compact(partition))
                    task.add_done_callback(lambda _: room.release())
                    if count % PARTITIONS_PER_TURN == 0:
                        await asyncio.sleep(0)
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        finally:
            progress.end_measure()
        return replace(intent, done={partition: steps[partition] for partition in intent.done})

    async def _compact_one(
        self, intent: Intent, partition: TopicPartition, until: str, step: Erased, compacted: CompactedBytes
    ) -> Erased:
        """Compact one partition. Returns `step` with the runners that were used, or with the reason for the failure."""
        rounds = 0
        try:
            request = CompactRequest(
                *partition,
                until=until,
                force=intent.is_forced,
                wait=until == "clean",
                engine=intent.engine,
            )
            # Do not count records: an erasure does not need the counts, and counting would read all headers.
            report = (await self.compactions.compact(request, max_counted_bytes=0)).partitions[0]
            rounds = report.rounds
            if (held := report.held_back) is not None and held.reason == OPEN_TRANSACTION:
                self.waits_for[intent.id] = held.text(*partition)
            runners = tuple(dict.fromkeys([*(step.runners or ()), *report.runners]))
            step = replace(step, runners=runners, not_compacted=None)
        except BrokerStopping:
            raise
        except OperationError as error:
            # The partition is quarantined, uncleanable, no longer compacted, or deleted. The scan reports values left in it.
            step = replace(step, not_compacted=str(error))
            logger.warning("erasure %s: %s-%d cannot be compacted: %s", intent.id, *partition, error)
        compacted.is_over(*partition, rounds=rounds)
        return step

    def _is_held(self, intent: Intent, partition: TopicPartition) -> bool:
        """Return whether waiting may help: for an open transaction below the claim's end, or for `min.compaction.lag.ms`."""
        log = self.evidence.logs.get(partition)
        if log is None or not log.config.is_compacted:
            return False
        is_open = log.last_stable_offset < intent.claims.get(partition, 0)
        return is_open or (log.config.min_compaction_lag_ms > 0 and not intent.is_forced)

    async def remove_files(self, intent: Intent, partitions: Sequence[TopicPartition]) -> Intent:
        """Delete files that await deletion; return the intent with their counts. Completes even if the caller is cancelled."""
        work = asyncio.to_thread(self.evidence.remove_doomed, intent.topics, partitions)
        removed = await to_its_end(work)
        steps = {
            place: replace(step, files_removed_at_once=(step.files_removed_at_once or 0) + removed.get(place, 0))
            for place, step in intent.done.items()
        }
        return replace(intent, done=steps)
