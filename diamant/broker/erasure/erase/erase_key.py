"""Phase `waiting` of an erasure: the tombstones are removed, at their horizon or before it on request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from diamant.broker.erasure.certification.evidence import Evidence
from diamant.broker.erasure.certification.scope import Claims, claims_of
from diamant.broker.erasure.erase.erase_result import EraseFailed
from diamant.broker.erasure.erase.erase_values import EraseValues
from diamant.broker.erasure.erase.groups_behind import GroupsBehind
from diamant.broker.erasure.jobs.job_table import JobTable
from diamant.broker.erasure.jobs.removal import Removal
from diamant.broker.erasure.jobs.segment_rewrite import cleaning_paused, replace_segment
from diamant.cleaner.erasure_state.intent import Erased, Intent
from diamant.cleaner.evidence.scan.file_listing import is_in_use
from diamant.cleaner.evidence.search.findings import MAX_LISTED, TOMBSTONE
from diamant.cleaner.evidence.search.record_search import Subject
from diamant.cleaner.rules.result import OutputSegment
from diamant.cleaner.segments.record_changes import write_changed
from diamant.own_thread import to_its_end
from diamant.progress import Progress
from diamant.storage import names
from diamant.storage.checkpoints.checkpoints import TopicPartition
from diamant.storage.env.env import Env
from diamant.storage.errors import StorageError
from diamant.storage.log.log import Log
from diamant.storage.segments.segment import Segment

if TYPE_CHECKING:
    from diamant.broker.node.cleaner import NodeCleaner


@dataclass(frozen=True, slots=True)
class EraseKey:
    """The part of an erasure that removes the tombstones, after which the disk no longer holds the key."""

    evidence: Evidence
    cleaning: NodeCleaner
    groups: GroupsBehind
    table: JobTable[Intent]
    values: EraseValues

    async def remove(self, intent: Intent, removal: Removal[Subject]) -> Intent:
        """Remove the tombstones: those past their horizon, or all if the intent's `is_now` is set. Returns the updated intent.

        Afterwards, the intent on disk no longer holds the key, not even encrypted. Raises EraseFailed if tombstones are left.
        """
        intent = await self._settle_horizon(intent, removal)
        if intent.is_now:
            # Save the groups that are behind. If the broker stops, they may be past the tombstone's offset by the next attempt,
            # although they have missed the tombstone.
            await self.table.save(intent, removal.key, intent.due_ms)
        intent, left = await self._remove_tombstones(intent, removal)
        if left:
            await self.table.save(intent, removal.key, intent.due_ms)
            pause_s = max(0, (intent.due_ms or 0) - self.evidence.env.clock.now_ms()) // 1000
            raise EraseFailed(f"erasure {intent.id}: {left} tombstones are left; the next attempt is in {pause_s} s")
        await self.table.save(intent.closed(removal.subject.key_digest), removal.key, intent.due_ms)
        return intent

    async def _settle_horizon(self, intent: Intent, removal: Removal[Subject]) -> Intent:
        """Decide whether to remove the tombstones early. Record overrides, or withdraw earlier ones that had no effect."""
        affected = claims_of(intent, self.evidence.topics).affected
        removal.progress.begin("removing tombstones", len(affected), "partitions")
        # If some groups are no longer known, as after a restart, the horizon applies again.
        is_now = intent.is_now and not await self.groups.not_known()
        behind = await self.groups.behind(intent, affected) if is_now else {}
        # Look again: since the request, other groups may have fallen behind.
        if is_now and (intent.is_confirmed or not behind):
            return _overridden(intent, [one for one in affected if one in self.evidence.logs], behind)
        return await self._withdraw_overrides(replace(intent, is_now=False), removal.subject)

    async def _remove_tombstones(self, intent: Intent, removal: Removal[Subject]) -> tuple[Intent, int]:
        """Remove the tombstones; return the number left. If any are left, the returned intent has a later due time."""
        claims, progress = claims_of(intent, self.evidence.topics), removal.progress
        failure = None
        if intent.is_now:
            failure = await self._remove_now(intent, claims, progress)
        else:
            intent = await self.values.compact(
                intent, claims.affected, "tombstones-gone", "removing tombstones", progress
            )
        intent = await self.values.remove_files(intent, claims.affected)
        if failure is not None:
            raise failure
        report = await self.evidence.look(removal.subject, claims.affected)
        ends = claims_of(intent, self.evidence.topics).ends
        left = [one for place, end in ends.items() for one in report.tombstones(place, end)]
        if left:
            later = max((one.horizon_ms or 0 for one in left), default=0)
            if later > self.evidence.env.clock.now_ms():
                intent = replace(intent, due_ms=later)
            else:
                # They are past their horizon, but something else keeps them, for an unknown time.
                intent = replace(intent, due_ms=self.table.retry_ms(intent.retries), retries=intent.retries + 1)
        return intent, len(left)

    async def _remove_now(self, intent: Intent, claims: Claims, progress: Progress) -> StorageError | None:
        """Remove tombstones before their horizon. Skip partitions that refuse writes, and return the failure of the first."""
        failure: StorageError | None = None
        for partition in claims.affected:
            log, end = self.evidence.logs.get(partition), claims.ends.get(partition, 0)
            try:
                if log is not None:
                    await remove_tombstones(self.evidence.env, self.cleaning, log, intent.key, end)
            except StorageError as error:
                if log is None or log.write_failure is None:
                    raise
                failure = failure or error
            progress.advance()
        return failure

    async def _withdraw_overrides(self, intent: Intent, subject: Subject) -> Intent:
        """Withdraw the overrides for partitions whose tombstone is still there, so that it is removed at its horizon."""
        if not intent.overrides:
            return intent
        report = await self.evidence.look(subject, intent.overrides)
        there = {
            (partition, one.offset)
            for partition in intent.overrides
            for one in report.of(partition)
            if one.what == TOMBSTONE and is_in_use(one.file, *partition)
        }
        undone = {one for one in intent.overrides if (one, intent.done.get(one, Erased()).tombstone_at) in there}
        overrides = {one: groups for one, groups in intent.overrides.items() if one not in undone}
        return replace(intent.with_done(undone, removed_before_horizon=None), overrides=overrides)


def _overridden(intent: Intent, partitions: Sequence[TopicPartition], behind: Mapping[str, list[str]]) -> Intent:
    """Record in the intent that the horizon is overridden, and which groups were behind in this or an earlier attempt."""
    overrides = {**intent.overrides}
    for partition in partitions:
        groups = {*overrides.get(partition, ()), *behind.get(names.partition_dir_name(*partition), ())}
        overrides[partition] = tuple(sorted(groups)[:MAX_LISTED])
    return replace(intent.with_done(partitions, removed_before_horizon=True), overrides=overrides)


async def remove_tombstones(env: Env, cleaning: NodeCleaner, log: Log, key: bytes, end: int) -> None:
    """Remove the tombstones of `key` below the offset `end` by rewriting their segments. Call this on the loop thread.

    Cleaning of the partition is paused during the call. If the caller is cancelled, the segment in progress is still completed.
    """
    async with cleaning_paused(cleaning, [(log.topic, log.partition)]):
        if log.active.base_offset < end:
            log.roll()
        for segment in list(log.segments[:-1]):
            if not segment.is_deleted and segment.base_offset < end:
                write = partial(_write_without, env, log, segment, key, end)
                await to_its_end(replace_segment(env, log, segment.base_offset, segment.size, write))


def _write_without(env: Env, log: Log, segment: Segment, key: bytes, end: int) -> OutputSegment | None:
    return write_changed(
        env,
        log.path,
        segment.base_offset,
        segment.size,
        segment.txn_index.all(),
        lambda record: None if record.key == key and record.value is None and record.offset < end else record,
        index_interval_bytes=log.config.index_interval_bytes,
        segment_index_bytes=log.config.segment_index_bytes,
    )
