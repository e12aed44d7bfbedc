"""The fields of a consumer group in ConsumerGroupDescribe, and the owners of the partitions of consumer and classic groups."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from diamant.broker.coordinators.java_order import strings_in_timeline_order
from diamant.broker.groups.consumer.consumer_group import ConsumerGroup
from diamant.broker.groups.consumer.member import ConsumerGroupMember
from diamant.broker.groups.store.group import Group
from diamant.protocol.errors import ProtocolError
from diamant.protocol.internal_topics.consumer_protocol import PROTOCOL_TYPE, parse_assignment
from diamant.storage.checkpoints.checkpoints import TopicPartition
from diamant.storage.kraft.image import MetadataImage


def described(group: ConsumerGroup, image: MetadataImage, default_assignor: str) -> dict[str, object]:
    """Return the fields of a group. `default_assignor` is named if no member requests an assignor."""
    return {
        "group_id": group.group_id,
        "group_state": group.state.value,
        "group_epoch": group.group_epoch,
        "assignment_epoch": group.assignment_epoch,
        "assignor_name": group.preferred_assignor(None, None) or default_assignor,
        "members": [
            _describe_member(image, group, group.members[member_id])
            for member_id in strings_in_timeline_order(group.members)
        ],
    }


def owners(group: Group, image: MetadataImage) -> dict[TopicPartition, str]:
    """Return the id of each partition's owner, as in `kafka-consumer-groups`. Empty if the members are not consumers."""
    owner_of: dict[TopicPartition, str] = {}
    if group.consumer is not None:
        for member_id, member in group.consumer.members.items():
            for owned in (member.assigned, member.pending_revocation):
                for topic_id, partitions in owned.items():
                    if (topic := image.topics_by_id.get(topic_id)) is not None:
                        owner_of.update(((topic.name, index), member_id) for index in partitions)
    elif group.classic is not None and group.classic.protocol_type == PROTOCOL_TYPE:
        for classic in group.classic.members.values():
            with suppress(ProtocolError):  # clients may send anything, and a new member has no assignment
                for name, indexes in parse_assignment(classic.assignment).partitions.items():
                    owner_of.update(((name, index), classic.member_id) for index in indexes)
    return owner_of


def _describe_member(image: MetadataImage, group: ConsumerGroup, member: ConsumerGroupMember) -> dict[str, object]:
    # Partitions pending revocation still belong to the member.
    current: dict[Any, set[int]] = {}
    for owned in (member.assigned, member.pending_revocation):
        for topic_id, epochs in owned.items():
            current.setdefault(topic_id, set()).update(epochs)
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "rack_id": member.rack_id,
        "member_epoch": member.member_epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": sorted(member.subscribed_topic_names),
        "subscribed_topic_regex": member.subscribed_topic_regex,
        "assignment": named_partitions(image, current),
        "target_assignment": named_partitions(image, group.target.get(member.member_id, {})),
        "member_type": 0 if member.uses_classic_protocol else 1,
    }


def named_partitions(image: MetadataImage, assignment: Any) -> dict[str, object]:
    """Return the fields of an assignment, which is given as partitions by topic id. Deleted topics are left out."""
    topics = image.topics_by_id
    return {
        "topic_partitions": [
            {"topic_id": topic_id, "topic_name": topics[topic_id].name, "partitions": sorted(partitions)}
            for topic_id, partitions in assignment.items()
            if topic_id in topics
        ]
    }
