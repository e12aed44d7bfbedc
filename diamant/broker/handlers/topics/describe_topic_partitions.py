"""DescribeTopicPartitions (key 75), version 0: topics in the order of their names, page by page (KIP-966).

Behaviour: an empty list of topics means all. A page has at least one partition, and at most `max.request.partition.size.limit`
or the request's limit, whichever is lower. The response's cursor says where the next page begins. A request with a cursor skips
topics before the cursor's topic. If the request names topics, that topic must be among them; if it asks for all, and that topic
was deleted, the page begins at partition 0 of the next topic.

Source: DescribeTopicPartitionsRequestHandler, KRaftMetadataCache.describeTopicResponse.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from diamant.broker.acl import ResourceType
from diamant.broker.network.api import Answer, RequestContext
from diamant.broker.security.authorization import permissions
from diamant.broker.security.authorization.access import Access, allowed_names
from diamant.broker.topics.internal_names import INTERNAL_TOPICS, METADATA_TOPIC
from diamant.broker.topics.name_checks import check_name
from diamant.broker.topics.topic import Topic
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.protocol.wire.schemas import encode_response_fields

if TYPE_CHECKING:
    from kio.schema.describe_topic_partitions.v0.request import DescribeTopicPartitionsRequest

    from diamant.broker.node.node import Node

KEY = 75


class _Cursor(NamedTuple):
    topic_name: str
    partition_index: int


def handle(node: Node, context: RequestContext, request: DescribeTopicPartitionsRequest) -> Answer:
    """Describe one page."""
    wanted = {str(topic.name) for topic in request.topics}
    is_for_all = not wanted
    cursor = None
    if request.cursor is not None:
        cursor = _Cursor(str(request.cursor.topic_name), int(request.cursor.partition_index))
    names = sorted(node.topics.by_name if is_for_all else wanted)
    if cursor is not None:
        names = [name for name in names if name >= cursor.topic_name]
        if cursor.partition_index < 0 or not (is_for_all or cursor.topic_name in wanted):
            return _refusal(context.api_version, request)
        if names and names[0] != cursor.topic_name:
            cursor = None
    access = context.access
    visible = allowed_names(access, permissions.DESCRIBE_TOPIC, names, is_asked=not is_for_all)
    hidden = [] if is_for_all else [name for name in names if name not in visible]
    most = node.config.max_request_partition_size_limit
    room = max(1, min(int(request.response_partition_limit), most))
    topics: list[dict[str, object]] = []
    next_cursor = None
    for name in filter(visible.__contains__, names):
        if room == 0:
            next_cursor = _Cursor(name, 0)
            break
        topic = node.topics.by_name.get(name)
        if topic is None:
            topics.append(_missing(access, name))
            continue
        first = cursor.partition_index if cursor is not None and cursor.topic_name == name else 0
        indexes = [index for index in sorted(node.topics.image.topics[name].partitions) if index >= first]
        page, rest = indexes[:room], indexes[room:]
        topics.append(_topic(node, access, topic, page))
        room -= len(page)
        if rest:
            next_cursor = _Cursor(name, rest[0])
            break
    denied = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)  # the same whether or not the topic exists
    topics += [{"error_code": denied, "name": name, "topic_id": None} for name in hidden]
    fields = {"topics": topics, "next_cursor": None if next_cursor is None else next_cursor._asdict()}
    return encode_response_fields(KEY, context.api_version, fields)


def _refusal(version: int, request: DescribeTopicPartitionsRequest) -> bytes:
    """Return Kafka's response to a request with an invalid cursor: INVALID_REQUEST for each topic."""
    topics = [
        {"error_code": int(ErrorCode.INVALID_REQUEST), "name": str(topic.name), "topic_id": None}
        for topic in request.topics
    ]
    return encode_response_fields(KEY, version, {"topics": topics, "next_cursor": None})


def _missing(access: Access, name: str) -> dict[str, object]:
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    try:
        check_name(name)
    except KafkaError:
        if name != METADATA_TOPIC:
            code = ErrorCode.INVALID_TOPIC_EXCEPTION
    return {
        "error_code": int(code),
        "name": name,
        "topic_id": None,
        "is_internal": name in INTERNAL_TOPICS,
        "topic_authorized_operations": access.operations(ResourceType.TOPIC, name),
    }


def _topic(node: Node, access: Access, topic: Topic, indexes: list[int]) -> dict[str, object]:
    brokers = node.topics.brokers
    partitions = []
    for index in indexes:
        log, state = topic.logs.get(index), node.topics.image.topics[topic.name].partitions[index]
        # If the files could not be opened, there is no log: the partition has a replica, but no leader.
        leader = state.leader if log is not None else -1
        offline = state.replicas if log is None else () if brokers is None else brokers.offline(state)
        partitions.append(
            {
                "error_code": 0,  # even without a leader
                "partition_index": index,
                "leader_id": leader,
                "leader_epoch": log.leader_epoch if log is not None else -1,
                "replica_nodes": state.replicas,
                "isr_nodes": state.isr if log is not None else (),
                "eligible_leader_replicas": state.eligible_leader_replicas or (),
                "last_known_elr": state.last_known_elr or (),
                "offline_replicas": offline,
            }
        )
    return {
        "error_code": 0,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": topic.name in INTERNAL_TOPICS,
        "partitions": partitions,
        "topic_authorized_operations": access.operations(ResourceType.TOPIC, topic.name),
    }
