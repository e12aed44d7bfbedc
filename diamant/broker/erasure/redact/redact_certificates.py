"""The result of a redaction's scan, and its certificate."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from diamant.broker.erasure.evidence.evidence import Evidence
from diamant.broker.erasure.evidence.scope import Present, present_of
from diamant.broker.erasure.jobs.ended import Ended
from diamant.broker.erasure.jobs.job_table import JobTable
from diamant.broker.erasure.redact.redact_result import Redaction, Work, relative_path
from diamant.broker.operations.calls.blocking import to_its_end
from diamant.broker.operations.calls.progress import Progress
from diamant.broker.transactions.open_in_log import oldest_open
from diamant.cleaner.evidence.certificates import broker_files, own_certificates
from diamant.cleaner.evidence.certificates.certificate import NOTHING_MATCHED, REDACTION_TYPE, VERSION
from diamant.cleaner.evidence.certificates.files import NOT_CERTIFIED
from diamant.cleaner.evidence.certificates.intent_parts import FileDigest, rows
from diamant.cleaner.evidence.certificates.signing_key import SigningKey
from diamant.cleaner.evidence.certificates.verification import RECORDS_GONE
from diamant.cleaner.evidence.scan.report import ScanReport, written_since_fields
from diamant.cleaner.evidence.search.needles import MIN_BYTES
from diamant.cleaner.redaction.claims import (
    MEANT,
    NOT_COVERED,
    NOT_STABLE,
    WHERE,
    Redacted,
    is_only_undecided,
    kept_astray,
    kept_undecided,
    matching_from,
    request_fields,
    state_of,
    unmatched,
)
from diamant.cleaner.redaction.intent import HELD, RedactionIntent
from diamant.storage import names
from diamant.storage.checkpoints.checkpoints import TopicPartition

logger = logging.getLogger(__name__)

UNDECIDED_LEFT = "undecided-records"
"""`ended.what` in the certificate of a redaction blocked only by undecidable records."""


class RedactCertificates:
    """Reads scans, writes certificates."""

    def __init__(self, evidence: Evidence, table: JobTable[RedactionIntent]) -> None:
        """`table` counts the certificates."""
        self._evidence = evidence
        self._table = table

    async def certify(
        self,
        intent: RedactionIntent,
        subject: Redacted,
        works: Sequence[Work],
        key: SigningKey,
        progress: Progress,
    ) -> Redaction:
        """Scan, then sign and store the result. The intent is removed unless a retry is due."""
        report = await self.scan(intent, subject, key, progress)
        if (ended := self.ended(intent)) is not None:
            return await self.end(intent, subject, key, report, ended=ended)
        claims, refused = self._claims(intent, subject, works, report)
        certified = RECORDS_GONE if intent.records_found else NOTHING_MATCHED
        state = certified if claims and not refused else NOT_CERTIFIED
        intent = replace(intent, due_ms=None)
        if refused and all(_is_undecided(report, one) for one in refused):
            # A retry cannot help: the caller has to decide about these records.
            ended = Ended(UNDECIDED_LEFT, self._evidence.env.clock.now_ms())
            return await self._issue(intent, subject, key, report, claims, refused, state, ended)
        if state == NOT_CERTIFIED:
            # Each attempt scans everything, so the pauses grow.
            due_ms = self._table.retry_ms(intent.retries)
            intent = replace(intent, phase=HELD, due_ms=due_ms, retries=intent.retries + 1)
        return await self._issue(intent, subject, key, report, claims, refused, state)

    async def scan(self, intent: RedactionIntent, subject: Redacted, key: SigningKey, progress: Progress) -> ScanReport:
        """Scan everything, also for what earlier jobs in the topic were looking for."""
        return await self._evidence.scan(subject, key, progress, lambda earlier: intent.topic in earlier.topics)

    async def end(
        self,
        intent: RedactionIntent,
        subject: Redacted,
        key: SigningKey,
        report: ScanReport | None = None,
        *,
        ended: Ended,
    ) -> Redaction:
        """End the redaction uncertified: the certificate states the cause, and the intent is removed.

        `report` None: nothing was scanned.
        """
        intent = replace(intent, due_ms=None)
        refused = [
            {
                "topic": topic,
                "partition": index,
                "below_offset": intent.ends.get(index, 0),
                "state": ended.what,
                "problems": [],
            }
            for topic, index in self.present(intent).partitions
        ]
        return await self._issue(intent, subject, key, report or ScanReport(), [], refused, NOT_CERTIFIED, ended)

    async def _issue(
        self,
        intent: RedactionIntent,
        subject: Redacted,
        key: SigningKey,
        report: ScanReport,
        claims: list[dict[str, Any]],
        refused: list[dict[str, Any]],
        state: str,
        ended: Ended | None = None,
    ) -> Redaction:
        """Sign and store a certificate. An intent with a due time is rewritten, any other removed."""
        # Without a scan, digests mean nothing, and computing them may take long.
        names_after = [one.file for one in intent.before] if self.ended(intent) is None and report.rows else []
        after = await asyncio.to_thread(self._evidence.digests, names_after, self._evidence.ends())
        fields = self._certificate_fields(intent, subject, report, claims, refused, state, after, ended)
        if intent.due_ms is None:
            settle = partial(self._evidence.remains.settle, is_redaction=True)
            await to_its_end(asyncio.to_thread(settle, intent.remains(), report, key))
        signed, path = await self._table.issue(fields, key, is_last=intent.due_ms is None)
        if intent.due_ms is not None:
            await self._table.save(intent, key, intent.due_ms)
        self._table.count_certificate(state, has_ended=ended is not None)
        removed = intent.records_found
        logger.info("redaction %s: %s, %d records removed from %s", intent.id, state, removed, intent.topic)
        return Redaction(intent.id, state, removed, signed, path, key.public_pem, intent.due_ms)

    def present(self, intent: RedactionIntent) -> Present:
        """Return the topic of a redaction and its partitions, as far as they still exist."""
        return present_of(self._evidence.topics, [intent.topic], intent.scope)

    def ended(self, intent: RedactionIntent) -> Ended | None:
        """Return the end of a redaction whose topic no longer exists; None if it exists."""
        ended = self.present(intent).ended
        return Ended(ended[0].what, self._evidence.env.clock.now_ms()) if ended else None

    def _claims(
        self, intent: RedactionIntent, subject: Redacted, works: Sequence[Work], report: ScanReport
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return the claims that the scan supports, and those that it does not, with the reason."""
        present = self.present(intent)
        report.disown(subject, present.topics, present.partitions, present.later)
        self._table.waits_for.pop(intent.id, None)
        claims, refused = [], []
        located = {work.log.partition: work for work in works}
        for index, end in sorted(intent.ends.items()):
            partition = (intent.topic, index)
            claim = {"topic": intent.topic, "partition": index, "below_offset": end}
            state = state_of(report, partition, end, intent.undecided)
            if state == RECORDS_GONE:
                claims.append({**claim, "state": state})
                continue
            problems = report.reasons(partition, end)
            work = located.get(index)
            stable = end if work is None else min(end, work.log.last_stable_offset)
            is_held = stable < end and not is_only_undecided(report, partition, end)
            if is_held and state_of(report, partition, stable, intent.undecided) == RECORDS_GONE:
                claims.append({**claim, "below_offset": stable, "state": RECORDS_GONE})
                where = names.partition_dir_name(*partition)
                held = matching_from(report, partition, stable, end)
                opened = None if work is None else oldest_open(work.log)
                which = "are of open transactions" if opened is None else f"are of {opened.text},"
                reason = f"records from offset {stable} on {which} or lie behind one; {len(held)} of them match"
                self._table.waits_for[intent.id] = f"{where}: {reason}"
                refused.append({**claim, "state": NOT_STABLE, "problems": [{"file": where, "reason": reason}]})
                continue
            if work is not None:
                problems += [
                    {"file": relative_path(work.log, one.path), "reason": one.reason} for one in work.located.problems
                ]
            refused.append({**claim, "state": state, "problems": problems})
        for topic, index in present.partitions:
            if index not in intent.ends and (topic, index) not in self._evidence.logs:
                refused.append({"topic": topic, "partition": index, "state": "not opened", "problems": []})
        return claims, refused

    def _certificate_fields(
        self,
        intent: RedactionIntent,
        subject: Redacted,
        report: ScanReport,
        claims: list[dict[str, Any]],
        refused: list[dict[str, Any]],
        state: str,
        after: tuple[FileDigest, ...],
        ended: Ended | None,
    ) -> dict[str, Any]:
        present = self.present(intent)
        shared = self._evidence.fields(intent, [intent.topic], present, report, after)
        ends = [*((_partition(claim), claim["below_offset"]) for claim in claims), *((one, 0) for one in present.later)]
        since = [found for one in ends for found in matching_from(report, *one)]
        unlisted = sum(report.unlisted_since(*one, MEANT) for one in ends)
        return {
            "type": REDACTION_TYPE,
            "version": VERSION,
            "id": intent.id,
            "state": state,
            **shared.issuer,
            "request": {
                "reason": intent.reason,
                "reference": intent.reference,
                "topic_ids": {name: known.topic_id for name, known in intent.scope.items()},
                **request_fields(subject.where, intent.topic, subject.needles.secret),
                "all_records_agreed": intent.is_all_agreed,
            },
            "found": rows(intent.found),
            "done": rows(intent.done),
            "runs": intent.runs,
            "overrides": [*kept_undecided(report, claims), *kept_astray(report, subject.where)],
            "claims": claims,
            "not_certified": refused,
            "ended": None if ended is None else ended.to_fields(),
            **shared.changes,
            **written_since_fields(since, unlisted),
            "unmatched": None if ended or intent.records_found else unmatched(report, subject),
            "lost_tombstones": [],
            **shared.files,
            "coverage": {
                **report.coverage(frozenset([intent.topic])),
                "values_searched_for": len(report.values),
                "texts_searched_for": sum(1 for one in subject.needles if one.kind == WHERE),
                "values_not_searched_for": subject.needles.left_out,
                "least_bytes_of_a_searched_value": MIN_BYTES,
            },
            "next": None,
            "not_covered": [*NOT_COVERED, *own_certificates.not_covered(report), *broker_files.not_covered(report)],
        }


def _is_undecided(report: ScanReport, refused: Mapping[str, Any]) -> bool:
    return "below_offset" in refused and is_only_undecided(report, _partition(refused), refused["below_offset"])


def _partition(claim: Mapping[str, Any]) -> TopicPartition:
    return claim["topic"], claim["partition"]
