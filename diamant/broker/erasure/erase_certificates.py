"""The result of an erasure's scan, its certificate, its verification: the part of `Erasures` that changes nothing."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from diamant.broker.client.errors import BadArgument, NotFound, NotGenuine, NotPossible
from diamant.broker.erasure.cancel import Cancelling
from diamant.broker.erasure.erasure import NOT_CERTIFIED, Erasure, claim_ends, claim_of, refusals_of, steps_of
from diamant.broker.erasure.kept_certificates import KeptCertificate, last_certificate
from diamant.broker.erasure.scope import ended_topics, later_partitions
from diamant.broker.operations.cross_loop import on_loop
from diamant.broker.operations.progress import Progress
from diamant.cleaner.erasure.intent import Intent
from diamant.cleaner.evidence.certificates import broker_files, own_certificates
from diamant.cleaner.evidence.certificates import certificate as certificates
from diamant.cleaner.evidence.certificates.files import LAST_STATES, CertificateList, certificate_path, conclude
from diamant.cleaner.evidence.certificates.own_certificates import problem_with
from diamant.cleaner.evidence.certificates.signing_key import SigningKey
from diamant.cleaner.evidence.certificates.verification import Verification, verify_certificate
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
from diamant.cleaner.redaction.claims import check_redaction_claims
from diamant.storage import names
from diamant.storage.checkpoints.checkpoints import TopicPartition

if TYPE_CHECKING:
    from diamant.broker.groups.coordinator.coordinator import GroupCoordinator
    from diamant.broker.node.lazy import Lazy
    from diamant.broker.operations.compact import Compactions
    from diamant.cleaner.redaction.where import Where

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


class ErasureCertificates(Cancelling):
    """Reads scans, writes certificates."""

    noun = "erasure"
    _list: CertificateList
    _compactions: Compactions
    _groups: Lazy[GroupCoordinator]

    # -- any loop --------------------------------------------------------------------------------------------------------

    async def verify(
        self,
        certificate: Mapping[str, Any],
        *,
        public_key: bytes | None = None,
        key: bytes | None = None,
        where: str | None = None,
        progress: Progress | None = None,
    ) -> Verification:
        """Check a certificate against what the broker holds now. Raises BadArgument for what is no certificate.

        `public_key`: the 32 bytes that are trusted; without them the signer is untrusted. `key` or `where`: what an erasure, or a
        redaction, was about.
        """
        meant = None
        if where is not None:
            from diamant.cleaner.redaction.where import WhereError, parse_where

            try:
                meant = parse_where(where)
            except WhereError as error:
                raise BadArgument(str(error)) from None
        return await on_loop(
            self._loop, lambda: self._verify(certificate, public_key, key, meant, progress or Progress())
        )

    # -- what there is ---------------------------------------------------------------------------------------------------

    async def certificates(self) -> list[dict[str, Any]]:
        """The certificates in the data directory, in short (`CertificateList`)."""
        try:
            key = await self._key_there()
        except NotPossible:
            key = None
        check = None if key is None else partial(problem_with, public_key=key.public_bytes)
        return await asyncio.to_thread(self._list.describe, self._env, self._directory, check)

    async def certificate(self, erasure_id: str) -> dict[str, Any]:
        """The last certificate of an erasure or a redaction. Raises NotFound; NotGenuine if it is not as it was signed."""
        kept = await self.kept_certificate(erasure_id)
        if kept.problem:
            raise NotGenuine(
                f"the certificate is not what this broker has signed, so it proves nothing: {kept.path}: {kept.problem}. Bring "
                "the file back from where it was kept; as_it_is=true hands it out as it is"
            )
        return kept.certificate

    async def kept_certificate(self, erasure_id: str) -> KeptCertificate:
        """The same as it lies there, and what is wrong with it. Raises NotFound, NotPossible if it cannot be read."""
        found = None
        if erasure_id.isalnum():
            found = await asyncio.to_thread(last_certificate, self._env, self._directory, erasure_id)
        if found is None:
            raise NotFound("there is no such certificate")
        try:
            key = await self._usable_key()
        except NotPossible as error:
            return replace(found, problem=f"it cannot be checked: {error}")
        return await asyncio.to_thread(found.checked, key.public_bytes)

    async def _verify(
        self,
        certificate: Mapping[str, Any],
        public_key: bytes | None,
        key: bytes | None,
        where: Where | None,
        progress: Progress,
    ) -> Verification:
        own = await self._key_there()
        secret = None if own is None else own.secret
        progress.begin("scanning everything", unit="bytes")
        ends = self._ends()

        def work(check: Callable[[], object]) -> Verification:
            return verify_certificate(
                certificate,
                public_key,
                self._env,
                self._directory,
                key=key,
                where=where,
                check_redaction=check_redaction_claims,
                secret=secret,
                ends=ends,
                advance=progress.move_to,
                check=check,
                staging=self._staging(ends),
                partitions=self._partitions_there,
            )

        try:
            return await self._in_thread(work)
        except (certificates.CertificateError, certificates.WrongKind) as error:
            raise BadArgument(str(error)) from None

    # -- what a scan amounts to ------------------------------------------------------------------------------------------

    def _partitions_of(self, intent: Intent) -> list[TopicPartition]:
        """Return the partitions that an erasure is about, as far as they are there still."""
        return self._partitions(intent.topics, intent.scope)

    def _unclaimed(self, intent: Intent) -> list[TopicPartition]:
        """Return those of them of which nothing is claimed yet: all at first, later those that could not be opened."""
        claimed = {claim_of(claim)[0] for claim in intent.claims}
        return [one for one in self._partitions_of(intent) if one not in claimed]

    def _claims(self, intent: Intent) -> list[dict[str, Any]]:
        """Return the claims about partitions that are there still."""
        partitions = set(self._partitions_of(intent))
        return [claim for claim in intent.claims if claim_of(claim)[0] in partitions]

    def _affected(self, intent: Intent) -> list[TopicPartition]:
        """Return the partitions in which the key was found, as far as they are there still."""
        found = {(one["topic"], one["partition"]) for one in intent.found}
        return [one for one in self._partitions_of(intent) if one in found]

    def _states(self, intent: Intent, report: ScanReport, subject: Subject) -> list[tuple[dict[str, Any], str]]:
        self._disown(report, subject, intent.topics, intent.scope)
        digest = subject.key_digest.hex()
        return [(claim, report.state(*claim_of(claim), digest)) for claim in self._claims(intent)]

    def _state(self, intent: Intent, report: ScanReport, subject: Subject) -> str:
        states = {state for _, state in self._states(intent, report, subject)}
        if not states or self._unclaimed(intent) or not states <= {KEY_GONE, VALUES_GONE}:
            return NOT_CERTIFIED
        return VALUES_GONE if VALUES_GONE in states or report.astray else KEY_GONE

    async def _groups_not_known(self) -> list[str]:
        """Wait until all groups are loaded that can be; return where they are not, in words."""
        from diamant.broker.groups.coordinator.committed_offsets import groups_not_known

        return await groups_not_known(self._groups, self._node.topics)

    async def _check_groups_known(self, progress: Progress) -> None:
        """Refuse to override a horizon if it is unknown which groups would miss the tombstone. NotPossible."""
        progress.begin("waiting for the groups to be loaded")
        unknown = await self._groups_not_known()
        if unknown:
            raise NotPossible(
                "the tombstone cannot be removed before its horizon, because it is not known which groups have not passed it: "
                f"{'; '.join(unknown)}. Nothing was changed. Without --now (now=false) it goes at its horizon; to have it go "
                "now, see in the broker's log what is wrong with that partition, repair it and restart the broker"
            )

    async def _groups_behind(self, intent: Intent) -> dict[str, list[str]]:
        from diamant.broker.groups.coordinator.committed_offsets import groups_of

        found, ends, steps = {}, claim_ends(intent), steps_of(intent)
        for partition in self._affected(intent):
            log = self._log(partition)
            if log is None:
                continue
            step = steps.get(partition, {})
            # Intents of versions before do not say where one is that was there already; it is not above the claim's end.
            mark = step.get("tombstone_offset", step.get("tombstone_found_at", ends.get(partition, 0) - 1))
            end = mark + 1
            behind = sorted(group for committed, group in await groups_of(self._groups, log) if committed < end)
            if behind:
                found[names.partition_dir_name(log.topic, log.partition)] = behind[:MAX_LISTED]
        return found

    # -- the certificate -------------------------------------------------------------------------------------------------

    async def _issue(
        self,
        intent: Intent,
        subject: Subject,
        key: SigningKey,
        seen: Seen,
        state: str,
        due_ms: int | None,
        ended: dict[str, Any] | None = None,
    ) -> Erasure:
        """Sign what the scan has shown, and keep it. With a last state, or if it was `ended` otherwise, the intent goes.

        To be called in the turn of the loop in which `state` was computed: the claims have to be of the same topics.
        """
        fields = self._certificate_fields(intent, subject, seen, state, due_ms, ended)
        path = certificate_path(self._directory, intent.id, state)

        def sign() -> tuple[dict[str, Any], bytes]:
            signed = certificates.sign(fields, key)
            return signed, json.dumps(signed, indent=1, sort_keys=True).encode()

        async def end() -> None:
            await asyncio.to_thread(conclude, self._env, self._directory, intent.id, path, text)
            self._finished(intent.id)

        signed, text = await asyncio.to_thread(sign)
        if state in LAST_STATES or ended is not None:
            await self._to_its_end(end())
        else:
            await self._to_its_end(asyncio.to_thread(self._env.write_atomically, path, text))
        if state in LAST_STATES:
            self.done += 1
        elif ended is not None:
            self.failed += 1
        elif state == NOT_CERTIFIED:
            self.held += 1
        logger.info("erasure %s: %s", intent.id, state)
        unknown = await self._groups_not_known() if state == VALUES_GONE else []
        behind = await self._groups_behind(intent) if state == VALUES_GONE else {}
        return Erasure(intent.id, state, signed, path, key.public_pem, due_ms, behind, groups_not_known=unknown)

    async def _look_at(self, intent: Intent, report: ScanReport) -> Seen:
        """Hash the affected segments, which may take long; the scan's result is stated after that."""
        return Seen(report, await asyncio.to_thread(self._digests, self._affected_files(intent), self._ends()))

    def _affected_files(self, intent: Intent) -> list[str]:
        """Return the segments that now hold the offsets of those in which the key was, and of its tombstones."""
        found, ends = set(), claim_ends(intent)
        affected = set(self._affected(intent))
        for one in intent.found:
            partition = (one["topic"], one["partition"])
            log = self._log(partition) if partition in affected else None
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
        ended: dict[str, Any] | None,
    ) -> dict[str, Any]:
        report, after = seen.report, seen.after
        claims, refused = [], []
        states = self._states(intent, report, subject)
        # Then that the key is gone was to be certified, and something names it still.
        is_key_wanted = state == NOT_CERTIFIED and all(found in (VALUES_GONE, KEY_GONE) for _, found in states)
        is_key_wanted = is_key_wanted and not self._unclaimed(intent)
        for claim, found in states:
            is_astray = is_key_wanted and found == KEY_GONE and bool(report.astray)
            if ended is not None:
                refused.append({**claim, "state": ended["what"], "problems": []})
            elif found in (VALUES_GONE, KEY_GONE) and not is_astray and not (is_key_wanted and found == VALUES_GONE):
                claims.append({**claim, "state": found})
            else:
                may_stay = "" if is_key_wanted else TOMBSTONE
                reasons = report.reasons(*claim_of(claim), is_key_wanted=is_key_wanted, may_stay=may_stay)
                reasons = _refusal(intent, claim_of(claim)[0]) + reasons
                refused.append({**claim, "state": INCONCLUSIVE if is_astray else found, "problems": reasons})
        refused += self._without_claims(intent, ended)
        later = later_partitions(self._topics, intent.topics, intent.scope)
        ends = [*(claim_of(claim) for claim in self._claims(intent)), *((one, 0) for one in later)]
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
            **self._origin(intent.requested_ms, is_manual_clock=intent.is_manual_clock),
            "request": {
                "reason": intent.reason,
                "reference": intent.reference,
                "topics": intent.topics,
                "topic_ids": {name: known["topic_id"] for name, known in intent.scope.items()},
                "key_hmac": subject.key_digest.hex(),
                "key_bytes": intent.key_bytes,
                "hmac": "HMAC-SHA-256 with a secret that is not in the data directory",
            },
            "found": intent.found,
            "done": intent.done,
            "overrides": intent.overrides,
            "claims": claims,
            "not_certified": refused,
            "ended": ended,
            "topics_ended": ended_topics(self._topics, intent.topics, intent.scope),
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
            "configuration": {name: self._configuration(name) for name in sorted(subject.topics)},
            "coverage": {
                **report.coverage(subject.topics),
                "values_searched_for": sum(1 for one in subject.needles if one.kind == "value"),
                "values_not_searched_for": subject.needles.left_out,
                "least_bytes_of_a_searched_value": MIN_BYTES,
            },
            "next": None if due_ms is None or state != VALUES_GONE else {"state": KEY_GONE, "due_ms": due_ms},
            "not_covered": not_covered,
        }

    def _without_claims(self, intent: Intent, ended: dict[str, Any] | None) -> list[dict[str, Any]]:
        """Return what is said of partitions of which nothing is claimed, as there is no tombstone, or no log."""
        found = []
        for topic, index in self._unclaimed(intent):
            problems = _refusal(intent, (topic, index))
            state = NO_TOMBSTONE if problems else "not opened"
            state = state if ended is None else ended["what"]
            found.append({"topic": topic, "partition": index, "state": state, "problems": problems})
        return found

    def _lost_tombstones(self, intent: Intent, report: ScanReport) -> list[dict[str, Any]]:
        """Return where a tombstone went before its horizon without anybody having wanted that: consumers may have missed it."""
        ends, lost = claim_ends(intent), []
        partitions = set(self._partitions_of(intent)) if report.rows else set()
        for step in intent.done:
            partition: TopicPartition = (step["topic"], step["partition"])
            log = self._log(partition) if partition in partitions else None
            if log is None or "tombstone_offset" not in step or "removed_before_horizon" in step:
                continue
            is_early = self._env.clock.now_ms() < intent.requested_ms + log.config.delete_retention_ms
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
