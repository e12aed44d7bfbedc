"""`diamant verify` for an erasure on any Kafka cluster: reads the replicas again. Changes nothing; needs READ permission."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from diamant.broker.client.kafka_client import KafkaClient, partitions_of
from diamant.broker.clusters.cluster_look import SeenTopic
from diamant.broker.clusters.erasing import FoundPartition, ReplicaReads
from diamant.broker.clusters.outcome import ReplicaRead
from diamant.broker.clusters.searching import KeySearch
from diamant.broker.clusters.work_progress import TimeIsUp, WorkProgress
from diamant.broker.operation_errors import NotPossible
from diamant.cleaner.evidence.certificates.certificate import expected_form
from diamant.cleaner.evidence.certificates.claim_checks import BROKEN, CANNOT_TELL, HOLDS, RECREATED, untold
from diamant.cleaner.evidence.certificates.cluster_claims import KEY_UNREADABLE, NOT_READ, UNREADABLE, replica_name
from diamant.cleaner.evidence.certificates.verification import MAX_PROBLEMS, Verification
from diamant.cleaner.evidence.scan.report import NOT_THERE, VALUES_PRESENT
from diamant.protocol.wire.apis import METADATA
from diamant.storage.uuid_text import uuid_to_text


class _Claim(NamedTuple):
    """A claim in the certificate."""

    topic: str
    partition: int
    below_offset: int
    state: str


def read_again(
    client: KafkaClient,
    certificate: Mapping[str, Any],
    key: bytes,
    secret: bytes | None,
    progress: WorkProgress,
    found: Verification,
) -> None:
    """Read all replicas that now exist of the partitions in the claims, and record a verdict on each claim in `found`.

    `secret`: the secret of the certificate's digests; the caller has checked that the digest of `key` matches. Without it, no
    claim is confirmed. Raises CertificateError for an unexpected form, NotPossible for another cluster or after the deadline,
    KafkaRefusal or ConnectionFailed if a request fails.
    """
    with expected_form():
        names = [str(name) for name in certificate["request"]["topics"]]
        expected = str(certificate["issuer"]["cluster_id"])
        known_ids = dict(certificate["request"].get("topic_ids", {}))
        claims = [
            _Claim(str(one["topic"]), int(one["partition"]), int(one["below_offset"]), str(one["state"]))
            for one in certificate["claims"]
        ]
    asked = {"topics": [{"name": name} for name in names], "allow_auto_topic_creation": False}
    answer = client.ask_any(METADATA, asked)
    client.note_brokers(answer)
    if answer["cluster_id"] != expected:
        raise NotPossible(f"the certificate is about cluster {expected}, but this is cluster {answer['cluster_id']}")
    topics = {one["name"]: one for one in answer["topics"] if not one["error_code"]}
    reads = ReplicaReads(client, KeySearch(key, names, secret or os.urandom(32)), progress)
    doubts: dict[str, str] = {}
    for name in names:
        if name not in topics:
            doubts[name] = NOT_THERE
        elif (topic_id := topics[name].get("topic_id")) and uuid_to_text(topic_id) != known_ids.get(name):
            doubts[name] = RECREATED
        else:
            topic = SeenTopic(name, "", False, partitions_of(topics[name]), None, {})
            ends = {one.partition: one.below_offset for one in claims if one.topic == name}
            for led in topic.partitions:
                if led.number in ends:
                    end = ends[led.number]
                    reads.parts[name, led.number] = FoundPartition(topic, led, end, tombstone=end - 1)
    try:
        reads.read([one for part in reads.parts.values() for one in part.replicas()], "reading the replicas")
    except TimeIsUp:
        raise NotPossible("time ran out before all replicas were read: use a longer --timeout") from None
    found.was_scanned = True
    for claim in claims:
        own = [reads.reads[one] for one in reads.reads if one[:2] == (claim.topic, claim.partition)]
        verdict, state = _verdict(claim, own) if own else (CANNOT_TELL, doubts.get(claim.topic, NOT_THERE))
        since = max((len(one.written_since) for one in own), default=0)
        verdict = verdict if secret is not None else CANNOT_TELL
        found.claims.append({**untold(claim._asdict()), "verdict": verdict, "state_now": state, "written_since": since})
        found.notes += [problem for one in own if (problem := _problem(one))][:MAX_PROBLEMS]
    if secret is None:
        found.notes.append(
            "Without the secret it is unknown whether the certificate is about this key, so no claim is confirmed."
        )
    if certificate.get("disks"):
        found.notes.append("The disks were not searched again.")


def _verdict(claim: _Claim, reads: Sequence[ReplicaRead]) -> tuple[str, str]:
    end = claim.below_offset
    if any(one.values for one in reads):
        return BROKEN, VALUES_PRESENT
    has_tombstone = any(mark.offset < end for one in reads for mark in one.tombstones)
    if has_tombstone and claim.state == KEY_UNREADABLE:
        return BROKEN, UNREADABLE
    if any(not one.is_clean or one.to_offset < end for one in reads):
        return CANNOT_TELL, NOT_READ
    return HOLDS, UNREADABLE if has_tombstone else KEY_UNREADABLE


def _problem(read: ReplicaRead) -> str:
    reason = read.problem or ("" if read.planted == read.planted_found else "its search missed planted records")
    return reason and f"{replica_name(read.topic, read.partition, read.broker)}: {reason}"
