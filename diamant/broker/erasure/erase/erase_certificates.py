"""The result of an erasure's scan, and its certificate."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from diamant.broker.erasure.erase.claims import affected, claim_ends, claims_there, refusals_of, unclaimed
from diamant.broker.erasure.erase.erase_result import NOT_CERTIFIED, Erasure
from diamant.broker.erasure.erase.groups_behind import GroupsBehind
from diamant.broker.erasure.evidence.evidence import Evidence
from diamant.broker.erasure.evidence.scope import ended_topics, later_partitions, partitions_of
from diamant.broker.erasure.jobs.ended import Ended
from diamant.broker.erasure.jobs.job_table import JobTable
from diamant.broker.operations.blocking import to_its_end
from diamant.cleaner.erasure.intent import Claim, Intent
from diamant.cleaner.evidence.certificates import broker_files, own_certificates
from diamant.cleaner.evidence.certificates import certificate as certificates
from diamant.cleaner.evidence.certificates.files import LAST_STATES, certificate_path, conclude
from diamant.cleaner.evidence.certificates.signing_key import SigningKey
from diamant.cleaner.evidence.scan.file_listing import is_of_log
from diamant.cleaner.evidence.scan.report import (
    INCONCLUSIVE,
    KEY_GONE,
    VALUES_GONE,
    ScanReport,
    tombstones_since_fields,
    written_since_fields,
)
from diamant.cleaner.evidence.search.findings import MAX_LISTED, TOMBSTONE
from diamant.cleaner.evidence.search.needles import MIN_BYTES
from diamant.cleaner.evidence.search.record_search import Subject
from diamant.storage import names
from diamant.storage.checkpoints.checkpoints import TopicPartition

logger = logging.getLogger(__name__)

NO_TOMBSTONE = "no-tombstone"
"""Of a partition that takes none, in a certificate's `not_certified`."""

ONLY_THE_DIGEST = (
    "Bytes of the key and of values outside of records: the broker was stopped during the last scan, and the one after it knew "
    "the key by its digest only. They were searched for before the certificate for values-gone."
)


@dataclass(frozen=True, slots=True)
class Seen:
    """A scan, and the slow parts of its account: neither changes when topics do."""

    report: ScanReport
    after: list[dict[str, Any]] = field(default_factory=list)
    """Affected segments as they are, none if nothing was scanned."""


