"""OffsetCommit (key 8), versions 2 to 10: a group's offsets are written down.

Versions: 2 to 4 carry a retention time, 6 adds the leader epoch, 7 static members, 9 members of consumer groups (and
GROUP_ID_NOT_FOUND), 10 has topic ids in place of names.
Behaviour: topics and partitions that do not exist are refused one by one, everything else is committed together or not at all.
Deviations: a retention time that goes beyond the end of time is for ever; in Kafka it overflows, and the offset expires at once.

Source: KafkaApis.handleOffsetCommitRequest, OffsetMetadataManager.commitOffset.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from diamant.broker.dispatch import REQUEST_ERRORS, Api, RequestContext, error_of
from diamant.broker.groups.coordinator import NO_RETENTION_MS
from diamant.broker.groups.offsets import OffsetCommit
from diamant.broker.server import Answer
from diamant.protocol.errors import ErrorCode
from diamant.protocol.schemas import decode_request, encode_response_fields

if TYPE_CHECKING:
    from diamant.broker.broker import Broker

KEY = 8
LAST_WITH_RETENTION_TIME = 4
FIRST_WITH_LEADER_EPOCH = 6
FIRST_WITH_INSTANCE_ID = 7
FIRST_WITH_TOPIC_ID = 10

CODES = {ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR}
"""Errors of the log that have another name for clients (CoordinatorOperationExceptionHelper)."""

_MILLISECOND = timedelta(milliseconds=1)


def handle(broker: Broker, context: RequestContext, request: Any) -> Answer:
    """Commit; the offsets count when the answer goes out."""
    version = context.api_version
    has_ids = version >= FIRST_WITH_TOPIC_ID
    has_epochs = version >= FIRST_WITH_LEADER_EPOCH
    by_name, by_id, images = broker.topics.by_name, broker.topics.by_id, broker.topics.image.topics
    answers: list[dict[str, Any]] = []
    commits: list[OffsetCommit] = []
    pending: list[dict[str, int]] = []  # the answers to `commits`
    for wanted in request.topics:
        if has_ids:
            topic = None if wanted.topic_id is None else by_id.get(wanted.topic_id)
            code = ErrorCode.UNKNOWN_TOPIC_ID
        else:
            topic = by_name.get(wanted.name)
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        known = () if topic is None else images[topic.name].partitions
        results: list[dict[str, int]] = []
        for partition in wanted.partitions:
            index = partition.partition_index
            result: dict[str, int] = {"partition_index": index}
            results.append(result)
            if topic is None or index not in known:
                result["error_code"] = code if topic is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                continue
            epoch = partition.committed_leader_epoch if has_epochs else -1
            metadata = partition.committed_metadata or ""
            offset = partition.committed_offset
            commits.append(OffsetCommit(topic.name, index, offset, epoch, metadata, topic.topic_id))
            pending.append(result)
        answers.append({"topic_id": wanted.topic_id} if has_ids else {"name": wanted.name})
        answers[-1]["partitions"] = results
    if commits or not answers:
        for result, code in zip(pending, _commit(broker, version, request, commits), strict=True):
            result["error_code"] = code
    return encode_response_fields(KEY, version, {"topics": answers})


def _commit(broker: Broker, version: int, request: Any, commits: list[OffsetCommit]) -> list[ErrorCode]:
    retention_ms = NO_RETENTION_MS
    if version <= LAST_WITH_RETENTION_TIME:
        retention_ms = request.retention_time // _MILLISECOND
    try:
        return broker.groups.commit(
            request.group_id,
            commits,
            member_id=request.member_id,
            instance_id=request.group_instance_id if version >= FIRST_WITH_INSTANCE_ID else None,
            generation=request.generation_id_or_member_epoch,
            version=version,
            retention_ms=retention_ms,
        )
    except REQUEST_ERRORS as error:
        code = ErrorCode(error_of(error)[0])
        return [CODES.get(code, code)] * len(commits)


API = Api(KEY, lambda version, body: decode_request(KEY, version, body), handle)
