"""The verdict of a redaction's scan, and the certificate about it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from diamant.broker.erasure.certification.scope import Present, present_of
from diamant.broker.erasure.jobs.removal import Ended, Removal
from diamant.broker.erasure.jobs.removal_certificates import RemovalCertificates, Verdict
from diamant.broker.erasure.redact.redact_result import Redaction, Work, relative_path
from diamant.broker.transactions.open_in_log import oldest_open
from diamant.cleaner.evidence.certificates.certificate import REDACTION_TYPE
from diamant.cleaner.evidence.scan.report import MAY_MATCH, ScanReport, written_since_fields
from diamant.cleaner.redaction.claims import (
    MEANT,
    NOT_COVERED,
    NOT_COVERED_OF_FIELDS,
    NOT_STABLE,
    WHERE,
    Redacted,
    gone_state,
    is_only_undecided,
    kept_astray,
    kept_undecided,
    matching_from,
    request_fields,
    state_of,
    unmatched,
)
from diamant.cleaner.redaction.intent import HELD, RedactionIntent
from diamant.cleaner.redaction.where import Where
from diamant.json_types import JsonObject
from diamant.storage import names
from diamant.storage.certificate_states import NOT_CERTIFIED, NOTHING_MATCHED, RECORDS_GONE
from diamant.storage.checkpoints.checkpoints import TopicPartition

logger = logging.getLogger(__name__)

MAY_MATCH_OR_STAYS = f"this record matches but cannot be changed, or {MAY_MATCH}"
UNDECIDED_LEFT = "undecided-records"
"""`ended.what` in the certificate of a redaction that ended because of undecided records only."""


@dataclass(frozen=True, slots=True)
class RedactVerdict(Verdict):
    """The findings of a scan about a redaction."""

    claims: Sequence[Mapping[str, Any]]
    """The claims that the scan supports."""
    refused: Sequence[Mapping[str, Any]]
    """The claims that the scan does not support, with the reasons."""


class RedactCertificates(RemovalCertificates[RedactionIntent]):
    """The part of a redaction that judges scans and certifies their results."""

    async def certify(self, intent: RedactionIntent, removal: Removal[Redacted], works: Sequence[Work]) -> Redaction:
        """Scan, then sign and store the result. Removes the intent, unless a retry is needed."""
        report = await self._scan(intent, removal)
        files = [one.file for one in intent.before]
        after = await asyncio.to_thread(self._evidence.digests, files, self._evidence.ends())
        present, now_ms = present_of(self._evidence.topics, intent), self._evidence.env.clock.now_ms()
        if present.ended:
            return await self._end(intent, removal, report, Ended(present.ended[0].what, now_ms))
        claims, refused = self._claims(intent, removal.subject, works, report, present)
        certified = gone_state(removal.subject.where) if intent.matches_found else NOTHING_MATCHED
        state, ended = certified if claims and not refused else NOT_CERTIFIED, None
        intent = replace(intent, due_ms=None)
        if refused and all(_is_undecided(report, one) for one in refused):
            # A retry would not help: the caller has to decide about these records.
            ended = Ended(UNDECIDED_LEFT, now_ms)
        elif state == NOT_CERTIFIED:
            # Each attempt scans everything, so the pauses grow.
            due_ms = self._table.retry_ms(intent.retries)
            intent = replace(intent, phase=HELD, due_ms=due_ms, retries=intent.retries + 1)
        return await self._issue(intent, removal, RedactVerdict(report, after, present, state, claims, refused), ended)

    async def end(
        self, intent: RedactionIntent, removal: Removal[Redacted], ended: Ended, *, is_scanned: bool = False
    ) -> Redaction:
        """End the redaction without claims: issue a certificate that states the cause, and remove the intent."""
        report = await self._scan(intent, removal) if is_scanned else ScanReport()
        return await self._end(intent, removal, report, ended)

    async def _end(
        self, intent: RedactionIntent, removal: Removal[Redacted], report: ScanReport, ended: Ended
    ) -> Redaction:
        present = present_of(self._evidence.topics, intent)
        refused = [
            {
                "topic": topic,
                "partition": index,
                "below_offset": intent.ends.get(index, 0),
                "state": ended.what,
                "problems": [],
            }
            for topic, index in present.partitions
        ]
        verdict = RedactVerdict(report, (), present, NOT_CERTIFIED, [], refused)
        return await self._issue(replace(intent, due_ms=None), removal, verdict, ended)

    async def _scan(self, intent: RedactionIntent, removal: Removal[Redacted]) -> ScanReport:
        """Scan everything, including for the remains of earlier jobs in the topic."""
        return await self.scan(intent, removal, lambda earlier: intent.topic in earlier.topics)

    async def _issue(
        self, intent: RedactionIntent, removal: Removal[Redacted], verdict: RedactVerdict, ended: Ended | None
    ) -> Redaction:
        """Sign and store a certificate. Save the intent if it has a due time; otherwise, remove it."""
        own = self._own_fields(intent, removal.subject, verdict, ended)
        signed, path = await self.sign(intent, removal, verdict, [intent.topic], own, ended)
        if intent.due_ms is not None:
            await self._table.save(intent, removal.key, intent.due_ms)
        state, removed = verdict.state, intent.records_found
        done = "removed from" if removal.subject.where.blanking is None else "changed in"
        logger.info("redaction %s: %s, %d records %s %s", intent.id, state, removed, done, intent.topic)
        key, due_ms = removal.key.public_pem, intent.due_ms
        return Redaction(intent.id, state, signed, path, key, due_ms, removed, held_by=removal.holders)

    def _claims(
        self,
        intent: RedactionIntent,
        subject: Redacted,
        works: Sequence[Work],
        report: ScanReport,
        present: Present,
    ) -> tuple[list[JsonObject], list[JsonObject]]:
        """Return the claims that the scan supports, and those that it does not support, with the reasons."""
        report.disown(subject, present.topics, present.partitions, present.later)
        self._table.waits_for.pop(intent.id, None)
        claims, refused = [], []
        located = {work.log.partition: work for work in works}
        for index, end in sorted(intent.ends.items()):
            partition = (intent.topic, index)
            claim = {"topic": intent.topic, "partition": index, "below_offset": end}
            state = state_of(report, partition, end, intent.undecided)
            if state == RECORDS_GONE:
                claims.append({**claim, "state": gone_state(subject.where)})
                continue
            work = located.get(index)
            problems = _reasons(report, partition, end, subject.where)
            stable = end if work is None else min(end, work.log.last_stable_offset)
            is_held = stable < end and not is_only_undecided(report, partition, end)
            if is_held and state_of(report, partition, stable, intent.undecided) == RECORDS_GONE:
                claims.append({**claim, "below_offset": stable, "state": gone_state(subject.where)})
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

    def _own_fields(
        self, intent: RedactionIntent, subject: Redacted, verdict: RedactVerdict, ended: Ended | None
    ) -> Mapping[str, Any]:
        report, claims = verdict.report, verdict.claims
        later = ((one, 0) for one in verdict.present.later)
        ends = [*((_partition(claim), claim["below_offset"]) for claim in claims), *later]
        since = [found for one in ends for found in matching_from(report, *one)]
        unlisted = sum(report.unlisted_since(*one, MEANT) for one in ends)
        return {
            "type": REDACTION_TYPE,
            "request": {
                "topic_ids": {name: known.topic_id for name, known in intent.scope.items()},
                **request_fields(subject.where, intent.topic, subject.needles.secret),
                "all_records_agreed": intent.is_all_agreed,
            },
            "runs": intent.runs,
            "overrides": [*kept_undecided(report, subject.where, claims), *kept_astray(report, subject.where)],
            "claims": claims,
            "not_certified": verdict.refused,
            **written_since_fields(since, unlisted),
            "unmatched": None if ended or intent.matches_found else unmatched(report, subject),
            "lost_tombstones": [],
            "coverage": {"texts_searched_for": sum(1 for one in subject.needles if one.kind == WHERE)},
            "next": None,
            "not_covered": (*NOT_COVERED, *(NOT_COVERED_OF_FIELDS if subject.where.blanking else ())),
        }


def _reasons(report: ScanReport, partition: TopicPartition, end: int, where: Where) -> list[dict[str, object]]:
    found = report.reasons(partition, end)
    if where.blanking is None:
        return found
    return [{**one, "reason": MAY_MATCH_OR_STAYS} if one["reason"] == MAY_MATCH else one for one in found]


def _is_undecided(report: ScanReport, refused: Mapping[str, Any]) -> bool:
    return "below_offset" in refused and is_only_undecided(report, _partition(refused), refused["below_offset"])


def _partition(claim: Mapping[str, Any]) -> TopicPartition:
    return claim["topic"], claim["partition"]
