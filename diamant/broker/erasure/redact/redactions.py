"""Remove the records of a topic that match, and certify it: `broker.redact(topic, where=..., reason=...)`.

    redaction = await broker.redact("orders", where='value.customer.email == "ada@example.com"', reason="GDPR Art. 17")
    redaction.state, redaction.removed, redaction.certificate

For topics where a tombstone removes nothing, and for personal data inside values and headers. What happens:

    locating    every record of every partition is judged, with cleaning paused; nothing is changed yet
    rewriting   the segments that hold such records are written without them and swapped in, as after a round of the cleaner;
                an active one is rolled first. From here on there is an intent, and after any stop the redaction resumes
    scanning    what waits to be deleted is deleted at once, and everything is read again: the certificate

A redaction covers the records that were there at the time of the request, in the topic that had the name then. Those at
or above the last stable offset belong to open transactions, or lie behind one: they stay, and if any of them match the
answer is `not-certified`, and the broker retries. A redaction ends without a certificate if the topic is deleted, or if
every record matches and the caller has not confirmed that: at once, or in a later run as long as nothing was removed.

Bounds: those of `jobs/job_queue.py`, `cleaner/redaction/locate.py` (offsets of all partitions together) and
`cleaner/redaction/where.py`. No text of an error and no line of the log holds the description, or a key or a value.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from diamant.broker.client.errors import BadArgument, NotPossible
from diamant.broker.erasure.evidence.evidence import Evidence
from diamant.broker.erasure.evidence.scope import scope_of
from diamant.broker.erasure.jobs import texts
from diamant.broker.erasure.jobs.attempts import JobLock
from diamant.broker.erasure.jobs.ended import Ended
from diamant.broker.erasure.jobs.job_queue import JobQueue
from diamant.broker.erasure.jobs.job_table import ID_BYTES, JobTable
from diamant.broker.erasure.jobs.requests import RedactRequest
from diamant.broker.erasure.redact.redact_certificates import RedactCertificates
from diamant.broker.erasure.redact.redact_result import (
    EVERYTHING_MATCHES,
    EverythingMatches,
    RedactFailed,
    Redaction,
    Work,
    add_found,
    everything_matches,
)
from diamant.broker.erasure.redact.redact_steps import RedactSteps
from diamant.broker.operations.blocking import in_thread, to_its_end
from diamant.broker.operations.cross_loop import on_loop
from diamant.broker.operations.progress import Progress
from diamant.cleaner.erasure.locate import take_sample
from diamant.cleaner.evidence.certificates.files import tidy
from diamant.cleaner.evidence.certificates.private_files import REDACTION_PREFIX
from diamant.cleaner.evidence.certificates.signing_key import SigningKey
from diamant.cleaner.evidence.search.needles import MAX_NEEDLES, Needle, Needles
from diamant.cleaner.evidence.search.needles import VALUE as VALUE_NEEDLE
from diamant.cleaner.redaction.claims import WHERE, Redacted
from diamant.cleaner.redaction.intent import LOCATING, REWRITING, REWRITTEN, RedactionIntent, redaction_files
from diamant.cleaner.redaction.locate import MAX_OFFSET_BYTES, Located, Segment, TooManyMatches, locate_records
from diamant.cleaner.redaction.where import Where, WhereError, parse_where
from diamant.storage import names
from diamant.storage.checkpoints.checkpoints import TopicPartition
from diamant.storage.env.clock import SystemClock
from diamant.storage.errors import CorruptLog
from diamant.storage.log.log import Log

if TYPE_CHECKING:
    from diamant.broker.node.cleaner import NodeCleaner
    from diamant.broker.node.node import Node

logger = logging.getLogger(__name__)

_REFUSES_WRITES = (
    "the partition takes no writes since one has failed, so its active segment cannot be closed: see the broker's log, repair "
    "the disk, and restart the broker"
)


class Redactions:
    """All redactions of one broker; made with the first one, or at a start that finds one unfinished."""

    failure = RedactFailed

    def __init__(self, node: Node, evidence: Evidence, cleaning: NodeCleaner, lock: JobLock) -> None:
        """`lock`: that of the erasures, so that one job is in progress at a time."""
        self._evidence = evidence
        self.table: JobTable[RedactionIntent] = JobTable(
            "redaction", redaction_files(evidence.env, evidence.directory), node
        )
        self.queue: JobQueue[RedactionIntent, Redaction] = JobQueue(self, self.table, evidence.keys, node, lock)
        self._steps = RedactSteps(evidence.env, cleaning)
        self._certificates = RedactCertificates(evidence, self.table)

    # -- any loop --------------------------------------------------------------------------------------------------------

    async def redact(self, request: RedactRequest, progress: Progress | None = None) -> Redaction:
        """Remove the records that match; see `Broker.redact`."""
        return await on_loop(self.queue.loop, lambda: self._redact(request, progress or Progress()))

    # -- the loop thread -------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Read the intents that the last run of a broker left unfinished, and resume each when it is due."""
        await asyncio.to_thread(tidy, self._evidence.env, self._evidence.directory, REDACTION_PREFIX)
        await self.queue.start()

    def due_ms(self, intent: RedactionIntent) -> int | None:
        """Return when a redaction of an earlier run is resumed; None: now."""
        return intent.due_ms

    def sought(self, intent: RedactionIntent, key: SigningKey) -> tuple[Sequence[bytes], Needles]:
        """Return the texts that are looked for, and what is known of the values."""
        where = parse_where(intent.where, intent.undecided)
        return where.said, self._subject(intent, where, key).needles

    async def resume(self, intent: RedactionIntent, key: SigningKey) -> Redaction:
        """Carry on with a redaction that has the lock."""
        return await self._carry_out(intent, parse_where(intent.where, intent.undecided), key, Progress())

    async def _redact(self, request: RedactRequest, progress: Progress) -> Redaction:
        try:
            where = parse_where(request.where, request.undecided)
        except WhereError as error:
            raise BadArgument(str(error)) from None
        texts.check_reason(request.reason, request.reference)
        texts.check_unsaid("reason and reference", [request.reason, request.reference], where.said)
        self._evidence.user_topic(request.topic)
        with self.queue.call():
            scope = scope_of(self._evidence.topics, [request.topic])
            signing_key = await self._evidence.keys.usable()
            intent = RedactionIntent(
                id=os.urandom(ID_BYTES).hex(),
                phase=LOCATING,
                topic=request.topic,
                where=request.where,
                reason=request.reason,
                reference=request.reference,
                requested_ms=self._evidence.env.clock.now_ms(),
                is_all_agreed=request.is_all_agreed,
                undecided=request.undecided,
                scope=scope,
            )
            self._note_ends(intent)
            return await self.queue.run(
                intent.id, request.timeout_ms, lambda: self._run(intent, where, signing_key, progress)
            )

    # -- a run -----------------------------------------------------------------------------------------------------------

    async def _run(self, intent: RedactionIntent, where: Where, key: SigningKey, progress: Progress) -> Redaction:
        async with self.queue.locked(intent.id):
            return await self._carry_out(intent, where, key, progress)

    async def _carry_out(self, intent: RedactionIntent, where: Where, key: SigningKey, progress: Progress) -> Redaction:
        intent.is_manual_clock |= not isinstance(self._evidence.env.clock, SystemClock)
        intent.runs += 1
        subject = self._subject(intent, where, key)
        ended = self._certificates.ended(intent)
        if ended is not None:
            logger.warning("redaction %s: %s was deleted, it ends there", intent.id, intent.topic)
            return await self._end(intent, subject, key, progress, ended)
        self._note_ends(intent)
        partitions = self._certificates.partitions(intent)
        async with self._steps.paused(partitions):
            works = await self._locate(intent, subject, partitions, progress)
            if intent.phase == LOCATING:
                # Not before now are the values known.
                texts.check_unsaid("reason and reference", [intent.reason, intent.reference], (), subject.needles)
            ended = self._refused(intent, works)
            if ended is None:
                _leave_what_refuses_writes(intent, works)
                progress.undertaking = intent.id
                await self._begin(intent, subject, works, key)
                await self._steps.rewrite(works, progress)
        if ended is not None:
            return await self._certificates.end(intent, subject, key, ended=ended)
        removed = await to_its_end(asyncio.to_thread(self._evidence.remove_doomed, [intent.topic], partitions))
        self._note_done(intent, works, removed)
        intent.phase, intent.found_before = REWRITTEN, []
        await self.table.save(intent, key)
        return await self._certificates.certify(intent, subject, works, key, progress)

    def _note_ends(self, intent: RedactionIntent) -> None:
        """Record the ends of the logs; of one that could not be opened before, its end when it is first seen."""
        for _, index in self._certificates.partitions(intent):
            log = self._evidence.log((intent.topic, index))
            if log is not None:
                intent.ends.setdefault(str(index), log.log_end_offset)

    async def _end(
        self, intent: RedactionIntent, subject: Redacted, key: SigningKey, progress: Progress, ended: Ended
    ) -> Redaction:
        """End it, as its topic is not there any more; the scan tells where else the bytes were seen."""
        await to_its_end(asyncio.to_thread(self._evidence.remove_doomed, [intent.topic], []))
        subject.topics = frozenset()
        return await self._certificates.end(
            intent, subject, key, await self._evidence.scan(subject, progress), ended=ended
        )

    async def give_up(self, intent: RedactionIntent, key: SigningKey, ended: Ended) -> Redaction:
        """End a redaction without changing anything else; `ended` stands in its certificate."""
        where = parse_where(intent.where, intent.undecided)
        intent.is_manual_clock |= not isinstance(self._evidence.env.clock, SystemClock)
        return await self._certificates.end(intent, self._subject(intent, where, key), key, ended=ended)

    def _subject(self, intent: RedactionIntent, where: Where, key: SigningKey) -> Redacted:
        needles = Needles(key.secret)
        for fields in intent.needles:
            needles.add_needle(Needle.from_fields(fields))
        needles.left_out = intent.left_out
        return Redacted(where, intent.topic, needles)

    async def _locate(
        self,
        intent: RedactionIntent,
        subject: Redacted,
        partitions: Sequence[TopicPartition],
        progress: Progress,
    ) -> list[Work]:
        logs = [
            log for partition in partitions if (log := self._evidence.log(partition)) is not None and not log.is_deleted
        ]
        progress.begin("locating the records", sum(log.size for log in logs), "bytes")
        sample = await asyncio.to_thread(take_sample, self._evidence.env, self._evidence.directory, partitions)
        for text in subject.where.needles:
            subject.needles.add(WHERE, text, sample)

        def note_value(value: bytes) -> None:
            # Those beyond are not even looked at: choosing what to search for takes longer than anything else here.
            if len(subject.needles) < MAX_NEEDLES:
                subject.needles.add(VALUE_NEEDLE, value, sample)
            else:
                subject.needles.left_out += 1

        works: list[Work] = []
        room = MAX_OFFSET_BYTES
        for log in logs:
            index = str(log.partition)
            if intent.phase != REWRITING:
                intent.stable[index] = min(log.last_stable_offset, intent.ends.get(index, 0))
            below = intent.stable.get(index, 0)
            active = Segment(
                log.active.base_offset, log.active.path, log.active.size, tuple(log.active.txn_index.all())
            )
            closed = list(log.segments[:-1])

            def locate(
                check: Callable[[], object],
                room: int = room,
                log: Log = log,
                below: int = below,
                active: Segment = active,
                closed: Any = closed,
            ) -> Located:
                segments = [
                    Segment(one.base_offset, one.path, one.size, tuple(one.txn_index.all()))
                    for one in closed
                    if not one.is_deleted
                ]
                return locate_records(
                    self._evidence.env,
                    [*segments, active],
                    subject.where,
                    below,
                    is_compacted=log.config.is_compacted,
                    offset_bytes=room,
                    on_value=note_value,
                    advance=progress.advance,
                    check=check,
                )

            try:
                located = await in_thread(locate)
            except TooManyMatches as error:
                raise NotPossible(f"{log.topic}-{log.partition}: {error}; nothing was changed there") from None
            works.append(Work(log, located))
            room -= located.nbytes
        return works

    def _refused(self, intent: RedactionIntent, works: Sequence[Work]) -> Ended | None:
        """Return the end of a run that would empty the topic without consent; EverythingMatches if a caller waits."""
        text = None if intent.phase == REWRITING else everything_matches(intent, works)
        if text is None:
            return None
        if intent.phase == LOCATING:
            raise EverythingMatches(text)
        logger.warning("redaction %s: %s", intent.id, text)
        return Ended(EVERYTHING_MATCHES, self._evidence.env.clock.now_ms(), text)

    async def _begin(self, intent: RedactionIntent, subject: Redacted, works: Sequence[Work], key: SigningKey) -> None:
        """Write the intent to disk before anything is changed."""
        for work in works:
            directory = names.partition_dir_name(work.log.topic, work.log.partition)
            work.files = [f"{directory}/{base:020d}{names.LOG_SUFFIX}" for base in sorted(work.located.offsets)]
        if intent.phase != REWRITING:
            ends = self._evidence.ends()
            known = {one["file"] for one in intent.before}
            files = [name for work in works for name in work.files if name not in known]
            intent.before += await asyncio.to_thread(self._evidence.digests, files, ends)
            intent.found_before = await asyncio.to_thread(deepcopy, intent.found)
            for work in works:
                await asyncio.to_thread(add_found, intent, work)
        intent.needles = [needle.to_fields() for needle in subject.needles]
        intent.left_out = subject.needles.left_out
        intent.phase = REWRITING
        await self.table.save(intent, key)

    def _note_done(
        self, intent: RedactionIntent, works: Sequence[Work], files_removed: Mapping[TopicPartition, int]
    ) -> None:
        steps = {(one["topic"], one["partition"]): one for one in intent.done}
        for work in works:
            partition = (work.log.topic, work.log.partition)
            if not work.rewritten and partition not in steps:
                continue
            step = steps.get(partition)
            if step is None:
                step = {"topic": partition[0], "partition": partition[1], "segments_rewritten": 0, "was_rolled": False}
                intent.done.append(step)
            step["segments_rewritten"] += work.rewritten
            step["was_rolled"] |= work.was_rolled
            step["files_removed_at_once"] = step.get("files_removed_at_once", 0) + files_removed.get(partition, 0)


def _leave_what_refuses_writes(intent: RedactionIntent, works: Sequence[Work]) -> None:
    """Change nothing in partitions whose active segment would have to be closed and cannot be; others need not wait for it.

    What would go from there is located and counted in a later run.
    """
    for work in works:
        log = work.log
        if log.write_failure is not None and log.active.base_offset in work.located.offsets:
            work.located = Located(problems=[CorruptLog(log.active.path, 0, _REFUSES_WRITES)])
            intent.stable.pop(str(log.partition), None)
            if intent.phase == REWRITING:
                others = [one for one in intent.found if one["partition"] != log.partition]
                intent.found = others + [one for one in intent.found_before if one["partition"] == log.partition]
