"""Locates the records of a redaction in the logs, and replaces the segments that hold them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from diamant.broker.erasure.certification.evidence import Evidence
from diamant.broker.erasure.jobs.removal import Removal
from diamant.broker.erasure.jobs.segment_rewrite import replace_segment
from diamant.broker.erasure.redact.redact_result import RedactLimits, Work
from diamant.broker.operation_errors import NotPossible
from diamant.broker.operations.calls.blocking import in_thread
from diamant.cleaner.erasure_state.locate import take_sample
from diamant.cleaner.evidence.search.needles import MAX_NEEDLES, keyed_digest
from diamant.cleaner.evidence.search.needles import VALUE as VALUE_NEEDLE
from diamant.cleaner.evidence.search.remains import ANY_KEY, short_digest
from diamant.cleaner.redaction.claims import WHERE, Redacted
from diamant.cleaner.redaction.hits import Hits
from diamant.cleaner.redaction.intent import LOCATING, REWRITING, RedactionIntent
from diamant.cleaner.redaction.locate import (
    BatchTooLarge,
    LocatedRecords,
    SearchedSegment,
    TooManyMatches,
    locate_records,
)
from diamant.cleaner.redaction.rewrite import RedactionPlan, SegmentRedaction, write_redacted
from diamant.cleaner.redaction.where import Where
from diamant.own_thread import to_its_end
from diamant.progress import Progress
from diamant.protocol.batches.header import Record
from diamant.storage.checkpoints.checkpoints import TopicPartition
from diamant.storage.log.log import Log
from diamant.storage.segments.segment import Segment


class RedactRecords:
    """The part of a redaction that locates records and replaces the segments that hold them. Cleaning must be paused."""

    def __init__(self, evidence: Evidence, limits: RedactLimits) -> None:
        self._limits = limits
        self._evidence = evidence
        self._env = evidence.env

    async def locate(
        self, intent: RedactionIntent, removal: Removal[Redacted], partitions: Sequence[TopicPartition]
    ) -> tuple[RedactionIntent, list[Work]]:
        """Locate matching records below the last stable offset. Returns the intent, with these offsets, and the work."""
        subject, progress = removal.subject, removal.progress
        logs = [log for one in partitions if (log := self._evidence.logs.get(one)) is not None and not log.is_deleted]
        progress.begin("locating the records", sum(log.size for log in logs), "bytes")
        sample = await asyncio.to_thread(take_sample, self._env, self._evidence.directory, partitions)
        for text in subject.where.needles:
            subject.needles.add(WHERE, text, sample)

        keys = {*intent.keys}

        def note_lost(record: Record, text: bytes) -> None:
            # Only count values beyond the limit: choosing the bytes to search for is the most expensive step here.
            if len(subject.needles) >= MAX_NEEDLES:
                subject.needles.left_out += 1
                return
            subject.needles.add(VALUE_NEEDLE, text, sample)
            if record.key is not None:
                keys.add(short_digest(keyed_digest(subject.needles.secret, record.key)))

        stable = {**intent.stable}
        works: list[Work] = []
        room = self._limits.offset_bytes
        for log in logs:
            if intent.phase != REWRITING:
                stable[log.partition] = min(log.last_stable_offset, intent.ends.get(log.partition, 0))
            is_first = removal.group is not None and intent.phase == LOCATING
            hits = removal.group.hits.get(intent.id, {}) if removal.group and is_first else {}
            located = await self._locate_in(
                log,
                subject.where,
                stable.get(log.partition, 0),
                room,
                note_lost,
                progress.advance,
                hits.get((log.topic, log.partition)),
            )
            works.append(Work(log, located))
            room -= located.nbytes
        return replace(
            intent, stable=stable, keys=tuple(sorted(keys)) if len(keys) < MAX_NEEDLES else (ANY_KEY,)
        ), works

    async def _locate_in(
        self,
        log: Log,
        where: Where,
        below: int,
        room: int,
        note_lost: Callable[[Record, bytes], object],
        advance: Callable[[int], object],
        hits: Hits | None,
    ) -> LocatedRecords:
        active, closed = _segment(log.active), list(log.segments[:-1])
        is_compacted = log.config.is_compacted

        def locate(check: Callable[[], object]) -> LocatedRecords:
            return locate_records(
                self._env,
                [*(_segment(one) for one in closed if not one.is_deleted), active],
                where,
                below,
                is_compacted=is_compacted,
                offset_bytes=room,
                max_batch_bytes=log.config.max_message_bytes,
                on_lost=note_lost,
                advance=advance,
                check=check,
                hits=hits,
            )

        try:
            return await in_thread(locate)
        except (BatchTooLarge, TooManyMatches) as error:
            raise NotPossible(f"{log.topic}-{log.partition}: {error}; nothing was changed there") from None

    async def rewrite(self, works: Sequence[Work], where: Where, progress: Progress) -> None:
        total = sum(one.size for work in works for one in work.log.segments if one.base_offset in work.located.offsets)
        progress.begin("rewriting segments", total, "bytes")
        for work in works:
            log = work.log
            if not work.located.offsets or log.is_deleted:
                continue
            if log.active.base_offset in work.located.offsets:
                log.roll()
                work.was_rolled = True
            plan = await self._plan(work, where)
            for segment in plan.segments:
                write = partial(write_redacted, self._env, plan, segment)
                replaced = replace_segment(self._env, log, segment.base_offset, segment.size, write)
                work.rewritten += await to_its_end(replaced)
                progress.advance(segment.size)

    async def _plan(self, work: Work, where: Where) -> RedactionPlan:
        log = work.log
        closed = {segment.base_offset: segment for segment in log.segments[:-1] if not segment.is_deleted}
        found = [(closed[base], work.located.offsets[base]) for base in sorted(work.located.offsets) if base in closed]
        return RedactionPlan(
            directory=log.path,
            segments=await asyncio.to_thread(
                lambda: tuple(
                    SegmentRedaction(segment.base_offset, segment.size, tuple(segment.txn_index.all()), offsets)
                    for segment, offsets in found
                )
            ),
            index_interval_bytes=log.config.index_interval_bytes,
            segment_index_bytes=log.config.segment_index_bytes,
            examine=where.examine,
        )


def _segment(one: Segment) -> SearchedSegment:
    return SearchedSegment(one.base_offset, one.path, one.size, tuple(one.txn_index.all()))
