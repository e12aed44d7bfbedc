"""OffsetCommit (key 8), versions 2 to 10: store a group's offsets.

Versions: 2 to 4 carry a retention time, 6 adds the leader epoch, 7 static members, 9 members of consumer groups (and
GROUP_ID_NOT_FOUND), 10 has topic ids in place of names.
Behaviour: missing topics and partitions are refused individually; all other offsets are committed together or not at all.
Deviations: a retention time beyond the largest timestamp means forever; in Kafka it overflows and the offset expires immediately.

Source: KafkaApis.handleOffsetCommitRequest, OffsetMetadataManager.commitOffset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diamant.broker.groups.coordinator.offset_selection import CODES, Selection
from diamant.broker.network.api import REQUEST_ERRORS, Answer, RequestContext, error_of
from diamant.protocol.errors import ErrorCode
from diamant.protocol.messages.offset_commit import (
    FIRST_WITH_TOPIC_ID,
    OffsetCommitRequest,
    decode_offset_commit_request,
    encode_offset_commit_response,
)

if TYPE_CHECKING:
    from diamant.broker.groups.coordinator.coordinator import GroupCoordinator
    from diamant.broker.topics.topics import Topics

KEY = 8


def handle(groups: GroupCoordinator, topics: Topics, context: RequestContext, request: OffsetCommitRequest) -> Answer:
    """Commit offsets. They take effect before the answer is sent."""
    version = context.api_version
    selection = Selection(topics, request.topics, has_topic_ids=version >= FIRST_WITH_TOPIC_ID, access=context.access)
    if selection.known or not request.topics:
        try:
            too_long = groups.commits.commit(
                request.group_id,
                selection.known,
                member_id=request.member_id,
                instance_id=request.group_instance_id,
                generation=request.generation,
                version=version,
                retention_ms=request.retention_time_ms,
            )
            selection.refuse(too_long, ErrorCode.OFFSET_METADATA_TOO_LARGE)
        except REQUEST_ERRORS as error:
            code = ErrorCode(error_of(error)[0])
            selection.refuse_all(CODES.get(code, code))
    return encode_offset_commit_response(version, request.topics, selection.codes)


decode = decode_offset_commit_request
