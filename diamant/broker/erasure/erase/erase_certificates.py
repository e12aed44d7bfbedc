"""The result of an erasure's scan, and its certificate."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from diamant.broker.erasure.erase.erase_result import Erasure
from diamant.broker.erasure.erase.erasing import Erasing
from diamant.broker.erasure.erase.groups_behind import GroupsBehind
from diamant.broker.erasure.evidence.evidence import Evidence
from diamant.broker.erasure.evidence.scope import Claims, claims_of
from diamant.broker.erasure.jobs.ended import Ended
from diamant.broker.erasure.jobs.job_table import JobTable
from diamant.broker.operations.calls.blocking import to_its_end
from diamant.broker.transactions.open_in_log import open_transaction_problem
from diamant.cleaner.erasure.intent import Intent
from diamant.cleaner.evidence.certificates import broker_files, own_certificates
from diamant.cleaner.evidence.certificates.certificate import NOT_COVERED, TYPE, VERSION
from diamant.cleaner.evidence.certificates.files import LAST_STATES, NOT_CERTIFIED
from diamant.cleaner.evidence.certificates.intent_parts import FileDigest, rows
from diamant.cleaner.evidence.scan.file_listing import is_of_log
from diamant.cleaner.evidence.scan.report import (
    INCONCLUSIVE,
    KEY_GONE,
    VALUES_GONE,
    ScanReport,
    tombstones_since_fields,
    written_since_fields,
)
from diamant.cleaner.evidence.search.findings import TOMBSTONE
from diamant.cleaner.evidence.search.needles import MIN_BYTES
from diamant.cleaner.evidence.search.record_search import Subject
from diamant.storage import names
from diamant.storage.checkpoints.checkpoints import TopicPartition
from diamant.storage.log.log import Log

logger = logging.getLogger(__name__)

NO_TOMBSTONE = "no-tombstone"
"""The reason in a certificate's `not_certified` for a partition that takes no tombstone."""

ONLY_THE_DIGEST = (
    "Bytes of the key outside of records: the broker was stopped during the last scan, and the one after it knew the key by its "
    "digest only. They were searched for before the certificate for values-gone."
)


