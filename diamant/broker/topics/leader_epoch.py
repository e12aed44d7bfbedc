"""Fencing by leader epoch (KIP-320): a client reaches the leader that it expects."""

from __future__ import annotations

from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.storage.log.log import Log


def check_leader_epoch(log: Log, current_leader_epoch: int) -> None:
    """Raise FENCED_LEADER_EPOCH for an old epoch, UNKNOWN_LEADER_EPOCH for one ahead of ours; -1 is not checked."""
    if current_leader_epoch < 0 or current_leader_epoch == log.leader_epoch:
        return
    code = ErrorCode.FENCED_LEADER_EPOCH if current_leader_epoch < log.leader_epoch else ErrorCode.UNKNOWN_LEADER_EPOCH
    raise KafkaError(
        code,
        f"{log.topic}-{log.partition} has leader epoch {log.leader_epoch}, the request says {current_leader_epoch}",
    )
