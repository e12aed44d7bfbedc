"""Checks that a request for data reaches the partition's leader, in the leader epoch that the client expects (KIP-320)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.storage.log.log import Log

if TYPE_CHECKING:
    from diamant.broker.brokers.table import BrokerTable


class NotLeader(KafkaError):
    """The client is wrong about a partition's leader or leader epoch. The response may name the right leader (KIP-951)."""

    def __init__(self, code: ErrorCode, detail: str, current_leader: tuple[int, int] | None) -> None:
        """`current_leader`: (broker, leader epoch); None if the response does not name it."""
        super().__init__(code, detail)
        self.current_leader = current_leader


def check_leader(
    brokers: BrokerTable | None,
    log: Log,
    broker_id: int,
    current_leader_epoch: int = -1,
    *,
    may_follow: bool = False,
) -> None:
    """Check that a broker leads a partition or, with `may_follow`, has a replica. `brokers`: None with a single broker.

    Raises KafkaError like Partition.getLocalLog: NOT_LEADER_OR_FOLLOWER, or, unless `current_leader_epoch` is -1,
    FENCED_LEADER_EPOCH if it is too old and UNKNOWN_LEADER_EPOCH if it is too new.
    """
    leader, current = broker_id, None
    if brokers is not None:
        partition = brokers.image.topics[log.topic].partitions[log.partition]
        if broker_id not in partition.replicas:
            raise _not_leader(log, broker_id, partition.leader)
        current = (partition.leader, log.leader_epoch)
        if not may_follow:
            leader = partition.leader
    if 0 <= current_leader_epoch != log.leader_epoch:
        is_old = current_leader_epoch < log.leader_epoch
        raise NotLeader(
            ErrorCode.FENCED_LEADER_EPOCH if is_old else ErrorCode.UNKNOWN_LEADER_EPOCH,
            f"{log.topic}-{log.partition} has leader epoch {log.leader_epoch}, but the request says {current_leader_epoch}",
            current if is_old else None,
        )
    if leader != broker_id:
        raise _not_leader(log, broker_id, leader)


def _not_leader(log: Log, broker_id: int, leader: int) -> NotLeader:
    other = f"broker {leader} does" if leader >= 0 else "none does"
    detail = f"broker {broker_id} does not lead {log.topic}-{log.partition}, {other}"
    return NotLeader(ErrorCode.NOT_LEADER_OR_FOLLOWER, detail, (leader, log.leader_epoch))
