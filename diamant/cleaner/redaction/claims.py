"""The claims in a redaction's certificate: how they are made, and later checked, with the scan that erasures use.

The scan applies `where` once more to each record in every file of the topic's partitions, whatever the file's name or state. The
certificate contains a digest of `where`, and its shape: the condition without the values of its comparisons.

    records-gone       no record below the claim's end matches `where`
    fields-blanked     in every matching record below the claim's end, the named fields have the requested values, except in
                       records that cannot be changed, if the request says to keep them
    records-present    at least one record matches and, if fields are named, they do not have the requested values
    inconclusive       something is unreadable, bytes of a removed value lie outside records, a record cannot be changed or
                       may or may not match (unless the request says to keep such records), or a matching or undecided
                       record lies in a file that belongs to no partition
    not-there          the partition has no file

Everything is also searched for the bytes of removed values and the strings in `where` (12 bytes or more), which are listed if
they occur in other records. On compacted topics, older values of matching keys are removed even if they do not match `where`;
only this search covers them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from diamant.cleaner.evidence.certificates.certificate import (
    COMPRESSED,
    CONSUMERS,
    COPIES,
    DISK_BLOCKS,
    HMAC,
    LATER_RECORDS,
    NO_CONTENT,
)
from diamant.cleaner.evidence.certificates.claim_checks import (
    BROKEN,
    CANNOT_TELL,
    HOLDS,
    check_claims,
    partition_of,
    untold,
)
from diamant.cleaner.evidence.certificates.verification import Steps, Verification, files_of, take_report
from diamant.cleaner.evidence.scan.report import INCONCLUSIVE, NOT_THERE, ScanReport
from diamant.cleaner.evidence.search.findings import (
    DECIDING,
    RAW,
    SAME_BYTES,
    SAME_KEY,
    TOMBSTONE,
    UNDECIDED,
    VALUE,
    Finding,
)
from diamant.cleaner.evidence.search.needles import Needle, Needles, keyed_digest
from diamant.cleaner.evidence.search.record_search import IsAnyMeant, Subject
from diamant.cleaner.redaction.blanking import stated_blanking
from diamant.cleaner.redaction.json_path import NO, YES
from diamant.cleaner.redaction.json_path import UNDECIDED as UNDECIDED_VERDICT
from diamant.cleaner.redaction.where import DONE, HOLD, KEEP, Where, any_of, may_hold, parse_where
from diamant.cleaner.values.schemas import Schemas, Values
from diamant.cleaner.values.schemas_topic import SchemasTopic
from diamant.json_types import JsonObject
from diamant.protocol.batches.header import Record
from diamant.storage.certificate_states import FIELDS_BLANKED, RECORDS_GONE
from diamant.storage.checkpoints.checkpoints import TopicPartition
from diamant.storage.env.env import Env

if TYPE_CHECKING:
    from diamant.cleaner.evidence.search.known_positives import KnownPositives

RECORDS_PRESENT = "records-present"
NOT_STABLE = "not-stable-yet"
"""Reason why matching records from the last stable offset on remain: their transactions have not ended."""

KEPT = "Records of which it cannot be told whether they match were left, as the request wanted it"
KEPT_UNCHANGED = "Records that match but cannot be changed, or that may match, were left, as the request wanted it"
MAX_KEPT = 100
"""Maximum number of stray files that a certificate lists, and of offsets of kept records per partition or stray file."""

MEANT = (VALUE, TOMBSTONE)
"""The kinds of findings for matching records: those with a value, and tombstones."""

MAX_UNMATCHED = 10
"""Maximum number of records listed in a certificate that contain the strings of `where` but do not match it."""

WHERE = "where"
"""The kind of the needles that are strings or bytes from `where`."""

NOT_COVERED = (
    COPIES,
    f"{CONSUMERS} Nothing tells them that records were removed.",
    DISK_BLOCKS,
    LATER_RECORDS,
    "Records that the description does not match, whatever they say: the same facts in other fields, in other words, in values "
    "that are neither JSON nor have a known schema (a path of fields finds nothing in them), in other topics, or in what was "
    "copied into the directories of other topics. Where the same bytes were seen is listed.",
    "Texts of the description and values that were removed, outside of records that match it, if they have fewer than 12 bytes "
    "or hardly anything but zeros (0x00, 0xFF): they are not searched for.",
    COMPRESSED,
    NO_CONTENT,
    "Copies, outside of records that match, of values that were not in the topic when this was asked for: these values are "
    "unknown. Known are those of earlier requests that are in progress, or ended without seeing everything gone.",
    "What stays of a batch of which every record went: offsets, times and the producer's number and sequence.",
)

NOT_COVERED_OF_FIELDS = (
    "In the records that were changed: every field that was not named. Bytes of 12 and more that a named field had are searched "
    "for there, too, and listed if they were seen.",
)


class Redacted(Subject):
    """The subject of the certifying scan: the records of one topic that match `where`, and needles in all files."""

    __slots__ = ("known", "where")
    judges_bytes: ClassVar[bool] = True

    def __init__(self, where: Where, topics: frozenset[str], needles: Needles) -> None:
        super().__init__(None, topics, needles)
        self.where = where
        self.known: tuple[str, Where] | None = None
        """The topic of the known positives, and the `where` that matches them."""

    def with_known(self, known: KnownPositives) -> Redacted:
        found = Redacted(self.where, self.topics | {known.topic}, self.needles.joined(known.needles))
        found.known = known.topic, parse_where(f'key == "{known.key.decode()}"')
        return found

    def is_meant(self, record: Record, topic: str | None) -> bool | None:
        verdict = self._where_of(topic).judge(record) if self._may_be_own(topic) else NO
        return None if verdict == UNDECIDED_VERDICT else verdict == YES

    @staticmethod
    def any_meant(subjects: Sequence[Redacted]) -> IsAnyMeant:
        joint: dict[str | None, list[Where]] = {}

        def is_any(record: Record, topic: str | None) -> bool:
            if topic not in joint:
                own = [one._where_of(topic) for one in subjects if one._may_be_own(topic)]
                by_decoder = {id(one.values.schemas): [] for one in own}  # type: dict[int, list[Where]]
                for one in own:
                    by_decoder[id(one.values.schemas)].append(one)
                joint[topic] = [any_of(some) for some in by_decoder.values()]
            return any(one.node.judge(record, one.values) != NO for one in joint[topic])

        return is_any

    def unexplained(
        self, record: Record, topic: str | None, hits: list[tuple[str, Needle]]
    ) -> list[tuple[str, Needle]]:
        # A record whose fields were changed still matches, so it is expected to contain the strings of `where`.
        is_done = self._may_be_own(topic) and self._where_of(topic).judge(record) == DONE
        return [one for one in hits if one[1].kind != WHERE] if is_done else hits

    def is_in_the_way(self, finding: Finding) -> bool:
        # A string of `where` outside matching or undecided records is no obstacle, because it may have another origin.
        if is_kept(self.where, finding):
            return False
        is_record = finding.what in (SAME_KEY, UNDECIDED)
        return is_record or self.needles.kind_of(bytes.fromhex(finding.digest)) != WHERE

    def may_be_in(self, payload: bytes, topic: str | None) -> bool:
        # Without the bytes that `where` searches for, no record can match.
        return not self._may_be_own(topic) or self._where_of(topic).may_be_in(payload)

    def walked_keys(self, topic: str | None) -> tuple[bytes, ...] | None:
        # In other topics only needles count.
        return None if self._may_be_own(topic) else ()

    def _where_of(self, topic: str | None) -> Where:
        return self.where if self.known is None or topic != self.known[0] else self.known[1]

    def _may_be_own(self, topic: str | None) -> bool:
        # A copy of a segment outside the directories of partitions may belong to any topic.
        return topic is None or topic in self.topics


def gone_state(where: Where) -> str:
    """Return the state that a redaction has to reach."""
    return RECORDS_GONE if where.blanking is None else FIELDS_BLANKED


def state_of(report: ScanReport, partition: TopicPartition, claim_end: int, undecided: str = HOLD) -> str:
    """Return the state of a partition below offset `claim_end`; findings in directories set aside count at any offset.

    `undecided`: the fate of undecided records; with `KEEP` they are no obstacle. Success is always returned as `RECORDS_GONE`,
    even if `gone_state` is FIELDS_BLANKED.
    """
    if partition not in report.partitions and not report.problems(partition):
        return NOT_THERE
    claimed = {one.what for one in report.claimed(partition, claim_end)}
    if report.problems(partition) or RAW in claimed:
        return INCONCLUSIVE
    if {VALUE, TOMBSTONE} & claimed:
        return RECORDS_PRESENT
    is_undecided = UNDECIDED in claimed and undecided != KEEP
    return INCONCLUSIVE if is_undecided or report.in_the_way else RECORDS_GONE


def is_only_undecided(report: ScanReport, partition: TopicPartition, claim_end: int) -> bool:
    """Tell whether undecided records alone prevent a claim; waiting does not help then."""
    return state_of(report, partition, claim_end) == INCONCLUSIVE and (
        state_of(report, partition, claim_end, KEEP) == RECORDS_GONE
    )


def kept_undecided(report: ScanReport, where: Where, claims: Sequence[Mapping[str, Any]]) -> list[JsonObject]:
    """Return, for a certificate, the undecided records that the request says to keep."""
    found = []
    for claim in claims:
        partition = partition_of(claim)
        kept = [one for one in report.claimed(partition, claim["below_offset"]) if one.what == UNDECIDED]
        if kept:
            offsets = sorted({one.offset for one in kept if one.offset is not None})
            unlisted = report.unlisted_in[partition, UNDECIDED]
            found.append(
                {
                    "what": _kept(where),
                    "topic": partition[0],
                    "partition": partition[1],
                    "offsets": offsets[:MAX_KEPT],
                    "offsets_not_listed": max(0, len(offsets) - MAX_KEPT) + unlisted,
                }
            )
    return found


def _kept(where: Where) -> str:
    return KEPT if where.blanking is None else KEPT_UNCHANGED


def is_kept(where: Where, finding: Finding) -> bool:
    """Tell whether a finding is an undecided record that the request says to keep."""
    return finding.what == UNDECIDED and where.undecided == KEEP


def kept_astray(report: ScanReport, where: Where) -> list[JsonObject]:
    """Return, for a certificate, the undecided records that were kept in up to `MAX_KEPT` files outside partitions."""
    offsets: dict[str, set[int]] = {}
    for one in report.astray:
        if is_kept(where, one) and one.offset is not None:
            offsets.setdefault(one.file, set()).add(one.offset)
    return [
        {
            "what": _kept(where),
            "file": file,
            "offsets": sorted(found)[:MAX_KEPT],
            "offsets_not_listed": max(0, len(found) - MAX_KEPT),
        }
        for file, found in sorted(offsets.items())[:MAX_KEPT]
    ]


def matching_from(report: ScanReport, partition: TopicPartition, first: int, end: int | None = None) -> list[Finding]:
    """Return the findings of matching records from offset `first` up to, but not including, `end`; in ascending order."""
    found = {
        # A tombstone whose headers contain a value has a finding of each kind.
        (one.file, one.offset): one
        for one in report.above(partition, first)
        if one.what in MEANT and (end is None or (one.offset or 0) < end)
    }
    return sorted(found.values(), key=lambda one: one.offset or 0)


def unmatched(report: ScanReport, subject: Redacted) -> JsonObject | None:
    """Return, for a certificate, the records that contain the strings of `where` but do not match it; None if no record does.

    If no record matches at all, the field or path may be wrong. Counts only records of the topic that the report lists. Strings
    of less than 12 bytes are not searched for, and count as present.
    """
    searched = {one.digest.hex() for one in subject.needles if one.kind == WHERE}
    there: dict[tuple[str, int, int], set[str]] = {}
    for one in report.elsewhere:
        if one.what == SAME_BYTES and one.topic in subject.topics and one.offset is not None:
            there.setdefault((one.topic or "", one.partition or 0, one.offset), set()).add(one.digest)
    for one in report.findings:
        if one.what in DECIDING:
            there.pop((one.topic or "", one.partition or 0, one.offset or 0), None)

    def holds(found: set[str]) -> bool:
        def is_there(text: bytes) -> bool:
            digest = keyed_digest(subject.needles.secret, text).hex()
            return digest in found or digest not in searched

        return may_hold(subject.where.node, is_there)

    places = sorted(place for place, found in there.items() if holds(found))
    if not places:
        return None
    first = [{"topic": topic, "partition": index, "offset": offset} for topic, index, offset in places[:MAX_UNMATCHED]]
    return {"records": len(places), "first": first}


def request_fields(where: Where, topic: str, secret: bytes) -> JsonObject:
    """Return the fields of a certificate that describe the request."""
    return {
        "topics": [topic],
        "where_shape": where.shape,
        "where_hmac": keyed_digest(secret, where.canonical).hex(),
        **({} if where.blanking is None else {"fields": where.blanking.to_fields(secret)}),
        "undecided": where.undecided,
        "hmac": HMAC,
    }


def check_redaction_claims(
    certificate: Mapping[str, Any],
    found: Verification,
    env: Env,
    directory: str,
    where: Where | None,
    secret: bytes | None,
) -> Steps:
    """Check the claims of a certificate: yield the subject to scan for, take the report, and add to `found`. Blocking."""
    request = certificate["request"]
    if where is None:
        found.notes.append(
            "The description of records (where) was not given, so no record was read and no claim is confirmed."
        )
        return
    if secret is not None and keyed_digest(secret, where.canonical).hex() != request["where_hmac"]:
        found.notes.append("The where given is not that of the certificate, or the secret is another one.")
        found.claims = [untold(claim) for claim in certificate["claims"]]
        return
    rows = request.get("fields")
    blanking = None if rows is None else stated_blanking(rows, where.blanking, secret)
    if rows is not None and blanking is None:
        found.notes.append(
            "The values that fields were given (set) are missing, or are not those of the certificate, so no record was read "
            "and no claim is confirmed."
        )
        found.claims = [untold(claim) for claim in certificate["claims"]]
        return
    topic = str(request["topics"][0])
    values = where.values if where.values.topic else Values(Schemas([SchemasTopic(env, directory)]), topic)
    where = replace(where, undecided=str(request.get("undecided", HOLD)), values=values, blanking=blanking)
    needles = Needles(b"\0" * 32 if secret is None else secret)
    for needle in where.needles:
        needles.add(WHERE, needle)
    subject = Redacted(where, frozenset([topic]), needles)
    report = yield subject
    take_report(certificate, found, report, subject, env, directory)
    if report.in_the_way:
        files = files_of(report.in_the_way)
        found.notes.append(f"Files outside all partitions with records that match, or may match: {files}.")

    def judge(_claim: Mapping[str, Any], partition: TopicPartition, end: int) -> tuple[str, str, int]:
        state = state_of(report, partition, end, where.undecided)
        verdict = {RECORDS_GONE: HOLDS, RECORDS_PRESENT: BROKEN}.get(state, CANNOT_TELL)
        state = gone_state(where) if state == RECORDS_GONE else state
        return verdict, state, len(matching_from(report, partition, end)) + report.unlisted_since(partition, end, MEANT)

    found.claims = check_claims(certificate, report, judge, found.notes, env, directory, is_bound=secret is not None)
    broken = sum(claim["verdict"] == BROKEN for claim in found.claims)
    if broken:
        found.notes.append(f"Claims that no longer hold: {broken}. There are matching records again.")
    written = sum(claim["written_since"] for claim in found.claims)
    if written:
        found.notes.append(f"Records that match above the offsets that the claims cover: {written}.")
