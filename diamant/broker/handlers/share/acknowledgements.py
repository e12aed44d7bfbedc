"""Acknowledgements of records, which both ShareFetch and ShareAcknowledge requests may contain.

Source: KafkaApis.handleAcknowledgements, getAcknowledgeBatchesFromShareFetchRequest; SharePartitionManager.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID

from diamant.broker.groups.delivery.share_delivery import NOT_HOSTED, ShareDelivery
from diamant.broker.groups.delivery.share_sessions import RequestedSession
from diamant.broker.groups.share.acknowledgement import AcknowledgementBatch, check_form
from diamant.broker.groups.share.simple_assignor import Place
from diamant.broker.network.api import REQUEST_ERRORS, BrokerAddress, RequestContext, error_of
from diamant.broker.security.authorization import permissions
from diamant.broker.security.authorization.access import check
from diamant.broker.topics.leader_check import NotLeader, check_leader
from diamant.broker.topics.topics import Topics
from diamant.protocol.errors import ErrorCode
from diamant.protocol.internal_topics.share_records import SharePartitionKey
from diamant.protocol.messages.share_fetch import DONE, ShareOutcome
from diamant.storage.uuid_text import ZERO_ID

if TYPE_CHECKING:
    from kio.schema.share_acknowledge.v2.request import ShareAcknowledgeRequest
    from kio.schema.share_fetch.v2.request import ShareFetchRequest

ShareRequest: TypeAlias = "ShareFetchRequest | ShareAcknowledgeRequest"


def requested_session(context: RequestContext, request: ShareRequest) -> RequestedSession:
    """Return the session that a ShareFetch or ShareAcknowledge names."""
    return RequestedSession(
        str(request.group_id or ""),
        str(request.member_id or ""),
        int(request.share_session_epoch),
        context.connection.peer,
        context.connection.broker_id,
    )


def is_renewing(request: ShareRequest) -> bool:
    """Return whether acknowledgements may renew locks. Version 2 has a flag for this; version 1 never allows it."""
    return bool(getattr(request, "is_renew_ack", False))


def places_of(topics: Iterable[Any]) -> Iterator[tuple[Place, Any]]:
    """For each partition of a request, yield (topic id, partition number) and the entry: its fields, or just the number."""
    for topic in topics:
        topic_id: UUID = topic.topic_id or ZERO_ID
        for partition in topic.partitions:
            yield (topic_id, int(getattr(partition, "partition_index", partition))), partition


def check_readable(topics: Topics, context: RequestContext, place: Place) -> None:
    """Check that the client may read a partition at this broker.

    KafkaError: UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION, TOPIC_AUTHORIZATION_FAILED, NOT_LEADER_OR_FOLLOWER.
    """
    topic = topics.by_id.get(place[0])
    if topic is not None:
        check(context.access, permissions.READ_TOPIC, topic.name)
    check_leader(topics.brokers, topics.log_by_id(*place), context.connection.broker_id)


def acknowledged(
    delivery: ShareDelivery,
    topics: Topics,
    context: RequestContext,
    asked: RequestedSession,
    request: ShareRequest,
) -> dict[Place, ShareOutcome]:
    """Apply the acknowledgements of a request; return the outcome of each partition."""
    outcome: dict[Place, ShareOutcome] = {}
    for place, partition in places_of(request.topics):
        batches = [
            AcknowledgementBatch(
                int(one.first_offset), int(one.last_offset), [int(kind) for kind in one.acknowledge_types]
            )
            for one in partition.acknowledgement_batches
        ]
        if not batches:
            continue
        try:
            check_readable(topics, context, place)
            check_form(batches, may_renew=is_renewing(request))
            delivery.acknowledge(SharePartitionKey(asked.group_id, *place), asked.member_id, batches)
            outcome[place] = DONE
        except REQUEST_ERRORS as error:
            outcome[place] = failed(error)
    return outcome


def failed(error: BaseException) -> ShareOutcome:
    """Return the outcome for an error. As in Kafka, the message is omitted for most errors."""
    code, message = error_of(error)
    has_message = code in (ErrorCode.INVALID_RECORD_STATE, ErrorCode.INVALID_REQUEST) or message == NOT_HOSTED
    leader = error.current_leader if isinstance(error, NotLeader) else None
    return ShareOutcome(code, message if has_message else None, leader or DONE.current_leader)


def endpoints(topics: Topics, context: RequestContext, outcomes: Iterable[ShareOutcome]) -> list[BrokerAddress]:
    """Return the addresses of the leaders that are named in outcomes."""
    brokers = topics.brokers
    return [] if brokers is None else brokers.endpoints((one.current_leader for one in outcomes), context.connection)
