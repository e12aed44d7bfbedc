"""The verdict of an erasure's scan, and the certificate about it."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from diamant.broker.erasure.certification.evidence import Evidence
from diamant.broker.erasure.certification.scope import Claims, claims_of
from diamant.broker.erasure.erase.erase_result import Erasure
from diamant.broker.erasure.erase.groups_behind import GroupsBehind
from diamant.broker.erasure.jobs.job_table import JobTable
from diamant.broker.erasure.jobs.removal import Ended, Removal
from diamant.broker.erasure.jobs.removal_certificates import RemovalCertificates, Verdict
from diamant.broker.transactions.open_in_log import open_transaction_problem
from diamant.cleaner.erasure_state.intent import Intent
from diamant.cleaner.evidence.certificates.certificate import HMAC, NOT_COVERED, TYPE
from diamant.cleaner.evidence.certificates.intent_parts import FileDigest
from diamant.cleaner.evidence.scan.file_listing import is_of_log
from diamant.cleaner.evidence.scan.report import INCONCLUSIVE, ScanReport, tombstones_since_fields, written_since_fields
from diamant.cleaner.evidence.search.findings import TOMBSTONE
from diamant.cleaner.evidence.search.record_search import Subject
from diamant.json_types import JsonObject
from diamant.storage import names
from diamant.storage.certificate_states import KEY_GONE, NOT_CERTIFIED, VALUES_GONE
from diamant.storage.checkpoints.checkpoints import TopicPartition
from diamant.storage.log.log import Log

logger = logging.getLogger(__name__)

NO_TOMBSTONE = "no-tombstone"
"""The reason in a certificate's `not_certified` for a partition that accepts no tombstone."""

ONLY_THE_DIGEST = (
    "Bytes of the key outside of records: the broker was stopped during the last scan, and the one after it knew the key by its "
    "digest only. They were searched for before the certificate for values-gone."
)


GONE = (VALUES_GONE, KEY_GONE)


@dataclass(frozen=True, slots=True)
class EraseVerdict(Verdict):
    """The findings of a scan about an erasure."""

    claims: Claims
    states: Mapping[TopicPartition, str]
    """The state of each claim."""


