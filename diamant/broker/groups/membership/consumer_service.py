"""Handles the requests of members of consumer groups (KIP-848). Every request is answered immediately.

Source: GroupCoordinatorService, GroupMetadataManager of Kafka 4.3.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from diamant.broker.config.group_table import HEARTBEAT_INTERVAL_MS
from diamant.broker.groups.consumer import conversion
from diamant.broker.groups.consumer.consumer_group import ConsumerGroup
from diamant.broker.groups.consumer.consumer_group_records import GroupRecord, creation
from diamant.broker.groups.consumer.member import JOIN_EPOCH, STATIC_LEAVE_EPOCH, EpochedPartitions
from diamant.broker.groups.decisions.leaving import leave_for_a_while, leaving_member
from diamant.broker.groups.decisions.member_heartbeat import heartbeat
from diamant.broker.groups.decisions.members import check_room
from diamant.broker.groups.decisions.request import MemberRequest, check_request, is_full_request
from diamant.broker.groups.decisions.topic_patterns import check_pattern
from diamant.broker.groups.membership.classic_members import ClassicMembers
from diamant.broker.groups.membership.consumer_runner import ConsumerGroupRunner
from diamant.broker.groups.membership.description import described
from diamant.broker.groups.store.group_store import GroupStore
from diamant.broker.groups.store.log import GroupLog
from diamant.broker.security.authorization.access import OPEN, Access
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.protocol.internal_topics.consumer_protocol import PROTOCOL_TYPE
from diamant.protocol.internal_topics.group_records import GroupMetadataKey
from diamant.storage.kraft.features import GROUP_VERSION
from diamant.storage.uuid_text import random_id, uuid_to_text

if TYPE_CHECKING:
    from diamant.broker.groups.classic.classic_group import ClassicGroup
    from diamant.broker.node.node import Node

logger = logging.getLogger(__name__)

FIRST_WITH_CLIENT_MEMBER_ID = 1
"""The first version of ConsumerGroupHeartbeat in which the client chooses the member id (KIP-1082)."""


class ConsumerGroups:
    """All consumer groups of the broker. Belongs to the loop thread, which must create it."""

    def __init__(self, node: Node, store: GroupStore, log: GroupLog, rebalance: Callable[[ClassicGroup], None]) -> None:
        """`rebalance` makes the members of a downgraded group rejoin."""
        self._node = node
        self._store = store
        self.runner = ConsumerGroupRunner(node, store, log, rebalance)
        self.classic_members = ClassicMembers(node, self.runner)

    def heartbeat(self, group_id: str, request: MemberRequest, version: int, access: Access = OPEN) -> dict[str, Any]:
        """Let a member join, stay or leave; return the fields of the answer. `access` limits which topics expressions match.

        KafkaError: UNSUPPORTED_VERSION, INVALID_REQUEST, UNSUPPORTED_ASSIGNOR, GROUP_ID_NOT_FOUND, and the errors of
        `decisions.member_heartbeat`.
        """
        self._check_enabled()
        check_request(
            group_id,
            request,
            is_member_id_required=version >= FIRST_WITH_CLIENT_MEMBER_ID,
            assignors=self._node.config.group_consumer_assignors,
        )
        self._store.check_usable(group_id)
        if request.member_epoch < JOIN_EPOCH:
            return self._leave(group_id, request)
        group, prefix = self._group_for(group_id, is_joining=request.member_epoch == JOIN_EPOCH)
        change = self.runner.change(group)
        if not request.member_id:
            check_room(change, "")
            request = request._replace(member_id=uuid_to_text(random_id()))
        before = group.members.get(request.member_id)
        member = heartbeat(change, request, check_pattern)
        self.runner.commit(change, prefix)
        self.runner.start_session(group_id, member)
        self.runner.background.resolve_if_due(group, access)
        answer: dict[str, Any] = {
            "member_id": member.member_id,
            "member_epoch": member.member_epoch,
            "heartbeat_interval_ms": self.runner.config_of(group_id, HEARTBEAT_INTERVAL_MS),
        }
        has_changed = before is None or before.assigned != member.assigned
        if request.member_epoch == JOIN_EPOCH or has_changed or is_full_request(request):
            answer["assignment"] = {"topic_partitions": _topic_partitions(member.assigned)}
        return answer

    @property
    def is_enabled(self) -> bool:
        """Whether both the configuration and `group.version` enable it. Source: KafkaApis.isConsumerGroupProtocolEnabled."""
        node = self._node
        is_configured = PROTOCOL_TYPE in node.config.group_coordinator_rebalance_protocols
        return is_configured and node.metadata.image.features.get(GROUP_VERSION, 0) > 0

    def _check_enabled(self) -> None:
        """Raise KafkaError UNSUPPORTED_VERSION, without a message, unless the protocol is enabled."""
        if not self.is_enabled:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)

    def _leave(self, group_id: str, request: MemberRequest) -> dict[str, Any]:
        group = self._consumer_group(group_id)
        member = leaving_member(group, request)
        if request.member_epoch == STATIC_LEAVE_EPOCH:
            change = self.runner.change(group)
            leave_for_a_while(change, member)
            self.runner.commit(change)
            return {"member_id": member.member_id, "member_epoch": STATIC_LEAVE_EPOCH}
        logger.info("group %s: member %s has left", group_id, member.member_id)
        self.runner.fence(group, [member])
        return {"member_id": request.member_id, "member_epoch": request.member_epoch}

    def _consumer_group(self, group_id: str) -> ConsumerGroup:
        group = self._store.group(group_id)
        if group is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
        if group.consumer is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
        return group.consumer

    def _group_for(self, group_id: str, *, is_joining: bool) -> tuple[ConsumerGroup, list[GroupRecord]]:
        """Return the group, created or converted if a member joins, and the records to write before those of the decision.

        A created or converted group is not registered until the decision is committed.
        """
        group = self._store.group(group_id)
        if group is not None and group.consumer is not None:
            return group.consumer, []
        if not is_joining:
            if group is None:
                raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {group_id} not found.")
            return self._consumer_group(group_id), []
        if group is not None and (group.share is not None or group.other is not None):
            return self._consumer_group(group_id), []
        if group is None or group.classic is None:
            return ConsumerGroup(group_id), []
        config = self._node.config
        tombstone: GroupRecord = (GroupMetadataKey(group_id), None)
        if group.classic.is_empty:
            return ConsumerGroup(group_id), [tombstone]
        conversion.check_upgrade(group.classic, config.group_consumer_migration_policy, config.group_consumer_max_size)
        converted = conversion.upgraded(group.classic, self.runner.image)
        return converted, [tombstone, *creation(converted)]

    def describe(self, group_id: str) -> dict[str, Any]:
        """Return the fields of ConsumerGroupDescribe. Raises KafkaError GROUP_ID_NOT_FOUND unless it is a consumer group."""
        self._check_enabled()
        self._store.check_usable(group_id)
        return described(self._consumer_group(group_id), self.runner.image, self.runner.default_assignor)


def _topic_partitions(owned: EpochedPartitions) -> list[dict[str, object]]:
    return [{"topic_id": topic_id, "partitions": sorted(epochs)} for topic_id, epochs in owned.items()]
