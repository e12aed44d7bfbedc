"""Issues the signed certificate of an erasure on a Kafka cluster. It lists the reads of each replica; `cluster_claims` says what
they prove.

<state directory>/signing-key, signing-key.secret    created on first use, mode 0600 (`signing_key`)
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from diamant.broker.clusters.outcome import ErasedPartition, ErasureOutcome, KeyRecord, ReplicaRead
from diamant.broker.clusters.register import STATE_VARIABLE
from diamant.broker.operation_errors import BadArgument
from diamant.cleaner.evidence.certificates.certificate import CLUSTER_TYPE, HMAC, VERSION, sign_certificate
from diamant.cleaner.evidence.certificates.cluster_claims import (
    FILES_WAIT,
    NOT_COVERED,
    NOT_READ,
    replica_name,
    replica_state,
    state_of_reads,
    weaker,
)
from diamant.cleaner.evidence.certificates.signing_key import SigningKey
from diamant.cleaner.evidence.search.findings import SAME_BYTES
from diamant.json_types import JsonObject
from diamant.storage.env.clocks import SystemClock
from diamant.storage.uuid_text import uuid_to_text
from diamant.version import __version__


def signing_key(state_dir: str) -> SigningKey:
    """Load or create the key that signs certificates, with the secret for their digests. Raises StorageError, OSError."""
    return SigningKey.load(f"{state_dir}/signing-key")


def existing_signing_key(state_dir: str) -> SigningKey:
    """Load the signing key of an earlier erasure. If a file is missing, raise BadArgument with its name; create nothing."""
    paths = [f"{state_dir}/{name}" for name in ("signing-key", "signing-key.secret")]
    missing = [path for path in paths if not os.path.exists(path)]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise BadArgument(
            f"{' and '.join(missing)} {verb} missing: expected the signing key of the erasure there. Copy signing-key and "
            f"signing-key.secret from the state directory of the machine that ran the erasure, or set ${STATE_VARIABLE} to the "
            "directory that has them"
        )
    return signing_key(state_dir)


def key_secret(state_dir: str) -> bytes:
    """Return the 32-byte secret for the digests in certificates."""
    return signing_key(state_dir).secret


def issue(outcome: ErasureOutcome, state_dir: str) -> JsonObject:
    """Return the signed certificate of an erasure. Its state is never stronger than what the reads prove."""
    claims, refused = _claims_and_refusals(outcome)
    leaders = [one for one in outcome.reads if one.is_leader]
    fields = {
        "type": CLUSTER_TYPE,
        "version": VERSION,
        "id": outcome.id,
        **issued(outcome.cluster_id, outcome.started_ms, max((one.ended_ms for one in outcome.reads), default=0)),
        "request": {
            "reason": outcome.reason,
            "reference": outcome.reference,
            "topics": list(outcome.topics),
            "topic_ids": {name: uuid_to_text(UUID(one)) for name, one in outcome.topic_ids.items() if one},
            "partitions": {name: _count(outcome, name) for name in outcome.topics},
            "key_hmac": outcome.key_digest,
            "hmac": HMAC,
        },
        "found": [_place(one) | {"values": one.values} for one in outcome.partitions if one.is_found],
        "done": [
            _place(one) | {"tombstone_offset": one.tombstone_offset} for one in outcome.partitions if one.is_found
        ],
        "overrides": [{"what": "delete.retention.ms was lowered for the tombstones"}] if outcome.tombstones_now else [],
        "claims": claims,
        "not_certified": refused,
        "written_since": [_place(one) | {"offset": at} for one in leaders for at in _offsets(one.written_since)],
        **_elsewhere(outcome),
        "coverage": {"values_searched_for": outcome.values_searched_for},
        "not_covered": [*NOT_COVERED, *_files_wait(outcome)],
    }
    return sign_certificate({**fields, "state": state_of_reads(fields)}, signing_key(state_dir))


def _elsewhere(outcome: ErasureOutcome) -> JsonObject:
    """Return the records of other keys that contain the same bytes, each once.

    All replicas are considered, since a leader without a value of the key was read before the values were known.
    """
    listed, more = set[tuple[str, int, int]](), dict[tuple[str, int], int]()
    for one in outcome.reads:
        listed.update((one.topic, one.partition, at) for at in one.same_bytes)
        place = one.topic, one.partition
        more[place] = max(more.get(place, 0), one.same_bytes_not_listed)
    return {
        "elsewhere": [
            {"topic": topic, "partition": partition, "offset": at, "what": SAME_BYTES}
            for topic, partition, at in sorted(listed)
        ],
        "elsewhere_not_listed": sum(more.values()),
    }


def _claims_and_refusals(outcome: ErasureOutcome) -> tuple[list[JsonObject], list[JsonObject]]:
    """Return a claim for each partition whose replicas all prove it, and for other partitions why their replicas do not."""
    reads = {(one.topic, one.partition, one.broker): one for one in outcome.reads}
    claims, refused = list[JsonObject](), list[JsonObject]()
    for part in outcome.partitions:
        rows = [
            _row(reads.get((part.topic, part.partition, broker)), part, broker, outcome) for broker in part.replicas
        ]
        states = [replica_state(row, part.below_offset) for row in rows]
        place = _place(part) | {"below_offset": part.below_offset}
        problems = [
            {"file": replica_name(part.topic, part.partition, row["broker"]), "reason": reason}
            for row, (_, reason) in zip(rows, states, strict=True)
            if reason
        ]
        if problems or not rows:
            state = next((state for state, reason in states if reason), NOT_READ)
            refused.append({**place, "state": state, "problems": problems, "replicas": rows})
        else:
            state = weaker(state for state, _ in states)
            claims.append({**place, "state": state, "brokers": list(part.replicas), "replicas": rows})
    return claims, refused


def issued(cluster_id: str, requested_ms: int, read_ms: int = 0) -> Mapping[str, Any]:
    """Return a certificate's fields about its issuer and time of issue, which is now but not before `read_ms`, the last read."""
    return {
        "is_evidence": True,
        "clock": {
            "kind": "system",
            "requested_ms": requested_ms,
            "issued_ms": max(SystemClock().now_ms(), read_ms),
            "note": "",
        },
        "issuer": {"software": f"Diamant {__version__}", "cluster_id": cluster_id},
    }