class EraseCertificates(RemovalCertificates[Intent]):
    """The part of an erasure that judges scans and certifies their results."""

    def __init__(self, evidence: Evidence, groups: GroupsBehind, table: JobTable[Intent]) -> None:
        super().__init__(evidence, table)
        self._groups = groups

    # -- the verdict of a scan -------------------------------------------------------------------------------------------

    async def judge(self, intent: Intent, removal: Removal[Subject]) -> EraseVerdict:
        """Scan everything, hash the affected segments and return the verdict. Scanning and hashing may take long."""
        subject = removal.subject
        report = await self.scan(
            intent, removal, lambda earlier: earlier.concerns_key(subject.key_digest, intent.topics)
        )
        files, ends = self._affected_files(intent), self._evidence.ends()
        after = await asyncio.to_thread(self._evidence.digests, files, ends)
        return self.judged(intent, subject, report, after)

    def judged(
        self, intent: Intent, subject: Subject, report: ScanReport, after: tuple[FileDigest, ...] = ()
    ) -> EraseVerdict:
        """Return the verdict of a scan. `after`: the digests of the affected segments as they are now."""
        claims, digest = claims_of(intent, self._evidence.topics), subject.key_digest.hex()
        present = claims.present
        report.disown(subject, present.topics, present.partitions, present.later)
        states = {place: report.state(place, end, digest) for place, end in claims.ends.items()}
        state = NOT_CERTIFIED
        if states and not claims.unclaimed and {*states.values()} <= {*GONE}:
            if VALUES_GONE not in states.values():
                # No tombstone is left to wait for, so an operator has to remove the other places that name the key.
                state = NOT_CERTIFIED if report.astray else KEY_GONE
            elif intent.found:
                state = VALUES_GONE
        return EraseVerdict(report, after, present, state, claims, states)

    def _affected_files(self, intent: Intent) -> list[str]:
        """Return the segments that now cover the offsets of the key's records and of its tombstones."""
        found = set()
        for partition in claims_of(intent, self._evidence.topics).affected:
            log = self._evidence.logs.get(partition)
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
        removal: Removal[Subject],
        verdict: EraseVerdict,
        due_ms: int | None = None,
        ended: Ended | None = None,
    ) -> Erasure:
        """Sign and store the verdict. Remove the intent if the state is final, or if `ended` is given."""
        state = verdict.state if ended is None else NOT_CERTIFIED
        verdict = replace(verdict, state=state)
        own = self._own_fields(intent, removal.subject, verdict, due_ms, ended)
        signed, path = await self.sign(intent, removal, verdict, removal.subject.topics, own, ended)
        logger.info("erasure %s: %s", intent.id, state)
        unknown = await self._groups.not_known() if state == VALUES_GONE else []
        behind = await self._groups.behind(intent, verdict.claims.affected) if state == VALUES_GONE else {}
        return Erasure(
            intent.id,
            state,
            signed,
            path,
            removal.key.public_pem,
            due_ms,
            behind,
            groups_not_known=unknown,
            held_by=removal.holders,
        )

    def _own_fields(
        self, intent: Intent, subject: Subject, verdict: EraseVerdict, due_ms: int | None, ended: Ended | None
    ) -> Mapping[str, Any]:
        report, claims = verdict.report, verdict.claims
        held, refused = _claims_and_refusals(intent, verdict, ended, self._evidence.logs)
        ends = [*claims.ends.items(), *((one, 0) for one in verdict.present.later)]
        since = [found for one in ends for found in report.written_since(*one)]
        unlisted = sum(report.unlisted_since(*one) for one in ends)
        return {
            "type": TYPE,
            "request": {
                "topics": [*intent.topics],
                "topic_ids": {name: known.topic_id for name, known in intent.scope.items()},
                "key_hmac": subject.key_digest.hex(),
                "key_bytes": intent.key_bytes,
                "hmac": HMAC,
            },
            "overrides": intent.override_rows(),
            "claims": held,
            "not_certified": refused,
            **written_since_fields(since, unlisted),
            **tombstones_since_fields(report, ends),
            "lost_tombstones": self._lost_tombstones(intent, verdict),
            "coverage": {},
            "next": None if due_ms is None or verdict.state != VALUES_GONE else {"state": KEY_GONE, "due_ms": due_ms},
            "not_covered": [*NOT_COVERED, *([ONLY_THE_DIGEST] if subject.key is None else [])],
        }

    def _lost_tombstones(self, intent: Intent, verdict: EraseVerdict) -> list[JsonObject]:
        """Return the partitions that lost a tombstone before its horizon without a request, so consumers may have missed it."""
        report, lost = verdict.report, []
        partitions = frozenset(verdict.present.partitions) if report.rows else frozenset()
        for partition, step in intent.done.items():
            log = self._evidence.logs.get(partition) if partition in partitions else None
            if log is None or step.tombstone_offset is None or step.removed_before_horizon:
                continue
            is_early = self._evidence.env.clock.now_ms() < intent.requested_ms + log.config.delete_retention_ms
            is_read = not report.problems(partition)
            end = intent.claims.get(partition, 0)
            # A later write of the key supersedes the tombstone, so that the cleaner removes it like any superseded record.
            is_superseded = bool(report.written_since(partition, end) or report.tombstones_since(partition, end))
            if is_early and is_read and not is_superseded and not report.tombstones(partition, end):
                lost.append({"topic": partition[0], "partition": partition[1]})
        return lost


def _claims_and_refusals(
    intent: Intent,
    verdict: EraseVerdict,
    ended: Ended | None,
    logs: Mapping[TopicPartition, Log],
) -> tuple[list[JsonObject], list[JsonObject]]:
    """Return the claims about partitions, and the refused claims with the reasons (scan findings, no tombstone, no open log)."""
    claims, refused = [], []
    report, unclaimed = verdict.report, verdict.claims.unclaimed
    # The values are gone, but something still names the key, so only `key-gone` is refused.
    is_key_wanted = verdict.state == NOT_CERTIFIED and not unclaimed and {*verdict.states.values()} <= {*GONE}
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


def _refusal(intent: Intent, partition: TopicPartition) -> list[JsonObject]:
    """Return the reason why a partition accepts no tombstone, as a list with one problem; empty for any other partition."""
    reason = intent.refused.get(partition)
    return [{"file": names.partition_dir_name(*partition), "reason": reason}] if reason else []
