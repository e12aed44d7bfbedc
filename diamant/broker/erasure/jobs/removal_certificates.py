"""Certificates of removals. They are made from the findings of a scan, and signed by `JobTable.issue`."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Generic

from diamant.broker.erasure.certification.evidence import Evidence, ScanRequest
from diamant.broker.erasure.certification.kept_remains import IsMeant
from diamant.broker.erasure.certification.scope import Present
from diamant.broker.erasure.jobs.job_table import JobTable
from diamant.broker.erasure.jobs.removal import Ended, IntentT, Removal
from diamant.cleaner.evidence.certificates import broker_files, own_certificates
from diamant.cleaner.evidence.certificates.certificate import VERSION, merkle_root
from diamant.cleaner.evidence.certificates.intent_parts import FileDigest, rows
from diamant.cleaner.evidence.scan.report import ScanReport
from diamant.cleaner.evidence.search.findings import MAX_LISTED
from diamant.cleaner.evidence.search.needles import MIN_BYTES
from diamant.json_types import JsonObject
from diamant.own_thread import to_its_end
from diamant.storage.certificate_states import LAST_STATES

FIELDS = (
    "type", "version", "id", "state", "is_evidence", "clock", "issuer", "request", "found", "done", "runs", "overrides", "claims",
    "not_certified", "ended", "topics_ended", "partitions_added", "written_since", "written_since_not_listed",
    "tombstones_since", "tombstones_since_not_listed", "unmatched", "lost_tombstones", "elsewhere", "elsewhere_not_listed",
    "segments", "configuration", "coverage", "next", "not_covered",
)  # fmt: skip
"""The fields of certificates, in the order in which HTTP responses show them."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a scan says about a removal. Sign it in the same turn of the loop, since topics may change after that."""

    report: ScanReport
    after: tuple[FileDigest, ...]
    """The digests of the affected segments after the removal; empty if nothing was scanned."""
    present: Present
    state: str
    """The state that all claims together support."""


class RemovalCertificates(Generic[IntentT]):
    """Issues the certificates of one kind of removal. Belongs to the loop thread."""

    def __init__(self, evidence: Evidence, table: JobTable[IntentT]) -> None:
        """`table`: counts the certificates, and forgets the jobs that have ended."""
        self._evidence = evidence
        self._table = table

    async def scan(self, intent: IntentT, removal: Removal[Any], is_meant: IsMeant) -> ScanReport:
        """Scan everything for the subject and the remains that `is_meant` selects. Its group shares the scan. May take long."""
        asked = ScanRequest(removal.subject, is_meant)
        if removal.group is not None:
            return await removal.group.scan(intent.id, asked)
        [report] = await self._evidence.scan([asked], removal.key, removal.progress)
        return report

    async def sign(
        self,
        intent: IntentT,
        removal: Removal[Any],
        verdict: Verdict,
        topics: Collection[str],
        own: Mapping[str, Any],
        ended: Ended | None,
    ) -> tuple[JsonObject, str]:
        """Sign and store a certificate, and return it with its path. Remove the intent if the state is final or `ended` is given.

        `topics`: the topics that the certificate lists. `own`: fields that only this kind has, or to which it adds.
        """
        fields = self._fields(intent, removal, verdict, topics, own, ended)
        is_last = verdict.state in LAST_STATES or ended is not None
        if is_last:
            settle, remains = self._evidence.remains.settle, intent.remains(removal.key.secret)
            prefix = self._table.files.prefix
            await to_its_end(asyncio.to_thread(settle, prefix, remains, verdict.report, removal.key))
        signed, path = await self._table.issue(fields, removal.key, is_last=is_last)
        self._table.count_certificate(verdict.state, has_ended=ended is not None)
        return signed, path

    def _fields(
        self,
        intent: IntentT,
        removal: Removal[Any],
        verdict: Verdict,
        topics: Collection[str],
        own: Mapping[str, Any],
        ended: Ended | None,
    ) -> Mapping[str, Any]:
        report, present, needles = verdict.report, verdict.present, removal.subject.needles
        before, after = [asdict(one) for one in intent.before], [asdict(one) for one in verdict.after]
        fields = {
            **own,
            **self._evidence.issuer_fields(intent.requested_ms, is_manual_clock=intent.is_manual_clock),
            "version": VERSION,
            "id": intent.id,
            "state": verdict.state,
            "request": {"reason": intent.reason, "reference": intent.reference, **own["request"]},
            "found": rows(intent.found),
            "done": rows(intent.done),
            "ended": None if ended is None else ended.to_fields(),
            "topics_ended": [asdict(one) for one in present.ended],
            "partitions_added": [{"topic": topic, "partition": index} for topic, index in present.later],
            "elsewhere": [one.to_fields() for one in [*report.elsewhere, *report.astray][:MAX_LISTED]],
            "elsewhere_not_listed": report.elsewhere_not_listed(MAX_LISTED),
            "segments": {
                "before": before,
                "before_root": merkle_root(before),
                "after": after,
                "after_root": merkle_root(after),
            },
            "configuration": {name: self._evidence.configuration(name) for name in sorted(topics)},
            "coverage": {
                **report.coverage(frozenset(topics)),
                "values_searched_for": len(report.values),
                **own["coverage"],
                "values_not_searched_for": needles.left_out,
                "least_bytes_of_a_searched_value": MIN_BYTES,
            },
            "not_covered": [
                *own["not_covered"],
                *own_certificates.not_covered(report),
                *broker_files.not_covered(report),
            ],
        }
        return {name: fields[name] for name in sorted(fields, key=FIELDS.index)}
