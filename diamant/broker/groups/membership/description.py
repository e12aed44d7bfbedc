"""The fields of a consumer group in ConsumerGroupDescribe."""

from __future__ import annotations

from typing import Any

from diamant.broker.coordinators.java_order import strings_in_timeline_order
from diamant.broker.groups.consumer.group import ConsumerGroup
from diamant.broker.groups.consumer.member import ConsumerGroupMember
from diamant.storage.kraft.image import MetadataImage


def described(group: ConsumerGroup, image: MetadataImage, default_assignor: str) -> dict[str, Any]:
    """Return the fields of a group. `default_assignor`: for groups whose members request none."""
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


def _describe_member(image: MetadataImage, group: ConsumerGroup, member: ConsumerGroupMember) -> dict[str, Any]:
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
        "assignment": _named_partitions(image, current),
        "target_assignment": _named_partitions(image, group.target.get(member.member_id, {})),
        "member_type": 0 if member.uses_classic_protocol else 1,
    }


def _named_partitions(image: MetadataImage, assignment: Any) -> dict[str, Any]:
    topics = image.topics_by_id
    return {
        "topic_partitions": [
            {"topic_id": topic_id, "topic_name": topics[topic_id].name, "partitions": sorted(partitions)}
            for topic_id, partitions in assignment.items()
            if topic_id in topics
        ]
    }
