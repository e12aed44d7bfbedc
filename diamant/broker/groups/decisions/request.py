"""A member's request to a consumer group, from ConsumerGroupHeartbeat or JoinGroup."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from diamant.broker.groups.consumer.member import JOIN_EPOCH, LEAVE_EPOCH, STATIC_LEAVE_EPOCH
from diamant.broker.groups.decisions.reconciliation import Owned
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.protocol.internal_topics.group_records import ClassicMemberMetadata


class MemberRequest(NamedTuple):
    """The fields of a request.

    None (-1 for the timeout) means "unchanged". If `member_id` is "", the service assigns one before any decision.
    `owned`: the partitions that the member reports as owned, None if it does not report them.
    """

    member_id: str
    member_epoch: int
    instance_id: str | None
    rack_id: str | None
    rebalance_timeout_ms: int
    subscribed_topic_names: Sequence[str] | None
    subscribed_topic_regex: str | None
    server_assignor: str | None
    owned: Owned | None
    client_id: str
    client_host: str
    classic: ClassicMemberMetadata | None = None


def check_request(
    group_id: str, request: MemberRequest, *, is_member_id_required: bool, assignors: Sequence[str]
) -> None:
    """Check the fields of a ConsumerGroupHeartbeat, but not against the group. KafkaError: INVALID_REQUEST, UNSUPPORTED_ASSIGNOR.

    `is_member_id_required`: True from version 1 of the request on (KIP-1082). Source:
    GroupCoordinatorService.throwIfConsumerGroupHeartbeatRequestIsInvalid.
    """
    epoch = request.member_epoch
    if (is_member_id_required or epoch > 0 or epoch == LEAVE_EPOCH) and not request.member_id.strip():
        raise KafkaError(ErrorCode.INVALID_REQUEST, "MemberId can't be empty.")
    check_not_blank(GroupId=group_id, InstanceId=request.instance_id, RackId=request.rack_id)
    if epoch == JOIN_EPOCH:
        _check_join(request)
    elif epoch == STATIC_LEAVE_EPOCH:
        if request.instance_id is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "InstanceId can't be null.")
    elif epoch < STATIC_LEAVE_EPOCH:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "MemberEpoch is invalid.")
    if request.server_assignor is not None and request.server_assignor not in assignors:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.server_assignor} is not supported. Supported assignors: {', '.join(assignors)}.",
        )


def check_not_blank(**texts: str | None) -> None:
    """Raise KafkaError INVALID_REQUEST if one of the fields, given by name, is blank. None is not blank."""
    for name, text in texts.items():
        if text is not None and not text.strip():
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{name} can't be empty.")


def _check_join(request: MemberRequest) -> None:
    if request.rebalance_timeout_ms == -1:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "RebalanceTimeoutMs must be provided in first request.")
    if request.owned is None or request.owned:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "TopicPartitions must be empty when (re-)joining.")
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
        )


def is_full_request(request: MemberRequest) -> bool:
    """Return whether all fields are set, as in a client's heartbeat after an error. Such a client expects a full answer."""
    has_subscription = request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
    return request.rebalance_timeout_ms != -1 and has_subscription and request.owned is not None
