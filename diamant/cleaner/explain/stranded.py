"""Stranded values: nothing supersedes them, because partitions were added and their keys now belong to other partitions.

Compaction works within one partition. Producers choose the partition by the key's hash and the number of partitions. So when
partitions are added, the latest values of many keys stay in partitions to which these keys are never written again.

A value is certainly stranded if another partition has a later record of the key. Otherwise this is inferred from the default
partitioners of clients: Java (murmur2; also franz-go, kafkajs, aiokafka, kafka-python) and librdkafka (CRC-32). Producers with
their own partitioners may differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from diamant.cleaner.explain.explanation import (
    IS_LIVE,
    IS_TOMBSTONE,
    LIVE,
    STRANDED,
    Change,
    Gate,
    PartitionExplanation,
)
from diamant.protocol.murmur2 import default_partitions


def with_stranded(
    key: bytes, partitions: Sequence[PartitionExplanation], partition_count: int
) -> list[PartitionExplanation]:
    """Return the explanations of a key's records, with a gate that says so if a value is stranded."""
    return [_told(key, partition, partitions, partition_count) for partition in partitions]


def _told(
    key: bytes, own: PartitionExplanation, partitions: Sequence[PartitionExplanation], partition_count: int
) -> PartitionExplanation:
    latest_ms = max((record.timestamp for record in own.records if record.status == IS_LIVE), default=None)
    if latest_ms is None:
        return own
    later = [
        (record.timestamp, other.partition, record.offset)
        for other in partitions
        for record in other.records
        if other.partition != own.partition
        and record.status in (IS_LIVE, IS_TOMBSTONE)
        and record.timestamp > latest_ms
    ]
    text = "latest value of its key here, but "
    by_java, by_librdkafka = default_partitions(key, partition_count)
    if later:
        _, partition, offset = max(later)
        text += f"partition {partition} takes this key now and has a later record of it (offset {offset})"
        detail: dict[str, object] = {"partitions": [partition], "offset": offset}
    elif own.partition not in (by_java, by_librdkafka):
        named = f"{by_java}" if by_java == by_librdkafka else f"{by_java} (Java) or {by_librdkafka} (librdkafka)"
        text += f"of {partition_count} partitions {named} takes this key now, unless producers choose otherwise"
        detail = {"partitions": sorted({by_java, by_librdkafka})}
    else:
        return own
    gate = Gate(STRANDED, f"{text}: compaction looks at one partition only", detail=detail)
    change = Change(
        f"write a tombstone of the key into partition {own.partition} itself, and compact; or have the key erased",
        f"erase {own.topic} --key KEY --reason REASON",
    )
    records = tuple(
        replace(record, gates=tuple(gate if one.kind == LIVE else one for one in record.gates), change=change)
        if record.status == IS_LIVE and any(one.kind == LIVE for one in record.gates)
        else record
        for record in own.records
    )
    return replace(own, records=records)
