"""Produce requests with acks=all, which wait until enough in-sync replicas have their records (Kafka's DelayedProduce).

All replicas share one log, so they have a record as soon as readers can see it: after the append or, if `flush.messages` requires
a flush, after the flush. A change of the in-sync replicas or the leader matters only while a request waits for its flush:

| in-sync replicas after the flush | high watermark | answer |
|---|---|---|
| at least `min.insync.replicas` | | no error |
| fewer | beyond the records | NOT_ENOUGH_REPLICAS_AFTER_APPEND |
| fewer | before the records | waits: no error once enough replicas are back, REQUEST_TIMED_OUT after the timeout |
| any number, another leader | | NOT_LEADER_OR_FOLLOWER |

In all cases, the records stay in the log, and the answer has their offsets.

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
    """Records appended to one partition. Their result is `results[position]`."""

    log: Log
    results: list[ProducePartitionResult]
    position: int


class DelayedProduce:
    """The appended parts of one request. `refuse` adds an error to a result; `encode_results` encodes the response."""

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
        """Return whether all parts can be answered now."""
        return all(self._error(part) is not ErrorCode.REQUEST_TIMED_OUT for part in self._parts)

    def encode(self) -> bytes:
        """Return the response with each part's current result."""
        for part in self._parts:
            error = self._error(part)
            if error is not None:
                refused = error if isinstance(error, KafkaError) else KafkaError(error)
                part.results[part.position] = self._refuse(part.results[part.position], refused)
        return self._encode_results()

    def _error(self, part: AppendedPart) -> KafkaError | ErrorCode | None:
        """Return the error to report for a part if it is answered now, or None. REQUEST_TIMED_OUT means that it should wait."""
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
