"""Changes of members' subscriptions and of the subscribed topics. Both increase the group epoch."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from diamant.broker.groups.consumer.consumer_group import ConsumerGroup, ResolvedRegularExpression
from diamant.broker.groups.consumer.member import ConsumerGroupMember
from diamant.broker.groups.consumer.metadata_hash import metadata_hash
from diamant.broker.groups.decisions.change import GroupChange
from diamant.broker.groups.decisions.request import MemberRequest
from diamant.protocol.internal_topics.group_records import (
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
)


class _RegexStatus(Enum):
    SAME = 0
    CHANGED = 1
    CHANGED_AND_RESOLVED = 2


def updated(before: ConsumerGroupMember, request: MemberRequest) -> ConsumerGroupMember:
    """Return the member updated by the request; `before` itself if nothing changes, as in nearly all heartbeats."""
    names, regex = request.subscribed_topic_names, request.subscribed_topic_regex
    if (
        names is None
        and regex is None
        and request.rebalance_timeout_ms == -1
        and request.server_assignor is None
        and request.rack_id is None
        and request.instance_id in (None, before.instance_id)
        and request.classic is before.classic
        and request.client_id == before.client_id
        and request.client_host == before.client_host
    ):
        return before
    return before.changed(
        instance_id=before.instance_id if request.instance_id is None else request.instance_id,
        rack_id=before.rack_id if request.rack_id is None else request.rack_id,
        rebalance_timeout_ms=(
            before.rebalance_timeout_ms if request.rebalance_timeout_ms == -1 else request.rebalance_timeout_ms
        ),
        subscribed_topic_names=before.subscribed_topic_names if names is None else frozenset(names),
        subscribed_topic_regex=before.subscribed_topic_regex if regex is None else regex,
        server_assignor=before.server_assignor if request.server_assignor is None else request.server_assignor,
        client_id=request.client_id,
        client_host=request.client_host,
        classic=request.classic,
    )


def update_subscription(
    change: GroupChange, before: ConsumerGroupMember, after: ConsumerGroupMember, check_pattern: Callable[[str], None]
) -> tuple[bool, bool]:
    """Write the member if it has changed. Return (must the group epoch increase, has the subscription changed)."""
    have_names_changed = False
    if after != before:
        change.write_member(after)
        have_names_changed = after.subscribed_topic_names != before.subscribed_topic_names
    status = _update_regex(change, before, after, check_pattern)
    bumps = have_names_changed or status is _RegexStatus.CHANGED_AND_RESOLVED
    return bumps, have_names_changed or status is not _RegexStatus.SAME


def _update_regex(
    change: GroupChange, before: ConsumerGroupMember, after: ConsumerGroupMember, check_pattern: Callable[[str], None]
) -> _RegexStatus:
    group, old, new = change.group, before.subscribed_topic_regex, after.subscribed_topic_regex
    status = _RegexStatus.SAME
    if (old or "") != (new or ""):
        status = _RegexStatus.CHANGED
        if old and group.subscriptions.regexes[old] == 1:
            change.records.append((ConsumerGroupRegularExpressionKey(group.group_id, old), None))
        if new:
            if not group.subscriptions.regexes[new]:
                check_pattern(new)
            elif new in group.resolved:
                status = _RegexStatus.CHANGED_AND_RESOLVED
        elif old:
            status = _RegexStatus.CHANGED_AND_RESOLVED
    return status


def refresh_metadata(change: GroupChange, before: ConsumerGroupMember, after: ConsumerGroupMember, bumps: bool) -> bool:
    """Increase the group epoch if subscriptions or topics have changed; return whether all subscriptions are the same."""
    group = change.group
    if not bumps and not change.moment.has_metadata_changed:
        return group.subscriptions.are_homogeneous(len(group.members), len(group.resolved))
    known = replaced(group, before)
    counts = group.subscriptions.replaced(known, after)
    _check_metadata(change, change.hash_of(counts), is_forced=bumps)
    return counts.are_homogeneous(len(group.members) + (known is None), len(group.resolved))


def replaced(group: ConsumerGroup, before: ConsumerGroupMember) -> ConsumerGroupMember | None:
    """Return the member that the group's counts contain for `before`: itself, its static predecessor, or None if it is new."""
    known = group.members.get(before.member_id)
    return known if known is not None else group.static_member(before.instance_id)


def _check_metadata(change: GroupChange, new_hash: int, *, is_forced: bool) -> None:
    group = change.group
    change.has_checked_metadata = True
    if is_forced or new_hash != group.metadata_hash:
        change.raise_epoch(new_hash)
    if group.has_partition_metadata:
        change.records.append((ConsumerGroupPartitionMetadataKey(group.group_id), None))


def take_resolved(change: GroupChange, found: dict[str, ResolvedRegularExpression]) -> None:
    """Write the topics that expressions now match, and increase the group epoch if these have changed."""
    group = change.group
    current = {regex: new for regex, new in found.items() if group.subscriptions.regexes[regex]}
    for regex, new in current.items():
        change.records.append(
            (
                ConsumerGroupRegularExpressionKey(group.group_id, regex),
                ConsumerGroupRegularExpressionValue(tuple(sorted(new.topics)), new.version, new.timestamp_ms),
            )
        )
    topics = set(group.subscriptions.names)
    for resolved in (group.resolved | current).values():
        topics |= resolved.topics
    empty = ResolvedRegularExpression(frozenset(), 0, 0)
    has_changed = any(group.resolved.get(regex, empty).topics != new.topics for regex, new in current.items())
    _check_metadata(change, metadata_hash(topics, change.image), is_forced=has_changed)
