"""Steps of an erasure between its scans: they remove the values from the logs, then the key.

A wrong filter may hide a record from these steps. The certifying scan then finds the record, and refuses the claim.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from diamant.broker.client.errors import VerbError
from diamant.broker.erasure.erase.claims import Claims, claims_of
from diamant.broker.erasure.erase.groups_behind import GroupsBehind
from diamant.broker.erasure.erase.tombstones import remove_tombstones
from diamant.broker.erasure.evidence.evidence import Evidence
from diamant.broker.erasure.jobs.job_table import JobTable
from diamant.broker.operations.calls.blocking import in_thread, to_its_end
from diamant.broker.operations.calls.progress import Progress
from diamant.broker.operations.compactions.compact import PARTITIONS_PER_TURN, BrokerStopping
from diamant.broker.operations.compactions.compacted_bytes import CompactedBytes
from diamant.cleaner.erasure.intent import Erased, Intent
from diamant.cleaner.erasure.locate import filter_skip
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
    from diamant.broker.operations.compactions.compact import Compactions
    from diamant.cleaner.runners.swap_holds import SwapHolds

logger = logging.getLogger(__name__)

Done: TypeAlias = Mapping[TopicPartition, Erased]

ROUNDS = 5
"""The most compactions to remove the values; no limit while a caller waits and time may help."""
LOOK_AGAIN_S = 0.05
MAX_LOOK_AGAIN_S = 2.0
"""The pause between two compactions doubles from `LOOK_AGAIN_S` to `MAX_LOOK_AGAIN_S`."""
COMPACTIONS_AT_ONCE = 128


class EraseSteps:
    """Compacts partitions and checks which values and tombstones are left."""

    def __init__(
        self,
        evidence: Evidence,
        cleaning: NodeCleaner,
        compactions: Compactions,
        groups: GroupsBehind,
        table: JobTable[Intent],
    ) -> None:
        """`table` schedules the next attempt."""
        self._evidence = evidence
        self._cleaning = cleaning
        self._compactions = compactions
        self._groups = groups
        self._table = table

    async def swap_holds(self) -> SwapHolds:
        """Return the holds that keep the cleaner from replacing segments."""
        return (await self._cleaning.service()).rounds.swap_holds

    # -- values ----------------------------------------------------------------------------------------------------------

    async def remove_values(self, intent: Intent, subject: Subject, progress: Progress, *, is_patient: bool) -> Intent:
        """Compact until no value is left below the claims, or until compaction cannot remove more.

        With `is_patient` a caller waits: the method continues while time may help.
        """
        left: Sequence[TopicPartition] = claims_of(intent, self._evidence.topics).affected
        rounds, pause_s = 0, LOOK_AGAIN_S
        while True:
            rounds += 1
            done = await self._compact_all(intent, left, "clean", "compacting", progress)
            intent = replace(intent, done=_each(done, left, compactions=rounds))
            intent = await self._remove_files(intent, left)
            # Clean partitions are not compacted again while others are held up.
            left = await self._left(intent, subject, left)
            is_held = is_patient and any(self._is_held(intent, one) for one in left)
            if not left or (rounds >= ROUNDS and not is_held):
                return intent
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, MAX_LOOK_AGAIN_S)

    async def _compact_all(
        self, intent: Intent, partitions: Sequence[TopicPartition], until: str, stage: str, progress: Progress
    ) -> Done:
        """Compact partitions, several at once, so that the cleaner never has to look for other work in between."""
        steps, room = {**intent.done}, asyncio.Semaphore(COMPACTIONS_AT_ONCE)
        # Load the compactor first: otherwise all tasks would wait for it and resume in the same turn.
        await self._compactions.compactor()
        present = {one: log for one in partitions if (log := self._evidence.logs.get(one)) is not None}
        compacted = CompactedBytes(await self._cleaning.service(), present.values(), progress)
        compacted.begin(stage)

        async def compact(partition: TopicPartition) -> None:
            steps[partition] = await self._compact(intent, partition, until, steps.get(partition, Erased()), compacted)

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
        return {partition: steps[partition] for partition in intent.done}

    async def _compact(
        self, intent: Intent, partition: TopicPartition, until: str, step: Erased, compacted: CompactedBytes
    ) -> Erased:
        """Compact one partition; return its step with the runner or the reason of the failure."""
        rounds = 0
        try:
            request = CompactRequest(
                *partition,
                until=until,
                is_forced=intent.is_forced,
                return_at_horizon=until != "clean",
                engine=intent.engine,
            )
            report = (await self._compactions.compact(request)).partitions[0]
            rounds = report.rounds
            runners = tuple(dict.fromkeys([*(step.runners or ()), *report.runners]))
            step = replace(step, runners=runners, not_compacted=None)
        except BrokerStopping:
            raise
        except VerbError as error:
            # Quarantined, uncleanable, no longer compacted, or deleted: the scan reports the values left there.
            step = replace(step, not_compacted=str(error))
            logger.warning("erasure %s: %s-%d cannot be compacted: %s", intent.id, *partition, error)
        compacted.is_over(*partition, rounds=rounds)
        return step

    async def _look(self, subject: Subject, partitions: Iterable[TopicPartition]) -> ScanReport:
        """Find records of the key in the segments that filters do not rule out. The certifying scan checks the filters."""
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
        """Return the partitions that still have a value below the end of their claim."""
        report, digest = await self._look(subject, partitions), subject.key_digest.hex()
        return [one for one in partitions if report.state(one, intent.claims.get(one, 0), digest) == VALUES_PRESENT]

    def _is_held(self, intent: Intent, partition: TopicPartition) -> bool:
        """Return whether waiting may help: an open transaction below the claim's end, or `min.compaction.lag.ms`."""
        log = self._evidence.logs.get(partition)
        if log is None or not log.config.is_compacted:
            return False
        is_open = log.last_stable_offset < intent.claims.get(partition, 0)
        return is_open or (log.config.min_compaction_lag_ms > 0 and not intent.is_forced)

    # -- the key ---------------------------------------------------------------------------------------------------------

    async def settle_horizon(self, intent: Intent, subject: Subject, progress: Progress) -> Intent:
        """Decide whether to remove the tombstones before their horizon. Record it, or withdraw overrides without effect."""
        affected = claims_of(intent, self._evidence.topics).affected
        progress.begin("removing tombstones", len(affected), "partitions")
        # If some groups are no longer known, as after a restart, the horizon applies again.
        is_now = intent.is_now and not await self._groups.not_known()
        behind = await self._groups.behind(intent, affected) if is_now else {}
        # In a later attempt, groups may be behind that were not at the time of the request.
        if is_now and (intent.is_confirmed or not behind):
            return _overridden(intent, [one for one in affected if one in self._evidence.logs], behind)
        return await self._withdraw_overrides(replace(intent, is_now=False), subject)

    async def remove_key(self, intent: Intent, subject: Subject, progress: Progress) -> tuple[Intent, int]:
        """Remove the tombstones, at their horizon or before it with `is_now`; return the number left.

        If any are left, the returned intent has a later due time.
        """
        claims = claims_of(intent, self._evidence.topics)
        failure = None
        if intent.is_now:
            failure = await self._remove_now(intent, claims, progress)
        else:
            done = await self._compact_all(intent, claims.affected, "tombstones-gone", "removing tombstones", progress)
            intent = replace(intent, done=done)
        intent = await self._remove_files(intent, claims.affected)
        if failure is not None:
            raise failure
        report = await self._look(subject, claims.affected)
        ends = claims_of(intent, self._evidence.topics).ends
        left = [one for place, end in ends.items() for one in report.tombstones(place, end)]
        if left:
            later = max((one.horizon_ms or 0 for one in left), default=0)
            if later > self._evidence.env.clock.now_ms():
                intent = replace(intent, due_ms=later)
            else:
                # Removable tombstones are held back, for an unknown time.
                intent = replace(intent, due_ms=self._table.retry_ms(intent.retries), retries=intent.retries + 1)
        return intent, len(left)

    async def _remove_now(self, intent: Intent, claims: Claims, progress: Progress) -> StorageError | None:
        """Remove tombstones before their horizon, skipping partitions that refuse writes; return the first such failure."""
        failure: StorageError | None = None
        for partition in claims.affected:
            log, end = self._evidence.logs.get(partition), claims.ends.get(partition, 0)
            try:
                if log is not None:
                    await remove_tombstones(self._evidence.env, self._cleaning, log, intent.key, end)
            except StorageError as error:
                if log is None or log.write_failure is None:
                    raise
                failure = failure or error
            progress.advance()
        return failure

    async def _withdraw_overrides(self, intent: Intent, subject: Subject) -> Intent:
        """Undo overrides that removed nothing: a remaining tombstone is removed at its horizon."""
        if not intent.overrides:
            return intent
        report = await self._look(subject, intent.overrides)
        there = {
            (partition, one.offset)
            for partition in intent.overrides
            for one in report.of(partition)
            if one.what == TOMBSTONE and is_in_use(one.file, *partition)
        }
        undone = {one for one in intent.overrides if (one, intent.done.get(one, Erased()).tombstone_at) in there}
        return replace(
            intent,
            done=_each(intent.done, undone, removed_before_horizon=None),
            overrides={one: groups for one, groups in intent.overrides.items() if one not in undone},
        )

    # -- for values and keys ---------------------------------------------------------------------------------------------

    async def _remove_files(self, intent: Intent, partitions: Sequence[TopicPartition]) -> Intent:
        """Delete the files of these partitions that await deletion. Once begun, this runs to its end."""
        work = asyncio.to_thread(self._evidence.remove_doomed, intent.topics, partitions)
        removed = await to_its_end(work)
        steps = {
            place: replace(step, files_removed_at_once=(step.files_removed_at_once or 0) + removed.get(place, 0))
            for place, step in intent.done.items()
        }
        return replace(intent, done=steps)


def _each(steps: Done, partitions: Iterable[TopicPartition], **changes: Any) -> Done:
    """Return the steps, with changes applied to those of some partitions."""
    changed = set(partitions)
    return {place: replace(step, **changes) if place in changed else step for place, step in steps.items()}


def _overridden(intent: Intent, partitions: Sequence[TopicPartition], behind: Mapping[str, list[str]]) -> Intent:
    """Record that the horizon is overridden, and the groups that were behind in any attempt."""
    overrides = {**intent.overrides}
    for partition in partitions:
        groups = {*overrides.get(partition, ()), *behind.get(names.partition_dir_name(*partition), ())}
        overrides[partition] = tuple(sorted(groups)[:MAX_LISTED])
    done = _each(intent.done, partitions, removed_before_horizon=True)
    return replace(intent, done=done, overrides=overrides)
