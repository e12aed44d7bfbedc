"""OffsetCommit (key 8), versions 2 to 10: a group's offsets are written down.

Versions: 2 to 4 carry a retention time, 6 adds the leader epoch, 7 static members, 9 members of consumer groups (and
GROUP_ID_NOT_FOUND), 10 has topic ids in place of names.
Behaviour: topics and partitions that do not exist are refused one by one, everything else is committed together or not at all.
Deviations: a retention time that goes beyond the end of time is for ever; in Kafka it overflows, and the offset expires at once.

Source: KafkaApis.handleOffsetCommitRequest, OffsetMetadataManager.commitOffset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diamant.broker.dispatch import REQUEST_ERRORS, Api, RequestContext, error_of
from diamant.broker.groups.offsets import OffsetCommit
from diamant.broker.server import Answer
from diamant.protocol.errors import ErrorCode
from diamant.protocol.offset_commit import (
    FIRST_WITH_TOPIC_ID,
    CommittedTopicResult,
    OffsetCommitRequest,
    decode_offset_commit_request,
    encode_offset_commit_response,
)

if TYPE_CHECKING:
    from diamant.broker.broker import Broker

KEY = 8

CODES = {ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR}
"""Errors of the log that have another name for clients (CoordinatorOperationExceptionHelper)."""


def handle(broker: Broker, context: RequestContext, request: OffsetCommitRequest) -> Answer:
    """Commit; the offsets count when the answer goes out."""
    version = context.api_version
    has_ids = version >= FIRST_WITH_TOPIC_ID
    by_name, by_id, images = broker.topics.by_name, broker.topics.by_id, broker.topics.image.topics
    answers: list[CommittedTopicResult] = []
    commits: list[OffsetCommit] = []
    places: list[tuple[list[tuple[int, int]], int]] = []  # where the result of each of `commits` belongs
    for name, topic_id, partitions in request.topics:
        if has_ids:
            topic = None if topic_id is None else by_id.get(topic_id)
            code = ErrorCode.UNKNOWN_TOPIC_ID
        else:
            topic = by_name.get(name)
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        results: list[tuple[int, int]] = []
        answers.append(CommittedTopicResult(name, topic_id, results))
        if topic is None:
            results += [(each.partition, code) for each in partitions]
            continue
        known = images[topic.name].partitions
        for index, offset, leader_epoch, metadata in partitions:
            if index in known:
                commits.append(OffsetCommit(topic.name, index, offset, leader_epoch, metadata or "", topic.topic_id))
                places.append((results, len(results)))
            results.append((index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    if commits or not answers:
        for (results, number), code in zip(places, _commit(broker, version, request, commits), strict=True):
            results[number] = (results[number][0], code)
    return encode_offset_commit_response(version, answers)


def _commit(broker: Broker, version: int, request: OffsetCommitRequest, commits: list[OffsetCommit]) -> list[ErrorCode]:
    try:
        return broker.groups.commit(
            request.group_id,
            commits,
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            generation=request.generation,
            version=version,
            retention_ms=request.retention_time_ms,
        )
    except REQUEST_ERRORS as error:
        code = ErrorCode(error_of(error)[0])
        return [CODES.get(code, code)] * len(commits)


API = Api(KEY, decode_offset_commit_request, handle)
