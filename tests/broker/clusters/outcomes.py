"""Outcomes of erasures on a Kafka cluster of three brokers, made without a cluster."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from diamant.broker.clusters.outcome import ErasedPartition, ErasureOutcome, KeyRecord, ReplicaRead
from diamant.cleaner.evidence.search.needles import keyed_digest

KEY = b"customer-42"
BROKERS = (1, 2, 3)
TOMBSTONE = KeyRecord(90, 1_000, None)
VALUE = KeyRecord(7, 900, 100)
READ = ReplicaRead(
    "users",
    0,
    1,
    is_leader=False,
    is_in_sync=True,
    from_offset=0,
    to_offset=100,
    began_ms=2_000,
    ended_ms=2_100,
    bytes=5_000,
    batches=9,
    records=80,
    segments=(0, 90),
    planted=4,
    planted_found=4,
    tombstones=(TOMBSTONE,),
)
PARTITION = ErasedPartition("users", 0, 20, 90, 91, BROKERS)


def outcome(secret: bytes = bytes(32), **changes: Any) -> ErasureOutcome:
    """Return an erasure of 20 values from one partition, whose three replicas were read and are clean, but for `changes`."""
    made = ErasureOutcome(
        id="e1",
        cluster_id="cluster-1",
        topics=("users",),
        topic_ids={"users": "11111111-1111-1111-1111-111111111111"},
        key_digest=keyed_digest(secret, KEY).hex(),
        reason="request 42",
        reference="",
        started_ms=1_500,
        partitions=(PARTITION,),
        reads=tuple(replace(READ, broker=broker, is_leader=broker == 1) for broker in BROKERS),
    )
    return replace(made, **changes)


def with_read(broker: int, **changes: Any) -> ErasureOutcome:
    """Return the outcome with one replica's read changed."""
    made = outcome()
    return replace(made, reads=tuple(replace(one, **changes) if one.broker == broker else one for one in made.reads))
