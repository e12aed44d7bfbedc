"""Produce requests with acks=all whose records enough in-sync replicas have to get first (Kafka's DelayedProduce).

Replicas have a record when readers see it: at once, or after the flush that `flush.messages` requires. So only requests that wait
for a flush meet a change of the in-sync replicas, and only with several brokers:

| in-sync replicas by then | high watermark | answer |
|---|---|---|
| as many as `min.insync.replicas` | | the offsets |
| fewer | beyond the records | NOT_ENOUGH_REPLICAS_AFTER_APPEND |
| fewer | before the records | the request waits: REQUEST_TIMED_OUT after its timeout, the offsets if replicas come back |
| another leader | | NOT_LEADER_OR_FOLLOWER |

Each of them leaves the records in the log, and the answer has their offsets.

Source: DelayedProduce.tryComplete, Partition.checkEnoughReplicasReachOffset, Partition.maybeIncrementLeaderHW.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from diamant.broker.topics.leader_check import check_leader
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.protocol.messages.produce import ProducePartitionResult
from diamant.storage.log.log import Log

if TYPE_CHECKING:
    from diamant.broker.brokers.table import BrokerTable


class AppendedPart(NamedTuple):
    """Records of one partition that were appended, and the place of their result."""

    log: Log
    results: list[ProducePartitionResult]
    position: int


class DelayedProduce:
    """The appended parts of one request. `refuse` puts an error into a result, `encode_results` makes the answer."""

    def __init__(
        self,
        parts: Sequence[AppendedPart],
        brokers: BrokerTable,
        broker_id: int,
        refuse: Callable[[ProducePartitionResult, KafkaError], ProducePartitionResult],
        encode_results: Callable[[], bytes],
    ) -> None:
        self._parts = parts
        self._brokers = brokers
        self._broker_id = broker_id
        self._refuse = refuse
        self._encode_results = encode_results

    def refresh(self, _logs: Iterable[Log] = ()) -> bool:
        """Return whether each part has its result, without waiting."""
        return all(self._error(part) is not ErrorCode.REQUEST_TIMED_OUT for part in self._parts)

    def encode(self) -> bytes:
        """Return the answer as things are."""
        for part in self._parts:
            error = self._error(part)
            if error is not None:
                refused = error if isinstance(error, KafkaError) else KafkaError(error)
                part.results[part.position] = self._refuse(part.results[part.position], refused)
        return self._encode_results()

    def _error(self, part: AppendedPart) -> KafkaError | ErrorCode | None:
        """Return the result of a part: REQUEST_TIMED_OUT while it may wait."""
        log, brokers = part.log, self._brokers
        if log.is_deleted:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        try:
            check_leader(brokers, log, self._broker_id)
        except KafkaError as error:
            return error
        if brokers.has_enough_in_sync(log):
            return None
        end = brokers.end_at(self._broker_id, log)
        is_behind = end is not None and end <= part.results[part.position].base_offset
        return ErrorCode.REQUEST_TIMED_OUT if is_behind else ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
