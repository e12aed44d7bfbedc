"""ListOffsets (key 2), versions 1 to 11: offsets by time.

Behaviour: timestamps below 0 have meanings of their own: -1 latest, -2 earliest, -3 the record with the largest
timestamp, -4 earliest local, -5 latest tiered, -6 earliest pending upload; without tiers -4 is -2, and -5 and -6 find
nothing. Others find the first record at or after that time, exactly: the batch it is in is decompressed. Versions: 2
isolation level, 4 leader epochs, 7 timestamp -3 (KIP-734), 8 -4 (KIP-405), 9 -5 (KIP-1005), 10 a timeout for tiered
storage, 11 -6.
Deviations: none known.

Source: KafkaApis.handleListOffsetRequest, Partition.fetchOffsetForTimestamp, UnifiedLog.fetchOffsetByTimestamp.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diamant.broker.dispatch import REQUEST_ERRORS, Api, RequestContext, error_of
from diamant.broker.leader_epoch import check_leader_epoch
from diamant.broker.server import Answer
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.protocol.list_offsets import (
    ListOffsetsPartitionResult,
    ListOffsetsTopicResult,
    encode_list_offsets_response,
)
from diamant.protocol.schemas import decode_request
from diamant.storage.log import READ_COMMITTED, Log

if TYPE_CHECKING:
    from diamant.broker.broker import Broker

KEY = 2
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = range(-1, -7, -1)
FIRST_VERSION = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}


def handle(broker: Broker, context: RequestContext, request: Any) -> Answer:
    """Answer every partition for itself."""
    version = context.api_version
    isolation_level = getattr(request, "isolation_level", 0)
    seen: set[tuple[str, int]] = set()
    twice: set[tuple[str, int]] = set()
    for topic in request.topics:
        for partition in topic.partitions:
            key = (topic.name, partition.partition_index)
            (twice if key in seen else seen).add(key)
    topics = []
    for topic in request.topics:
        name = str(topic.name)
        results = []
        for partition in topic.partitions:
            index = int(partition.partition_index)
            try:
                if (name, index) in twice:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, f"{name}-{index} is asked for twice")
                log = broker.topics.log(name, index)
                check_leader_epoch(log, getattr(partition, "current_leader_epoch", -1))
                timestamp, offset, epoch = _find(log, version, int(partition.timestamp), isolation_level)
                results.append(ListOffsetsPartitionResult(index, 0, timestamp, offset, epoch))
            except REQUEST_ERRORS as error:
                results.append(ListOffsetsPartitionResult(index, error_of(error)[0]))
        topics.append(ListOffsetsTopicResult(name, results))
    return encode_list_offsets_response(version, topics)


def _find(log: Log, version: int, timestamp: int, isolation_level: int) -> tuple[int, int, int]:
    """Timestamp, offset and leader epoch; all -1 if there is no such record."""
    end = log.last_stable_offset if isolation_level == READ_COMMITTED else log.high_watermark
    if timestamp < 0 and version < FIRST_VERSION.get(timestamp, 1 << 15):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"timestamp {timestamp} has no meaning in version {version}")
    if timestamp == LATEST:
        return -1, end, log.leader_epoch
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return -1, log.log_start_offset, log.epoch_for_offset(log.log_start_offset)
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return -1, -1, -1
    found = log.offset_of_max_timestamp() if timestamp == MAX_TIMESTAMP else log.offset_for_timestamp(timestamp)
    if found is None or found.offset >= end:
        return -1, -1, -1
    return found.timestamp, found.offset, log.epoch_for_offset(found.offset)


API = Api(KEY, lambda version, body: decode_request(KEY, version, body), handle)