class EraseCertificates:
    """Reads scans, writes certificates."""

    def __init__(self, evidence: Evidence, groups: GroupsBehind, table: JobTable[Intent]) -> None:
        """`table` counts the certificates."""
        self._evidence = evidence
        self._groups = groups
        self._table = table

    # -- what a scan amounts to ------------------------------------------------------------------------------------------

    def _states(self, intent: Intent, report: ScanReport, subject: Subject) -> list[tuple[Claim, str]]:
        self._evidence.disown(report, subject, intent.topics, intent.scope)
        digest = subject.key_digest.hex()
        return [
            (claim, report.state(claim.place, claim.below_offset, digest))
            for claim in claims_there(intent, self._evidence.topics)
        ]

    def state(self, intent: Intent, report: ScanReport, subject: Subject) -> str:
        """Return the state that a scan supports, of all claims together."""
        states = {state for _, state in self._states(intent, report, subject)}
        if not states or unclaimed(intent, self._evidence.topics) or not states <= {KEY_GONE, VALUES_GONE}:
            return NOT_CERTIFIED
        return VALUES_GONE if VALUES_GONE in states or report.astray else KEY_GONE

    # -- the certificate -------------------------------------------------------------------------------------------------

    async def issue(
        self,
        intent: Intent,
        subject: Subject,
        key: SigningKey,
        seen: Seen,
        state: str,
        due_ms: int | None,
        ended: Ended | None = None,
    ) -> Erasure:
        """Sign what the scan has shown, and keep it. With a last state, or if it was `ended` otherwise, the intent goes.

        To be called in the turn of the loop in which `state` was computed: the claims have to be of the same topics.
        """
        fields = self._certificate_fields(intent, subject, seen, state, due_ms, ended)
        path = certificate_path(self._evidence.directory, intent.id, state)

        def sign() -> tuple[dict[str, Any], bytes]:
            signed = certificates.sign(fields, key)
            return signed, json.dumps(signed, indent=1, sort_keys=True).encode()

        async def end() -> None:
            remove_intent = partial(self._table.files.remove, intent.id)
            await asyncio.to_thread(conclude, self._evidence.env, path, text, remove_intent)
            self._table.finish(intent.id)

        signed, text = await asyncio.to_thread(sign)
        if state in LAST_STATES or ended is not None:
            await to_its_end(end())
        else:
            await to_its_end(asyncio.to_thread(self._evidence.env.write_atomically, path, text))
        if state in LAST_STATES:
            self._table.done += 1
        elif ended is not None:
            self._table.failed += 1
        elif state == NOT_CERTIFIED:
            self._table.held += 1
        logger.info("erasure %s: %s", intent.id, state)
        unknown = await self._groups.not_known() if state == VALUES_GONE else []
        behind = await self._groups.behind(intent) if state == VALUES_GONE else {}
        return Erasure(intent.id, state, signed, path, key.public_pem, due_ms, behind, groups_not_known=unknown)

    async def look_at(self, intent: Intent, report: ScanReport) -> Seen:
        """Hash the affected segments, which may take long; the scan's result is stated after that."""
        return Seen(
            report, await asyncio.to_thread(self._evidence.digests, self._affected_files(intent), self._evidence.ends())
        )

    def _affected_files(self, intent: Intent) -> list[str]:
        """Return the segments that now hold the offsets of those in which the key was, and of its tombstones."""
        found, ends = set(), claim_ends(intent)
        there = set(affected(intent, self._evidence.topics))
        for one in intent.found:
            partition = (one["topic"], one["partition"])
            log = self._evidence.log(partition) if partition in there else None
            if log is None:
                continue
            end = ends.get((log.topic, log.partition), 0)
            directory = names.partition_dir_name(log.topic, log.partition)
            own = [name for name in one["files"] if is_of_log(name, log.topic, log.partition)]
            bases = [names.offset_of(os.path.basename(name)) for name in own]
            for base in [*bases, end - 1]:
                segment = log.segments[max(0, log.floor_segment(base))]
                found.add(f"{directory}/{os.path.basename(segment.path)}")
        return sorted(found)

    def _certificate_fields(
        self,
        intent: Intent,
        subject: Subject,
        seen: Seen,
        state: str,
        due_ms: int | None,
        ended: Ended | None,
    ) -> dict[str, Any]:
        report, after = seen.report, seen.after
        claims, refused = [], []
        states = self._states(intent, report, subject)
        # Then that the key is gone was to be certified, and something names it still.
        is_key_wanted = state == NOT_CERTIFIED and all(found in (VALUES_GONE, KEY_GONE) for _, found in states)
        is_key_wanted = is_key_wanted and not unclaimed(intent, self._evidence.topics)
        for claim, found in states:
            is_astray = is_key_wanted and found == KEY_GONE and bool(report.astray)
            if ended is not None:
                refused.append({**asdict(claim), "state": ended.what, "problems": []})
            elif found in (VALUES_GONE, KEY_GONE) and not is_astray and not (is_key_wanted and found == VALUES_GONE):
                claims.append({**asdict(claim), "state": found})
            else:
                may_stay = "" if is_key_wanted else TOMBSTONE
                reasons = report.reasons(
                    claim.place, claim.below_offset, is_key_wanted=is_key_wanted, may_stay=may_stay
                )
                reasons = _refusal(intent, claim.place) + reasons
                refused.append({**asdict(claim), "state": INCONCLUSIVE if is_astray else found, "problems": reasons})
        refused += self._without_claims(intent, ended)
        later = later_partitions(self._evidence.topics, intent.topics, intent.scope)
        ends = [
            *((one.place, one.below_offset) for one in claims_there(intent, self._evidence.topics)),
            *((one, 0) for one in later),
        ]
        since = [found for one in ends for found in report.written_since(*one)]
        unlisted = sum(report.unlisted_since(*one) for one in ends)
        not_covered = list(certificates.NOT_COVERED)
        if subject.key is None:
            not_covered.append(ONLY_THE_DIGEST)
        not_covered += [*own_certificates.not_covered(report), *broker_files.not_covered(report)]
        return {
            "type": certificates.TYPE,
            "version": certificates.VERSION,
            "id": intent.id,
            "state": state,
            **self._evidence.origin(intent.requested_ms, is_manual_clock=intent.is_manual_clock),
            "request": {
                "reason": intent.reason,
                "reference": intent.reference,
                "topics": intent.topics,
                "topic_ids": {name: known.topic_id for name, known in intent.scope.items()},
                "key_hmac": subject.key_digest.hex(),
                "key_bytes": intent.key_bytes,
                "hmac": "HMAC-SHA-256 with a secret that is not in the data directory",
            },
            "found": intent.found,
            "done": intent.done,
            "overrides": [one.to_fields() for one in intent.overrides],
            "claims": claims,
            "not_certified": refused,
            "ended": None if ended is None else ended.to_fields(),
            "topics_ended": ended_topics(self._evidence.topics, intent.topics, intent.scope),
            "partitions_added": [{"topic": topic, "partition": index} for topic, index in later],
            **written_since_fields(since, unlisted),
            **tombstones_since_fields(report, ends),
            "lost_tombstones": self._lost_tombstones(intent, report),
            "elsewhere": [one.to_fields() for one in [*report.elsewhere, *report.astray][:MAX_LISTED]],
            "elsewhere_not_listed": report.elsewhere_not_listed(MAX_LISTED),
            "segments": {
                "before": intent.before,
                "before_root": certificates.merkle_root(intent.before),
                "after": after,
                "after_root": certificates.merkle_root(after),
            },
            "configuration": {name: self._evidence.configuration(name) for name in sorted(subject.topics)},
            "coverage": {
                **report.coverage(subject.topics),
                "values_searched_for": sum(1 for one in subject.needles if one.kind == "value"),
                "values_not_searched_for": subject.needles.left_out,
                "least_bytes_of_a_searched_value": MIN_BYTES,
            },
            "next": None if due_ms is None or state != VALUES_GONE else {"state": KEY_GONE, "due_ms": due_ms},
            "not_covered": not_covered,
        }

    def _without_claims(self, intent: Intent, ended: Ended | None) -> list[dict[str, Any]]:
        """Return what is said of partitions of which nothing is claimed, as there is no tombstone, or no log."""
        found = []
        for topic, index in unclaimed(intent, self._evidence.topics):
            problems = _refusal(intent, (topic, index))
            state = NO_TOMBSTONE if problems else "not opened"
            state = state if ended is None else ended.what
            found.append({"topic": topic, "partition": index, "state": state, "problems": problems})
        return found

    def _lost_tombstones(self, intent: Intent, report: ScanReport) -> list[dict[str, Any]]:
        """Return where a tombstone went before its horizon without anybody having wanted that: consumers may have missed it."""
        ends, lost = claim_ends(intent), []
        partitions = set(partitions_of(self._evidence.topics, intent.topics, intent.scope)) if report.rows else set()
        for step in intent.done:
            partition: TopicPartition = (step["topic"], step["partition"])
            log = self._evidence.log(partition) if partition in partitions else None
            if log is None or "tombstone_offset" not in step or "removed_before_horizon" in step:
                continue
            is_early = self._evidence.env.clock.now_ms() < intent.requested_ms + log.config.delete_retention_ms
            is_read = not report.problems(partition)
            end = ends.get(partition, 0)
            # A later write of the key supersedes the tombstone, which then goes as any old record does.
            is_superseded = bool(report.written_since(partition, end) or report.tombstones_since(partition, end))
            if is_early and is_read and not is_superseded and not report.tombstones(partition, end):
                lost.append({"topic": partition[0], "partition": partition[1]})
        return lost


def _refusal(intent: Intent, partition: TopicPartition) -> list[dict[str, Any]]:
    """Return, as a problem of a partition, why it takes no tombstone; nothing if it does."""
    reason = refusals_of(intent).get(partition)
    return [{"file": names.partition_dir_name(*partition), "reason": reason}] if reason else []
