"""The checks that a request for data of a partition reaches its leader, in the epoch that the client expects (KIP-320)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.storage.log.log import Log

if TYPE_CHECKING:
    from diamant.broker.brokers.table import BrokerTable


def check_leader(
    brokers: BrokerTable | None,
    log: Log,
    broker_id: int,
    current_leader_epoch: int = -1,
    *,
    may_follow: bool = False,
) -> None:
    """Check that the broker that was asked leads the partition, or follows it if that is enough.

    KafkaError, as Partition.getLocalLog: FENCED_LEADER_EPOCH for an old epoch, UNKNOWN_LEADER_EPOCH for one ahead of ours (-1 is
    not checked), NOT_LEADER_OR_FOLLOWER. `brokers`: None if there is one, which leads everything.
    """
    leader = broker_id
    if brokers is not None:
        partition = brokers.image.topics[log.topic].partitions[log.partition]
        if broker_id not in partition.replicas:
            raise _not_leader(log, broker_id, partition.leader)
        if not may_follow:
            leader = partition.leader
    if 0 <= current_leader_epoch != log.leader_epoch:
        is_old = current_leader_epoch < log.leader_epoch
        raise KafkaError(
            ErrorCode.FENCED_LEADER_EPOCH if is_old else ErrorCode.UNKNOWN_LEADER_EPOCH,
            f"{log.topic}-{log.partition} has leader epoch {log.leader_epoch}, the request says {current_leader_epoch}",
        )
    if leader != broker_id:
        raise _not_leader(log, broker_id, leader)


def _not_leader(log: Log, broker_id: int, leader: int) -> KafkaError:
    other = f"broker {leader} does" if leader >= 0 else "none does"
    return KafkaError(
        ErrorCode.NOT_LEADER_OR_FOLLOWER, f"broker {broker_id} does not lead {log.topic}-{log.partition}, {other}"
    )
