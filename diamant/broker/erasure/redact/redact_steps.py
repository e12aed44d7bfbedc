"""The steps of a redaction (`redactions.py`): locate the records, rewrite the segments without them, and certify the result."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from diamant.broker import certificate_texts
from diamant.broker.erasure.certification.evidence import Evidence
from diamant.broker.erasure.certification.scope import Present, present_of
from diamant.broker.erasure.jobs.job_table import JobTable
from diamant.broker.erasure.jobs.removal import Ended, Removal
from diamant.broker.erasure.jobs.segment_rewrite import cleaning_paused
from diamant.broker.erasure.redact.redact_certificates import RedactCertificates
from diamant.broker.erasure.redact.redact_records import RedactRecords
from diamant.broker.erasure.redact.redact_result import (
    EVERYTHING_MATCHES,
    EverythingMatches,
    RedactFailed,
    Redaction,
    RedactLimits,
    Work,
    everything_matches,
    with_found,
)
from diamant.cleaner.evidence.certificates.signing_key import SigningKey
from diamant.cleaner.evidence.search.needles import Needles
from diamant.cleaner.redaction.claims import Redacted
from diamant.cleaner.redaction.intent import LOCATING, REWRITING, REWRITTEN, RedactionIntent, Rewriting
from diamant.cleaner.redaction.locate import LocatedRecords
from diamant.own_thread import to_its_end
from diamant.storage import names
from diamant.storage.checkpoints.checkpoints import TopicPartition
from diamant.storage.errors import CorruptLog

if TYPE_CHECKING:
    from diamant.broker.node.cleaner import NodeCleaner

logger = logging.getLogger(__name__)

_REFUSES_WRITES = (
    "the partition refuses writes after a failed one, so its active segment cannot be closed. See the broker's log, repair "
    "the disk, and restart the broker"
)


class RedactSteps:
    """The records of a topic that match a condition, and the steps that remove them (`RemovalKind`)."""

    failure = RedactFailed
    shares_scans = True

    def __init__(
        self, evidence: Evidence, table: JobTable[RedactionIntent], cleaning: NodeCleaner, limits: RedactLimits
    ) -> None:
        self._evidence = evidence
        self._table = table
        self._cleaning = cleaning
        self._limits = limits
        self._records = RedactRecords(evidence, limits)
        self._certificates = RedactCertificates(evidence, table)

    def due_ms(self, intent: RedactionIntent) -> int | None:
        return intent.due_ms

    def subject(self, intent: RedactionIntent, key: SigningKey, topics: frozenset[str]) -> Redacted:
        needles = Needles(key.secret, intent.needles)
        needles.left_out = intent.left_out
        return Redacted(intent.parsed_where(self._evidence.values(intent.topic, intent.registry)), topics, needles)

    def sought(self, intent: RedactionIntent) -> Sequence[bytes]:
        return intent.parsed_where().said

    def deleted(self, present: Present) -> str:
        return present.ended[0].what

    def with_ends(self, intent: RedactionIntent) -> RedactionIntent:
        """Return the intent with the current end of each log that lacks one. A log that is not open gets one in a later run."""
        partitions = present_of(self._evidence.topics, intent).partitions
        logs = (self._evidence.logs.get(partition) for partition in partitions)
        there = {log.partition: log.log_end_offset for log in logs if log is not None}
        return replace(intent, ends={**intent.ends, **there, **intent.ends})

    async def carry_out(self, intent: RedactionIntent, removal: Removal[Redacted]) -> Redaction:
        """Locate the matching records that are still there, remove or change them, and certify the result."""
        subject, records = removal.subject, self._records
        intent = self.with_ends(replace(intent, runs=intent.runs + 1))
        partitions = present_of(self._evidence.topics, intent).partitions
        async with cleaning_paused(self._cleaning, partitions):
            intent, works = await records.locate(intent, removal, partitions)
            for work in works:
                has = work.located.has
                removal.add_holders(self._evidence.holders((work.log.topic, work.log.partition), has))
            if intent.phase == LOCATING:
                # The values that the certificate must not contain are known only now.
                certificate_texts.check_unsaid(
                    "reason and reference", [intent.reason, intent.reference], (), subject.needles
                )
            ended = self._refused(intent, works)
            if ended is None:
                intent = _leave_what_refuses_writes(intent, works)
                removal.progress.job_id = intent.id
                intent = await self._begin(intent, works, removal)
                await records.rewrite(works, subject.where, removal.progress)
        if ended is not None:
            return await self._certificates.end(intent, removal, ended)
        removed = await to_its_end(asyncio.to_thread(self._evidence.remove_doomed, [intent.topic], partitions))
        intent = replace(intent, phase=REWRITTEN, found_before={}, done=_done(intent, works, removed))
        await self._table.save(intent, removal.key)
        return await self._certificates.certify(intent, removal, works)

    async def end(
        self, intent: RedactionIntent, removal: Removal[Redacted], ended: Ended, *, is_scanned: bool = False
    ) -> Redaction:
        intent = replace(intent, runs=intent.runs + is_scanned)
        return await self._certificates.end(intent, removal, ended, is_scanned=is_scanned)

    def _refused(self, intent: RedactionIntent, works: Sequence[Work]) -> Ended | None:
        """If every record matches without consent, raise EverythingMatches in the first phase; later, return the job's end."""
        text = None if intent.phase == REWRITING else everything_matches(intent, works)
        if text is None:
            return None
        if intent.phase == LOCATING:
            raise EverythingMatches(text)
        logger.warning("redaction %s: %s", intent.id, text)
        return Ended(EVERYTHING_MATCHES, self._evidence.env.clock.now_ms(), text)

    async def _begin(
        self, intent: RedactionIntent, works: Sequence[Work], removal: Removal[Redacted]
    ) -> RedactionIntent:
        """Write the intent to disk before any record is changed."""
        for work in works:
            directory = names.partition_dir_name(work.log.topic, work.log.partition)
            work.files = [f"{directory}/{base:020d}{names.LOG_SUFFIX}" for base in sorted(work.located.offsets)]
        if intent.phase != REWRITING:
            known = {one.file for one in intent.before}
            files = [name for work in works for name in work.files if name not in known]
            digests = await asyncio.to_thread(self._evidence.digests, files, self._evidence.ends())
            found, is_changing = intent.found, removal.subject.where.blanking is not None
            for work in works:
                found = await asyncio.to_thread(with_found, found, work, self._limits, is_changing=is_changing)
            intent = replace(intent, before=(*intent.before, *digests), found_before=intent.found, found=found)
        needles = removal.subject.needles
        intent = replace(intent, phase=REWRITING, needles=tuple(needles), left_out=needles.left_out)
        await self._table.save(intent, removal.key)
        return intent