GONE = (VALUES_GONE, KEY_GONE)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The findings of a scan about an erasure. Sign them in the same turn of the loop: topics may change after it."""

    report: ScanReport
    after: tuple[FileDigest, ...]
    """Digests of the affected segments now; empty if nothing was scanned."""
    claims: Claims
    states: Mapping[TopicPartition, str]
    """The state of each claim."""
    state: str
    """The state of all claims together."""


@dataclass(frozen=True, slots=True)
class EraseCertificates:
    """Reads scans, writes certificates."""

    evidence: Evidence
    groups: GroupsBehind
    table: JobTable[Intent]

    # -- the verdict of a scan -------------------------------------------------------------------------------------------

    async def judge(self, intent: Intent, erasing: Erasing) -> Verdict:
        """Scan everything, hash the affected segments, then return the verdict. Both may take long."""
        digest = erasing.subject.key_digest
        report = await self.evidence.scan(
            erasing.subject, erasing.key, erasing.progress, lambda earlier: earlier.concerns_key(digest, intent.topics)
        )
        files, ends = self._affected_files(intent), self.evidence.ends()
        after = await asyncio.to_thread(self.evidence.digests, files, ends)
        return self.judged(intent, erasing.subject, report, after)

    def judged(
        self, intent: Intent, subject: Subject, report: ScanReport, after: tuple[FileDigest, ...] = ()
    ) -> Verdict:
        """Return the verdict of a scan. `after`: digests of the affected segments now."""
        claims, digest = claims_of(intent, self.evidence.topics), subject.key_digest.hex()
        present = claims.present
        report.disown(subject, present.topics, present.partitions, present.later)
        states = {place: report.state(place, end, digest) for place, end in claims.ends.items()}
        state = NOT_CERTIFIED
        if states and not claims.unclaimed and {*states.values()} <= {*GONE}:
            if VALUES_GONE not in states.values():
                # Without a tombstone there is no horizon to wait for: what else names the key is to be removed by hand.
                state = NOT_CERTIFIED if report.astray else KEY_GONE
            elif intent.found:
                state = VALUES_GONE
        return Verdict(report, after, claims, states, state)

    def _affected_files(self, intent: Intent) -> list[str]:
        """Return the segments that now cover the offsets where the key was found, and those of its tombstones."""
        found = set()
        for partition in claims_of(intent, self.evidence.topics).affected:
            log = self.evidence.logs.get(partition)
            if log is None:
                continue
            directory = names.partition_dir_name(*partition)
            own = [name for name in intent.found[partition].files if is_of_log(name, *partition)]
            bases = [names.offset_of(os.path.basename(name)) for name in own]
            for base in [*bases, intent.claims.get(partition, 0) - 1]:
                segment = log.segments[max(0, log.floor_segment(base))]
                found.add(f"{directory}/{os.path.basename(segment.path)}")
        return sorted(found)

    # -- the certificate -------------------------------------------------------------------------------------------------

    async def issue(
        self,
        intent: Intent,
        erasing: Erasing,
        verdict: Verdict,
        due_ms: int | None = None,
        ended: Ended | None = None,
    ) -> Erasure:
        """Sign and store the verdict. With a final state, or with `ended`, the intent is removed."""
        state = verdict.state if ended is None else NOT_CERTIFIED
        fields = self._certificate_fields(intent, erasing.subject, verdict, state, due_ms, ended)
        is_last = state in LAST_STATES or ended is not None
        if is_last:
            own = intent.remains(erasing.key.secret)
            await to_its_end(asyncio.to_thread(self.evidence.remains.settle, own, verdict.report, erasing.key))
        signed, path = await self.table.issue(fields, erasing.key, is_last=is_last)
        self.table.count_certificate(state, has_ended=ended is not None)
        logger.info("erasure %s: %s", intent.id, state)
        unknown = await self.groups.not_known() if state == VALUES_GONE else []
        behind = await self.groups.behind(intent, verdict.claims.affected) if state == VALUES_GONE else {}
        return Erasure(intent.id, state, signed, path, erasing.key.public_pem, due_ms, behind, groups_not_known=unknown)

    def _certificate_fields(
        self, intent: Intent, subject: Subject, verdict: Verdict, state: str, due_ms: int | None, ended: Ended | None
    ) -> dict[str, Any]:
        report, present = verdict.report, verdict.claims.present
        claims, refused = _claims_and_refusals(intent, verdict, state, ended, self.evidence.logs)
        lost = self._lost_tombstones(intent, verdict)
        shared = self.evidence.fields(intent, sorted(subject.topics), present, report, verdict.after)
        ends = [*verdict.claims.ends.items(), *((one, 0) for one in present.later)]
        since = [found for one in ends for found in report.written_since(*one)]
        unlisted = sum(report.unlisted_since(*one) for one in ends)
        return {
            "type": TYPE,
            "version": VERSION,
            "id": intent.id,
            "state": state,
            **shared.issuer,
            "request": {
                "reason": intent.reason,
                "reference": intent.reference,
                "topics": [*intent.topics],
                "topic_ids": {name: known.topic_id for name, known in intent.scope.items()},
                "key_hmac": subject.key_digest.hex(),
                "key_bytes": intent.key_bytes,
                "hmac": "HMAC-SHA-256 with a secret that is not in the data directory",
            },
            "found": rows(intent.found),
            "done": rows(intent.done),
            "overrides": intent.override_rows(),
            "claims": claims,
            "not_certified": refused,
            "ended": None if ended is None else ended.to_fields(),
            **shared.changes,
            **written_since_fields(since, unlisted),
            **tombstones_since_fields(report, ends),
            "lost_tombstones": lost,
            **shared.files,
            "coverage": {
                **report.coverage(subject.topics),
                "values_searched_for": len(report.values),
                "values_not_searched_for": subject.needles.left_out,
                "least_bytes_of_a_searched_value": MIN_BYTES,
            },
            "next": None if due_ms is None or state != VALUES_GONE else {"state": KEY_GONE, "due_ms": due_ms},
            "not_covered": [
                *NOT_COVERED,
                *([ONLY_THE_DIGEST] if subject.key is None else []),
                *own_certificates.not_covered(report),
                *broker_files.not_covered(report),
            ],
        }

    def _lost_tombstones(self, intent: Intent, verdict: Verdict) -> list[dict[str, Any]]:
        """Return the partitions that lost a tombstone before its horizon, unrequested: consumers may have missed it."""
        report, lost = verdict.report, []
        partitions = frozenset(verdict.claims.present.partitions) if report.rows else frozenset()
        for partition, step in intent.done.items():
            log = self.evidence.logs.get(partition) if partition in partitions else None
            if log is None or step.tombstone_offset is None or step.removed_before_horizon:
                continue
            is_early = self.evidence.env.clock.now_ms() < intent.requested_ms + log.config.delete_retention_ms
            is_read = not report.problems(partition)
            end = intent.claims.get(partition, 0)
            # A later write of the key supersedes the tombstone, so it is removed like any old record.
            is_superseded = bool(report.written_since(partition, end) or report.tombstones_since(partition, end))
            if is_early and is_read and not is_superseded and not report.tombstones(partition, end):
                lost.append({"topic": partition[0], "partition": partition[1]})
        return lost


def _claims_and_refusals(
    intent: Intent,
    verdict: Verdict,
    state: str,
    ended: Ended | None,
    logs: Mapping[TopicPartition, Log],
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the claims about partitions, and the refusals with their reasons: scan findings, no tombstone, or no log."""
    claims, refused = [], []
    report, unclaimed = verdict.report, verdict.claims.unclaimed
    # The values are gone, but something still names the key: only `key-gone` was refused.
    is_key_wanted = state == NOT_CERTIFIED and not unclaimed and {*verdict.states.values()} <= {*GONE}
    for place, found in verdict.states.items():
        end = verdict.claims.ends[place]
        claim = {"topic": place[0], "partition": place[1], "below_offset": end}
        is_astray = is_key_wanted and found == KEY_GONE and bool(report.astray)
        if ended is not None:
            refused.append({**claim, "state": ended.what, "problems": []})
        elif found in GONE and not is_astray and not (is_key_wanted and found == VALUES_GONE):
            claims.append({**claim, "state": found})
        else:
            may_stay = "" if is_key_wanted else TOMBSTONE
            reasons = report.reasons(place, end, is_key_wanted=is_key_wanted, may_stay=may_stay)
            problems = _refusal(intent, place) + open_transaction_problem(logs.get(place), end) + reasons
            refused.append({**claim, "state": INCONCLUSIVE if is_astray else found, "problems": problems})
    for topic, index in unclaimed:
        problems = _refusal(intent, (topic, index))
        what = NO_TOMBSTONE if problems else "not opened"
        what = what if ended is None else ended.what
        refused.append({"topic": topic, "partition": index, "state": what, "problems": problems})
    return claims, refused


def _refusal(intent: Intent, partition: TopicPartition) -> list[dict[str, Any]]:
    """Return why a partition takes no tombstone, as its problem; empty if it takes one."""
    reason = intent.refused.get(partition)
    return [{"file": names.partition_dir_name(*partition), "reason": reason}] if reason else []
