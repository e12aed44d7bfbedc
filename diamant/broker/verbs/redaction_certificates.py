"""What a redaction's scan amounts to, and the certificate of it: the part of `Redactions` that changes no log."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from diamant.broker.verbs.progress import Progress
from diamant.broker.verbs.redaction import NOT_CERTIFIED, Redaction, Work, relative_path
from diamant.broker.verbs.undertakings import MAX_RETRY_DOUBLINGS, RETRY_MS, Undertakings
from diamant.cleaner.evidence import certificate as certificates
from diamant.cleaner.evidence.certificate_files import REDACTION_PREFIX, certificate_path
from diamant.cleaner.evidence.needles import MIN_BYTES
from diamant.cleaner.evidence.needles import VALUE as VALUE_NEEDLE
from diamant.cleaner.evidence.record_search import MAX_LISTED
from diamant.cleaner.evidence.scan import ScanReport
from diamant.cleaner.evidence.signing_key import SigningKey
from diamant.cleaner.evidence.verification import RECORDS_GONE
from diamant.cleaner.redaction_evidence import (
    NOT_COVERED,
    NOT_STABLE,
    WHERE,
    Redacted,
    matching_from,
    request_fields,
    state_of,
)
from diamant.cleaner.redaction_intent import HELD, RedactionIntent, remove_redaction, write_redaction
from diamant.storage import names
from diamant.storage.checkpoints import TopicPartition

logger = logging.getLogger(__name__)


class RedactionCertificates(Undertakings):
    """Reads scans, writes certificates."""

    noun = "redaction"

    async def _certify(
        self,
        intent: RedactionIntent,
        subject: Redacted,
        works: Sequence[Work],
        key: SigningKey,
        progress: Progress,
    ) -> Redaction:
        """Scan, sign what that has shown, and keep it; then the intent goes, unless something is left."""
        report = await self._scan(subject, progress)
        claims, refused = self._claims(intent, works, report)
        texts = {one.digest.hex() for one in subject.needles if one.kind == WHERE}
        astray = [one for one in report.astray if one.digest not in texts]
        state = RECORDS_GONE if claims and not refused and not astray else NOT_CERTIFIED
        names_after = [one["file"] for one in intent.before]
        ends = self._ends()
        after = await asyncio.to_thread(self._digests, names_after, ends)
        now_ms = self._env.clock.now_ms()
        intent.due_ms = None
        if state == NOT_CERTIFIED:
            intent.phase = HELD
            # Each try reads everything, so what does not get better is tried less and less often.
            intent.due_ms = now_ms + (RETRY_MS << min(intent.retries, MAX_RETRY_DOUBLINGS))
            intent.retries += 1
        fields = self._certificate_fields(intent, subject, report, claims, refused, state, after)
        signed = certificates.sign(fields, key)
        path = certificate_path(self._directory, intent.id, state, REDACTION_PREFIX)
        text = json.dumps(signed, indent=1, sort_keys=True).encode()
        await asyncio.to_thread(self._env.write_atomically, path, text)
        if intent.due_ms is None:
            await asyncio.to_thread(remove_redaction, self._env, self._directory, intent.id)
            self._due.pop(intent.id, None)
            self.done += 1
        else:
            await asyncio.to_thread(write_redaction, self._env, self._directory, intent, key)
            self._schedule(intent.id, intent.due_ms)
            self.failed += 1
        removed = sum(one["records"] for one in intent.found)
        logger.info("redaction %s: %s, %d records removed from %s", intent.id, state, removed, intent.topic)
        return Redaction(intent.id, state, removed, signed, path, key.public_pem, intent.due_ms)

    def _claims(
        self, intent: RedactionIntent, works: Sequence[Work], report: ScanReport
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """What the scan lets one say of each partition; and what not, with the reason."""
        claims, refused = [], []
        located = {work.log.partition: work for work in works}
        for text, end in sorted(intent.ends.items(), key=lambda one: int(one[0])):
            partition = (intent.topic, int(text))
            claim = {"topic": intent.topic, "partition": int(text), "below_offset": end}
            state = state_of(report, partition, end)
            if state == RECORDS_GONE:
                claims.append({**claim, "state": state})
                continue
            problems = [one.to_fields() for one in report.problems(partition)[:10]]
            work = located.get(int(text))
            stable = end if work is None else min(end, work.log.last_stable_offset)
            if stable < end and state_of(report, partition, stable) == RECORDS_GONE:
                claims.append({**claim, "below_offset": stable, "state": RECORDS_GONE})
                held = matching_from(report, partition, stable, end)
                reason = f"records from offset {stable} on are of open transactions, or lie behind one; {len(held)} of them match"
                where = names.partition_dir_name(*partition)
                refused.append({**claim, "state": NOT_STABLE, "problems": [{"file": where, "reason": reason}]})
                continue
            if work is not None:
                problems += [
                    {"file": relative_path(work.log, one.path), "reason": one.reason} for one in work.located.problems
                ]
            refused.append({**claim, "state": state, "problems": problems})
        for topic, index in self._partitions_of([intent.topic]):
            if str(index) not in intent.ends and self._log((topic, index)) is None:
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
        after: list[dict[str, Any]],
    ) -> dict[str, Any]:
        since = [one for claim in claims for one in matching_from(report, _partition(claim), claim["below_offset"])]
        return {
            "type": certificates.REDACTION_TYPE,
            "version": certificates.VERSION,
            "id": intent.id,
            "state": state,
            **self._origin(intent.requested_ms, is_manual_clock=intent.is_manual_clock),
            "request": {
                "reason": intent.reason,
                "reference": intent.reference,
                **request_fields(subject.where, intent.topic, subject.needles.secret),
                "all_records_agreed": intent.is_all_agreed,
            },
            "found": intent.found,
            "done": intent.done,
            "runs": intent.runs,
            "overrides": [],
            "claims": claims,
            "not_certified": refused,
            "written_since": [one.to_fields() for one in since[:MAX_LISTED]],
            "lost_tombstones": [],
            "elsewhere": [one.to_fields() for one in [*report.elsewhere, *report.astray][:MAX_LISTED]],
            "elsewhere_not_listed": sum(report.unlisted.values()),
            "segments": {
                "before": intent.before,
                "before_root": certificates.merkle_root(intent.before),
                "after": after,
                "after_root": certificates.merkle_root(after),
            },
            "configuration": {intent.topic: self._configuration(intent.topic)},
            "coverage": {
                **report.coverage(frozenset([intent.topic])),
                "values_searched_for": sum(1 for one in subject.needles if one.kind == VALUE_NEEDLE),
                "texts_searched_for": sum(1 for one in subject.needles if one.kind == WHERE),
                "values_not_searched_for": subject.needles.left_out,
                "least_bytes_of_a_searched_value": MIN_BYTES,
            },
            "next": None,
            "not_covered": list(NOT_COVERED),
        }


def _partition(claim: Mapping[str, Any]) -> TopicPartition:
    return claim["topic"], claim["partition"]
