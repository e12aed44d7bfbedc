"""Steps of an erasure between its scans: they remove values from the logs, and then the key.

A wrong filter may hide a record from these steps. The certifying scan then finds it, and there is no certificate.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from diamant.broker.client.errors import VerbError
from diamant.broker.erasure.erase.claims import affected, claim_ends, claims_there, steps_of
from diamant.broker.erasure.erase.erase_result import EraseFailed
from diamant.broker.erasure.erase.groups_behind import GroupsBehind
from diamant.broker.erasure.erase.tombstones import remove_tombstones
from diamant.broker.erasure.evidence.evidence import Evidence
from diamant.broker.erasure.jobs.job_table import JobTable
from diamant.broker.operations.blocking import in_thread, to_its_end
from diamant.broker.operations.compact import PARTITIONS_PER_TURN, BrokerStopping
from diamant.broker.operations.compacted_bytes import CompactedBytes
from diamant.broker.operations.progress import Progress
from diamant.cleaner.erasure.intent import Intent, Override
from diamant.cleaner.erasure.locate import filter_skip
from diamant.cleaner.evidence.certificates.signing_key import SigningKey
from diamant.cleaner.evidence.scan.file_listing import is_in_use
from diamant.cleaner.evidence.scan.report import VALUES_PRESENT
from diamant.cleaner.evidence.scan.scan import ScanReport, scan_partitions
from diamant.cleaner.evidence.search.findings import MAX_LISTED, TOMBSTONE
from diamant.cleaner.evidence.search.record_search import Subject
from diamant.cleaner.on_demand.request import CompactRequest
from diamant.storage import names
from diamant.storage.checkpoints.checkpoints import TopicPartition
from diamant.storage.errors import StorageError

if TYPE_CHECKING:
    from diamant.broker.node.cleaner import NodeCleaner
    from diamant.broker.operations.compact import Compactions

logger = logging.getLogger(__name__)

ROUNDS = 5
"""Compactions until the values are gone, unless a caller waits and time may help."""
LOOK_AGAIN_S = 0.05
MAX_LOOK_AGAIN_S = 2.0
"""While something is waited for the pause between two compactions grows from the one to the other."""
COMPACTIONS_AT_ONCE = 128
OVERRIDDEN = "delete.retention.ms was overridden: the tombstone went before its horizon"


class EraseSteps:
    """Compacts, and looks for what is left."""

    def __init__(
        self,
        evidence: Evidence,
        cleaning: NodeCleaner,
        compactions: Compactions,
        groups: GroupsBehind,
        table: JobTable[Intent],
    ) -> None:
        """`table` has the intents."""
        self._evidence = evidence
        self._cleaning = cleaning
        self._compactions = compactions
        self._groups = groups
        self._table = table

    # -- values ----------------------------------------------------------------------------------------------------------

    async def remove_values(self, intent: Intent, subject: Subject, progress: Progress, *, is_patient: bool) -> None:
        """Compact until no value is left below the claims, or until compaction cannot remove more.

        With `is_patient` a caller waits, and so does this method while time may help.
        """
        left, steps, ends = affected(intent, self._evidence.topics), steps_of(intent), claim_ends(intent)
        rounds, pause_s = 0, LOOK_AGAIN_S
        while True:
            await self._compact_all(intent, left, "clean", "compacting", progress)
            rounds += 1
            for partition in left:
                if partition in steps:
                    steps[partition]["compactions"] = rounds
            await self._remove_files(intent, left)
            # What is clean is not compacted again for the sake of others that are held up.
            left = await self._left(intent, subject, left)
            is_held = is_patient and any(self._is_held(intent, one, ends.get(one, 0)) for one in left)
            if not left or (rounds >= ROUNDS and not is_held):
                break
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, MAX_LOOK_AGAIN_S)

    async def _compact_all(
        self, intent: Intent, partitions: Sequence[TopicPartition], until: str, stage: str, progress: Progress
    ) -> None:
        """Compact partitions; some are always asked for, so that the cleaner need not look for other work in between."""
        steps, room = steps_of(intent), asyncio.Semaphore(COMPACTIONS_AT_ONCE)
        # It is loaded first: all that wait for it would otherwise resume in the same turn.
        await self._compactions.compactor()
        present = {one: log for one in partitions if (log := self._evidence.log(one)) is not None}
        compacted = CompactedBytes(await self._cleaning.service(), present.values())
        compacted.begin(progress, stage)
        try:
            async with asyncio.TaskGroup() as group:
                for count, partition in enumerate(present, start=1):
                    await room.acquire()
                    step = steps.get(partition, {})
                    task = group.create_task(self._compact(intent, partition, until, step, compacted))
                    task.add_done_callback(lambda _: room.release())
                    if count % PARTITIONS_PER_TURN == 0:
                        await asyncio.sleep(0)
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        finally:
            progress.end_measure()

    async def _compact(
        self, intent: Intent, partition: TopicPartition, until: str, step: dict[str, Any], compacted: CompactedBytes
    ) -> None:
        """Compact one partition; record the runner, or the reason of the failure, in `step`."""
        rounds = 0
        try:
            request = CompactRequest(
                *partition,
                until=until,
                is_forced=intent.is_forced,
                return_at_horizon=until != "clean",
                engine=intent.engine,
            )
            report = await self._compactions.compact(request)
            step.pop("not_compacted", None)
            rounds = report.partitions[0].rounds
            step["runners"] = list(dict.fromkeys([*step.get("runners", ()), *report.partitions[0].runners]))
        except BrokerStopping:
            raise
        except VerbError as error:
            # Quarantined, uncleanable, not compacted any more, deleted: the scan says what is left there.
            step["not_compacted"] = str(error)
            logger.warning("erasure %s: %s-%d cannot be compacted: %s", intent.id, *partition, error)
        compacted.is_over(*partition, rounds=rounds)

    async def _look(self, subject: Subject, partitions: Sequence[TopicPartition]) -> ScanReport:
        """Look for records of the key where it may be as far as filters know; the certifying scan tells whether they lie."""
        ends = self._evidence.ends()

        def look(check: Callable[[], object]) -> ScanReport:
            skip = filter_skip(self._evidence.env, subject.key, self._evidence.filter_key())
            return scan_partitions(
                self._evidence.env, self._evidence.directory, subject, ends, partitions, skip=skip, check=check
            )

        return await in_thread(look)

    async def _left(
        self, intent: Intent, subject: Subject, partitions: Sequence[TopicPartition]
    ) -> list[TopicPartition]:
        """Return the partitions that have a value below their claim's end still."""
        report = await self._look(subject, partitions)
        ends, digest = claim_ends(intent), subject.key_digest.hex()
        return [one for one in partitions if report.state(one, ends.get(one, 0), digest) == VALUES_PRESENT]

    def _is_held(self, intent: Intent, partition: TopicPartition, end: int) -> bool:
        """Tell whether time may help below the claim's end: an open transaction, or `min.compaction.lag.ms`."""
        log = self._evidence.log(partition)
        if log is None or not log.config.is_compacted:
            return False
        return log.last_stable_offset < end or (log.config.min_compaction_lag_ms > 0 and not intent.is_forced)

    # -- the key ---------------------------------------------------------------------------------------------------------

    async def remove_key(self, intent: Intent, subject: Subject, key: SigningKey, progress: Progress) -> None:
        """After the horizon, or with `is_now` before: have the tombstones go. EraseFailed, and a later time, if some are left."""
        partitions = affected(intent, self._evidence.topics)
        progress.begin("removing tombstones", len(partitions), "partitions")
        # If not all groups are known any more, as may be after a restart, the horizon counts again.
        intent.is_now = intent.is_now and not await self._groups.not_known()
        behind = await self._groups.behind(intent) if intent.is_now else {}
        # Perhaps no group was behind at the time of the request, and this may be a later attempt.
        intent.is_now = intent.is_now and (intent.is_confirmed or not behind)
        if intent.is_now:
            self._note_override(intent, partitions, behind)
            # Before a tombstone goes: stopped in between, the next attempt finds groups further on that have missed it.
            await to_its_end(asyncio.to_thread(self._table.files.write, intent, key))
            failure = await self._remove_now(intent, partitions, progress)
        else:
            await self._withdraw_overrides(intent, subject)
            failure = None
            await self._compact_all(intent, partitions, "tombstones-gone", "removing tombstones", progress)
        await self._remove_files(intent, partitions)
        if failure is not None:
            raise failure
        report = await self._look(subject, partitions)
        left = [
            one
            for claim in claims_there(intent, self._evidence.topics)
            for one in report.tombstones(claim.place, claim.below_offset)
        ]
        if left:
            now_ms = self._evidence.env.clock.now_ms()
            later = max((one.horizon_ms or 0 for one in left), default=0)
            if later > now_ms:
                intent.due_ms = later
            else:
                # Something keeps what may go; how long is unknown.
                intent.due_ms = self._table.retry_ms(intent.retries)
                intent.retries += 1
            pause_s = max(0, intent.due_ms - now_ms) // 1000
            raise EraseFailed(
                f"erasure {intent.id}: {len(left)} tombstones are still there, the next attempt is in {pause_s} s"
            )

    async def _remove_now(
        self, intent: Intent, partitions: Sequence[TopicPartition], progress: Progress
    ) -> StorageError | None:
        """Take tombstones away before their horizon; return why not all: a partition that refuses writes is in no other's way."""
        ends = claim_ends(intent)
        failure: StorageError | None = None
        for partition in partitions:
            log = self._evidence.log(partition)
            try:
                if log is not None:
                    await remove_tombstones(self._evidence.env, self._cleaning, log, intent.key, ends.get(partition, 0))
            except StorageError as error:
                if log is None or log.write_failure is None:
                    raise
                failure = failure or error
            progress.advance()
        return failure

    def _note_override(
        self, intent: Intent, partitions: Sequence[TopicPartition], behind: Mapping[str, list[str]]
    ) -> None:
        """Record that the horizon is overridden, and the groups concerned: those that were behind in any attempt."""
        steps, known = steps_of(intent), {one.place: one for one in intent.overrides}
        for topic, partition in partitions:
            if self._evidence.log((topic, partition)) is None:
                continue
            before = known[topic, partition].groups_that_had_not_passed_it if (topic, partition) in known else ()
            groups = {*before, *behind.get(names.partition_dir_name(topic, partition), ())}
            known[topic, partition] = Override(OVERRIDDEN, topic, partition, tuple(sorted(groups)[:MAX_LISTED]))
            if (topic, partition) in steps:
                steps[topic, partition]["removed_before_horizon"] = True
        intent.overrides = [*known.values()]

    async def _withdraw_overrides(self, intent: Intent, subject: Subject) -> None:
        """Undo overrides that removed nothing: a tombstone that is still there goes at its horizon."""
        if not intent.overrides:
            return
        steps, kept = steps_of(intent), []
        report = await self._look(subject, [one.place for one in intent.overrides])
        for override in intent.overrides:
            partition = override.place
            step = steps.get(partition, {})
            mark = step.get("tombstone_offset", step.get("tombstone_found_at"))
            tombstones = (one for one in report.of(partition) if one.what == TOMBSTONE)
            if mark is not None and any(one.offset == mark and is_in_use(one.file, *partition) for one in tombstones):
                step.pop("removed_before_horizon", None)
            else:
                kept.append(override)
        intent.overrides = kept

    # -- what both need --------------------------------------------------------------------------------------------------

    async def _remove_files(self, intent: Intent, partitions: Sequence[TopicPartition]) -> None:
        """Remove the files that wait to be deleted there. Once begun this runs to its end."""
        work = asyncio.to_thread(self._evidence.remove_doomed, intent.topics, partitions)
        removed = await to_its_end(work)
        for partition, step in steps_of(intent).items():
            step["files_removed_at_once"] = step.get("files_removed_at_once", 0) + removed.get(partition, 0)
