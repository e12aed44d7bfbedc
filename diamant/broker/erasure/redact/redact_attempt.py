"""One attempt at a redaction: locates the records, rewrites segments without them, and certifies (`redactions.py`)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from diamant.broker.erasure.evidence.evidence import Evidence
from diamant.broker.erasure.jobs import texts
from diamant.broker.erasure.jobs.ended import Ended
from diamant.broker.erasure.jobs.job_table import JobTable
from diamant.broker.erasure.redact.redact_certificates import RedactCertificates
from diamant.broker.erasure.redact.redact_result import (
    EVERYTHING_MATCHES,
    EverythingMatches,
    Redaction,
    RedactLimits,
    Work,
    everything_matches,
    with_found,
)
from diamant.broker.erasure.redact.redact_steps import RedactSteps
from diamant.broker.operations.calls.blocking import to_its_end
from diamant.broker.operations.calls.progress import Progress
from diamant.cleaner.evidence.certificates.signing_key import SigningKey
from diamant.cleaner.evidence.search.needles import Needles
from diamant.cleaner.redaction.claims import Redacted
from diamant.cleaner.redaction.intent import LOCATING, REWRITING, REWRITTEN, RedactionIntent, Rewriting
from diamant.cleaner.redaction.locate import LocatedRecords
from diamant.cleaner.redaction.where import parse_where
from diamant.storage import names
from diamant.storage.checkpoints.checkpoints import TopicPartition
from diamant.storage.env.clock import SystemClock
from diamant.storage.errors import CorruptLog

logger = logging.getLogger(__name__)

_REFUSES_WRITES = (
    "the partition refuses writes after a failed one, so its active segment cannot be closed. See the broker's log, repair "
    "the disk, and restart the broker"
)


@dataclass(frozen=True, slots=True)
class RedactTools:
    """The parts of a broker that carry out its redactions."""

    evidence: Evidence
    table: JobTable[RedactionIntent]
    steps: RedactSteps
    certificates: RedactCertificates
    limits: RedactLimits


class RedactAttempt:
    """One attempt at a redaction. Belongs to the loop thread; `carry_out` needs the lock."""

    def __init__(
        self, tools: RedactTools, intent: RedactionIntent, key: SigningKey, progress: Progress | None = None
    ) -> None:
        """`intent`: the one on disk, or a new one."""
        self._tools = tools
        self._evidence = tools.evidence
        is_manual = intent.is_manual_clock or not isinstance(tools.evidence.env.clock, SystemClock)
        self._intent = replace(intent, is_manual_clock=is_manual)
        self._key = key
        self._progress = progress or Progress()
        needles = Needles(key.secret, intent.needles)
        needles.left_out = intent.left_out
        self._subject = Redacted(parse_where(intent.where, intent.undecided), intent.topic, needles)

    async def carry_out(self) -> Redaction:
        """Locate the remaining records, remove them, and certify."""
        steps, certificates, subject = self._tools.steps, self._tools.certificates, self._subject
        intent = replace(self._intent, runs=self._intent.runs + 1)
        ended = certificates.ended(intent)
        if ended is not None:
            logger.warning("redaction %s ends: topic %s was deleted", intent.id, intent.topic)
            return await self._end(intent, ended)
        intent = steps.with_ends(intent)
        partitions = certificates.present(intent).partitions
        async with steps.paused(partitions):
            intent, works = await steps.locate(intent, subject, partitions, self._progress)
            if intent.phase == LOCATING:
                # The values are first known here.
                texts.check_unsaid("reason and reference", [intent.reason, intent.reference], (), subject.needles)
            ended = self._refused(intent, works)
            if ended is None:
                intent = _leave_what_refuses_writes(intent, works)
                self._progress.job_id = intent.id
                intent = await self._begin(intent, works)
                await steps.rewrite(works, self._progress)
        if ended is not None:
            return await certificates.end(intent, subject, self._key, ended=ended)
        removed = await to_its_end(asyncio.to_thread(self._evidence.remove_doomed, [intent.topic], partitions))
        intent = replace(intent, phase=REWRITTEN, found_before={}, done=_done(intent, works, removed))
        await self._tools.table.save(intent, self._key)
        return await certificates.certify(intent, subject, works, self._key, self._progress)

    def _refused(self, intent: RedactionIntent, works: Sequence[Work]) -> Ended | None:
        """Return the end of a run that would empty the topic without consent. EverythingMatches if a caller waits."""
        text = None if intent.phase == REWRITING else everything_matches(intent, works)
        if text is None:
            return None
        if intent.phase == LOCATING:
            raise EverythingMatches(text)
        logger.warning("redaction %s: %s", intent.id, text)
        return Ended(EVERYTHING_MATCHES, self._evidence.env.clock.now_ms(), text)

    async def _begin(self, intent: RedactionIntent, works: Sequence[Work]) -> RedactionIntent:
        """Write the intent to disk before anything is changed."""
        for work in works:
            directory = names.partition_dir_name(work.log.topic, work.log.partition)
            work.files = [f"{directory}/{base:020d}{names.LOG_SUFFIX}" for base in sorted(work.located.offsets)]
        if intent.phase != REWRITING:
            known = {one.file for one in intent.before}
            files = [name for work in works for name in work.files if name not in known]
            digests = await asyncio.to_thread(self._evidence.digests, files, self._evidence.ends())
            found = intent.found
            for work in works:
                found = await asyncio.to_thread(with_found, found, work, self._tools.limits)
            intent = replace(intent, before=(*intent.before, *digests), found_before=intent.found, found=found)
        needles = self._subject.needles
        intent = replace(intent, phase=REWRITING, needles=tuple(needles), left_out=needles.left_out)
        await self._tools.table.save(intent, self._key)
        return intent

    # -- ends without completion -----------------------------------------------------------------------------------------

    async def _end(self, intent: RedactionIntent, ended: Ended) -> Redaction:
        """End a redaction whose topic no longer exists. The scan reports where else the bytes were seen."""
        await to_its_end(asyncio.to_thread(self._evidence.remove_doomed, [intent.topic], []))
        self._subject.topics, certificates = frozenset(), self._tools.certificates
        report = await certificates.scan(intent, self._subject, self._key, self._progress)
        return await certificates.end(intent, self._subject, self._key, report, ended=ended)

    async def give_up(self, ended: Ended) -> Redaction:
        """End the redaction without changing anything else. `ended` is recorded in its certificate."""
        return await self._tools.certificates.end(self._intent, self._subject, self._key, ended=ended)


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
    """Skip partitions whose active segment must be closed but cannot be; the others continue.

    A later run locates and counts the records of the skipped partitions.
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