def _row(read: ReplicaRead | None, part: ErasedPartition, broker: int, outcome: ErasureOutcome) -> JsonObject:
    if read is None:
        name = replica_name(part.topic, part.partition, broker)
        began, problem = outcome.started_ms, outcome.problems.get(name) or "it was not read"
        read = ReplicaRead(part.topic, part.partition, broker, False, False, 0, 0, began, began, problem=problem)
    return {
        "broker": broker,
        "is_leader": read.is_leader,
        "is_in_sync": read.is_in_sync,
        "from_offset": read.from_offset,
        "to_offset": read.to_offset,
        "began_ms": read.began_ms,
        "ended_ms": read.ended_ms,
        "bytes": read.bytes,
        "batches": read.batches,
        "records": read.records,
        "segments": list(read.segments),
        "known_positives": {"planted": read.planted, "seen": read.planted_found},
        "values": _offsets(read.values),
        "tombstones": _offsets(read.tombstones),
        "problem": read.problem,
    }


def _place(one: ErasedPartition | ReplicaRead) -> JsonObject:
    return {"topic": one.topic, "partition": one.partition}


def _offsets(records: tuple[KeyRecord, ...]) -> list[int]:
    return [one.offset for one in records]


def _count(outcome: ErasureOutcome, topic: str) -> int:
    return max((one.partition + 1 for one in outcome.partitions if one.topic == topic), default=0)


def _files_wait(outcome: ErasureOutcome) -> list[str]:
    left = sorted({*outcome.topics} - {*outcome.file_delay_lowered})
    return [FILES_WAIT.format(", ".join(left))] if left else []