def _done(
    intent: RedactionIntent, works: Sequence[Work], files_removed: Mapping[TopicPartition, int]
) -> Mapping[TopicPartition, Rewriting]:
    done = {**intent.done}
    for work in works:
        partition = (work.log.topic, work.log.partition)
        if work.rewritten or partition in done:
            known = done.get(partition, Rewriting())
            done[partition] = Rewriting(
                known.segments_rewritten + work.rewritten,
                known.was_rolled or work.was_rolled,
                known.files_removed_at_once + files_removed.get(partition, 0),
            )
    return done


def _leave_what_refuses_writes(intent: RedactionIntent, works: Sequence[Work]) -> RedactionIntent:
    """Return the intent without the partitions that must be skipped, because their active segment holds matching records but
    cannot be closed. A later run locates and counts the records of these partitions.
    """
    stable, found = {**intent.stable}, {**intent.found}
    for work in works:
        log = work.log
        if log.write_failure is not None and log.active.base_offset in work.located.offsets:
            work.located = LocatedRecords(problems=[CorruptLog(log.active.path, 0, _REFUSES_WRITES)])
            stable.pop(log.partition, None)
            if intent.phase == REWRITING:
                partition = (log.topic, log.partition)
                found.pop(partition, None)
                if partition in intent.found_before:
                    found[partition] = intent.found_before[partition]
    return replace(intent, stable=stable, found=found)
