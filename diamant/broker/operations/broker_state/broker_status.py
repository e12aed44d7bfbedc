"""A broker's status in one answer: its identity, its clock, and the state of its cleaner by partition (`diamant status`).

It is computed in memory, without reading records. At most `MAX_PARTITIONS` partitions are listed, failed and overdue ones first;
the totals cover all partitions.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from diamant.broker.groups.coordinator.share_figures import SharePartitionFigures, share_figures
from diamant.broker.node.future_holds import FutureHold, future_holds
from diamant.broker.operations.broker_state.broker_clock import ClockReport
from diamant.broker.transactions.holds import TransactionHold, transaction_holds
from diamant.cleaner.rules.modes import followed_version
from diamant.cleaner.service.metrics import CleanerStatus, PartitionStatus
from diamant.kernels import ARE_COMPILED
from diamant.version import __version__

if TYPE_CHECKING:
    from diamant.broker.brokers.table import BrokerState
    from diamant.broker.groups.coordinator.coordinator import GroupCoordinator
    from diamant.broker.node.cleaner import NodeCleaner
    from diamant.broker.node.lazy import Lazy
    from diamant.broker.node.node import Node
    from diamant.broker.operations.broker_state.broker_clock import BrokerClock
    from diamant.broker.operations.broker_state.running_requests import NoArguments
    from diamant.broker.transactions.coordinator import TransactionCoordinator
    from diamant.progress import Progress

MAX_PARTITIONS = 1_000


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """The status of a broker."""

    version: str
    has_kernels: bool
    cluster_id: str
    node_id: int
    brokers: tuple[BrokerState, ...]
    """The brokers of this process; empty if there is only one broker."""
    is_stopping: bool
    listeners: tuple[str, ...]
    http_address: str | None
    uptime_s: float
    topics: int
    partitions: int
    offline: tuple[str, ...]
    """Partitions that could not be opened or that refuse writes, at most `MAX_PARTITIONS`."""
    future_holds: tuple[FutureHold, ...]
    """Partitions whose oldest segment outlives retention because of timestamps in the future, at most `MAX_PARTITIONS`."""
    transaction_holds: tuple[TransactionHold, ...]
    """Partitions that an open transaction keeps from being cleaned, among the `MAX_PARTITIONS` most overdue ones."""
    share_partitions: tuple[SharePartitionFigures, ...]
    """Partitions from which members of share groups have fetched, at most `MAX_PARTITIONS`."""
    clock: ClockReport
    cleaner_mode: str
    cleaner_kafka_version: str | None
    """The version of Kafka that the cleaner follows; None in mode prompt, which follows the newest."""
    is_cleaner_enabled: bool
    cleaner: CleanerStatus

    def to_fields(self) -> dict[str, object]:
        """Return the fields of the JSON object."""
        found = self.cleaner
        listed = sorted(found.partitions, key=_urgency)[:MAX_PARTITIONS]
        return {
            "version": self.version,
            "has_kernels": self.has_kernels,
            "cluster_id": self.cluster_id,
            "node_id": self.node_id,
            **({"brokers": [one._asdict() for one in self.brokers]} if self.brokers else {}),
            "is_stopping": self.is_stopping,
            "listeners": list(self.listeners),
            "http_address": self.http_address,
            "uptime_s": self.uptime_s,
            "topics": self.topics,
            "partitions": self.partitions,
            "offline": list(self.offline),
            "future_holds": [asdict(one) for one in self.future_holds],
            "transaction_holds": [one.to_fields() for one in self.transaction_holds],
            "share_partitions": [one.to_fields() for one in self.share_partitions],
            "clock": self.clock.to_fields(),
            "cleaner": {
                "mode": self.cleaner_mode,
                "kafka_version": self.cleaner_kafka_version,
                "is_enabled": self.is_cleaner_enabled,
                "dead_threads": found.dead_thread_count,
                "uncleanable_partitions": found.uncleanable_partitions_count,
                "uncleanable_bytes": found.uncleanable_bytes,
                "max_dirty_percent": found.max_dirty_percent,
                "must_clean_partitions": found.must_clean_partitions,
                "must_clean_ratio": round(found.must_clean_ratio, 4),
                "io_bytes": found.io_bytes_total,
                "in_progress": [{**asdict(one), "progress": one.progress._asdict()} for one in found.in_progress],
                "compacted_partitions": len(found.partitions),
                "partitions": [_partition_fields(one) for one in listed],
            },
        }


def broker_status(
    node: Node,
    cleaner: CleanerStatus,
    clock: ClockReport,
    transactions: Lazy[TransactionCoordinator],
    groups: Lazy[GroupCoordinator],
) -> BrokerStatus:
    """Return the status of a broker. Call this on its loop thread."""
    addresses, started_s = node.addresses, node.started_s
    logs = node.directory.logs
    offline = [f"{failure.topic}-{failure.partition}" for failure in node.directory.failures]
    overdue = sorted((one for one in cleaner.partitions if one.overdue_ms > 0), key=lambda one: -one.overdue_ms)
    held = ((one.topic, one.partition) for one in overdue[:MAX_PARTITIONS])
    offline += [f"{log.topic}-{log.partition}" for log in logs.values() if log.write_failure is not None]
    return BrokerStatus(
        version=__version__,
        has_kernels=ARE_COMPILED,
        cluster_id=node.cluster_id,
        node_id=node.config.node_id,
        brokers=() if node.topics.brokers is None else tuple(node.topics.brokers.states()),
        is_stopping=node.is_stopping,
        listeners=tuple(listener.address for listener in addresses.kafka),
        http_address=None if addresses.http_bound is None else addresses.http_bound.address,
        uptime_s=0.0 if started_s is None else round(time.monotonic() - started_s, 1),
        topics=len(node.topics.by_name),
        partitions=len(logs),
        offline=tuple(offline[:MAX_PARTITIONS]),
        future_holds=tuple(future_holds(node)[:MAX_PARTITIONS]),
        transaction_holds=tuple(transaction_holds(node, held, transactions)),
        share_partitions=tuple(share_figures(groups.made, node.topics, MAX_PARTITIONS)),
        clock=clock,
        cleaner_mode=node.config.diamant_cleaner_mode,
        cleaner_kafka_version=followed_version(
            node.config.diamant_cleaner_mode, node.config.diamant_cleaner_kafka_version
        ),
        is_cleaner_enabled=node.config.log_cleaner_enable,
        cleaner=cleaner,
    )


async def status(
    node: Node,
    cleaning: NodeCleaner,
    clock: BrokerClock,
    transactions: Lazy[TransactionCoordinator],
    groups: Lazy[GroupCoordinator],
    _request: NoArguments,
    _progress: Progress,
) -> BrokerStatus:
    """Return the status of a broker."""
    return broker_status(node, cleaning.status(), clock.state(), transactions, groups)


def _urgency(one: PartitionStatus) -> tuple[Any, ...]:
    return (
        one.uncleanable_reason is None,
        one.trouble is None,
        -one.overdue_ms,
        -one.dirty_ratio,
        one.topic,
        one.partition,
    )


def _partition_fields(one: PartitionStatus) -> dict[str, object]:
    return {
        "topic": one.topic,
        "partition": one.partition,
        "dirty_ratio": round(one.dirty_ratio, 4),
        "must_clean_ratio": round(one.must_clean_ratio, 4),
        "compaction_lag_ms": one.compaction_lag_ms,
        "overdue_ms": one.overdue_ms,
        "last_cleaned_ms": one.last_cleaned_ms,
        "rounds": sum(one.rounds.values()),
        "records_removed": one.data_removed,
        "markers_removed": one.markers_removed,
        "uncleanable_reason": one.uncleanable_reason,
        "quarantined": list(one.quarantined),
    }
