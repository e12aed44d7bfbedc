"""OffsetFetch (key 9), versions 1 to 10: the committed offsets of groups.

Versions: 2 adds the error for the whole group and null for "all topics", 5 the leader epoch, 7 requests for stable offsets only,
8 several groups in one request (KIP-709), 9 the member and its epoch, 10 topic ids in place of names.
Behaviour: if no offset is committed, the offset is -1 without an error, even if the group, topic or partition does not exist. A
request for stable offsets gets UNSTABLE_OFFSET_COMMIT for partitions with an offset in an open transaction. Topics with
unknown ids follow the others, before topics that the client may not see; "all topics" come in the order of Kafka's hash maps.
Deviations: in a consumer group, a member epoch without a member id is answered with UNKNOWN_MEMBER_ID; Kafka fails on it with
UNKNOWN_SERVER_ERROR.

Source: KafkaApis.handleOffsetFetchRequest, OffsetMetadataManager.fetchOffsets and fetchAllOffsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from uuid import UUID

from diamant.broker.coordinators.java_order import in_timeline_order, strings_in_timeline_order
from diamant.broker.groups.store.group import Group
from diamant.broker.groups.store.offsets import is_of_topic
from diamant.broker.network.api import REQUEST_ERRORS, RequestContext, ResponseFields, error_of
from diamant.broker.security.authorization import permissions
from diamant.broker.security.authorization.access import Access, allowed_names, check
from diamant.protocol.errors import ErrorCode
from diamant.protocol.internal_topics.group_records import parse_offset_commit_value

if TYPE_CHECKING:
    from kio.schema.offset_fetch.v9.request import OffsetFetchRequestTopics as OldTopics
    from kio.schema.offset_fetch.v10.request import OffsetFetchRequest, OffsetFetchRequestGroup

    from diamant.broker.groups.coordinator.coordinator import GroupCoordinator
    from diamant.broker.topics.topics import Topics

FIRST_WITH_GROUP_ERROR = 2
FIRST_WITH_REQUIRE_STABLE = 7
FIRST_WITH_GROUPS = 8
FIRST_WITH_MEMBER = 9
FIRST_WITH_TOPIC_ID = 10


class _Wanted(NamedTuple):
    """A topic of the request. `name`: None if its id is unknown. `topic_id`: None if the request names the topic."""

    name: str | None
    topic_id: UUID | None
    partitions: Sequence[int]


def answer(
    groups: GroupCoordinator, topics: Topics, context: RequestContext, request: OffsetFetchRequest
) -> ResponseFields:
    """Look up offsets."""
    version = context.api_version
    is_stable = version >= FIRST_WITH_REQUIRE_STABLE and request.require_stable
    if version >= FIRST_WITH_GROUPS:
        answers = [_fetch_group(groups, topics, context, group, is_stable) for group in request.groups]
        return {"groups": answers}
    asked = cast("OffsetFetchRequestGroup", request)  # has the fields of a later version's group, except the member
    fields = _fetch_group(groups, topics, context, asked, is_stable)
    if version < FIRST_WITH_GROUP_ERROR and fields["error_code"]:
        # The version has no field for the group's error, so every partition gets it.
        fields["topics"] = [
            {"name": name, "partitions": [_no_offset(index, fields["error_code"]) for index in partitions]}
            for name, _, partitions in _wanted(topics, version, asked)
        ]
    return fields


def _wanted(topics: Topics, version: int, request: OffsetFetchRequestGroup) -> list[_Wanted]:
    if version < FIRST_WITH_TOPIC_ID:
        named = cast("tuple[OldTopics, ...]", request.topics or ())
        return [_Wanted(str(topic.name), None, topic.partition_indexes) for topic in named]
    by_id = topics.by_id
    wanted = []
    for topic in request.topics or ():
        known = None if topic.topic_id is None else by_id.get(topic.topic_id)
        wanted.append(_Wanted(None if known is None else known.name, topic.topic_id, topic.partition_indexes))
    return sorted(wanted, key=lambda topic: topic.name is None)


def _fetch_group(
    groups: GroupCoordinator, topics: Topics, context: RequestContext, request: OffsetFetchRequestGroup, is_stable: bool
) -> dict[str, Any]:
    group_id = str(request.group_id)
    version, access = context.api_version, context.access
    try:
        check(access, permissions.DESCRIBE_GROUP, group_id)
        groups.log.topic.check_at(context.connection.broker_id, group_id)
        groups.check_usable(group_id, may_be_empty=True)
        group = groups.group(group_id)
        if group is not None and version >= FIRST_WITH_MEMBER:
            _check_member(group, request)
        if request.topics is None:
            answered = [] if group is None else _all(topics, access, version, group, is_stable)
        else:
            wanted = _wanted(topics, version, request)
            visible = allowed_names(
                access, permissions.DESCRIBE_TOPIC, (topic.name for topic in wanted if topic.name is not None)
            )
            answered = [_topic(group, topic, is_stable) for topic in wanted if topic.name in visible]
            answered += [_topic(group, topic, is_stable) for topic in wanted if topic.name is None]
            hidden = (topic for topic in wanted if topic.name is not None and topic.name not in visible)
            # The answer is the same whether or not the topic exists.
            answered += [_topic(None, topic, is_stable, ErrorCode.TOPIC_AUTHORIZATION_FAILED) for topic in hidden]
    except REQUEST_ERRORS as error:
        return {"group_id": group_id, "error_code": error_of(error)[0], "topics": []}
    return {"group_id": group_id, "error_code": 0, "topics": answered}


def _check_member(group: Group, request: OffsetFetchRequestGroup) -> None:
    member_id = None if request.member_id is None else str(request.member_id)
    if group.consumer is not None:
        from diamant.broker.groups.consumer.offset_checks import validate_fetch

        validate_fetch(group.consumer, member_id, request.member_epoch)
    elif group.classic is not None:
        group.classic.validate_fetch(member_id or "", request.member_epoch)
    elif group.other is not None:
        group.other.validate_fetch(group.group_id, member_id, request.member_epoch)


def _all(topics: Topics, access: Access, version: int, group: Group, is_stable: bool) -> list[dict[str, object]]:
    answered = []
    committed = group.offsets.committed
    for name in strings_in_timeline_order(committed):
        if not access.allows(permissions.DESCRIBE_TOPIC, name):
            continue
        topic_id = None
        if version >= FIRST_WITH_TOPIC_ID:
            topic = topics.by_name.get(name)
            if topic is None:
                continue  # the response needs an id, and a missing topic has none
            topic_id = topic.topic_id
        answered.append(_topic(group, _Wanted(name, topic_id, in_timeline_order(committed[name], int)), is_stable))
    return answered


def _topic(
    group: Group | None, wanted: _Wanted, is_stable: bool, code: ErrorCode = ErrorCode.NONE
) -> dict[str, object]:
    name, topic_id, partitions = wanted
    if name is None:
        entries: Iterable[dict[str, object]] = (_no_offset(index, ErrorCode.UNKNOWN_TOPIC_ID) for index in partitions)
    elif group is None:
        entries = (_no_offset(index, code) for index in partitions)
    else:
        entries = (_partition(group, wanted, index, is_stable) for index in partitions)
    return {"name": name or "", "topic_id": topic_id, "partitions": list(entries)}


def _partition(group: Group, wanted: _Wanted, index: int, is_stable: bool) -> dict[str, object]:
    topic = wanted.name or ""
    if is_stable and group.offsets.pending and group.offsets.is_pending(topic, index):
        return _no_offset(index, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    stored = group.offsets.get(topic, index)
    if stored is None:
        return _no_offset(index)
    commit = parse_offset_commit_value(stored[0])
    if not is_of_topic(commit, wanted.topic_id):
        return _no_offset(index)
    return {
        "partition_index": index,
        "committed_offset": commit.offset,
        "committed_leader_epoch": commit.leader_epoch,
        "metadata": commit.metadata,
    }


def _no_offset(index: int, error_code: int = 0) -> dict[str, object]:
    return {
        "partition_index": index,
        "committed_offset": -1,
        "committed_leader_epoch": -1,
        "metadata": "",
        "error_code": int(error_code),
    }
