"""Classic members of consumer groups (KIP-848), whose requests are answered from the state of the consumer group.

JoinGroup is handled like a heartbeat of the consumer protocol that reports changes. It determines the member's assignment,
which SyncGroup only fetches. No request is parked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from diamant.broker.groups.classic import events
from diamant.broker.groups.classic.joining import FIRST_WITH_MEMBER_ID_REQUIRED
from diamant.broker.groups.consumer import conversion
from diamant.broker.groups.consumer.consumer_group import ConsumerGroup
from diamant.broker.groups.consumer.member import ConsumerGroupMember, MemberState
from diamant.broker.groups.decisions.change import GroupChange, MemberTimer, StartTimer
from diamant.broker.groups.decisions.member_heartbeat import settle
from diamant.broker.groups.decisions.members import check_room, find_member, known_static_member
from diamant.broker.groups.decisions.request import MemberRequest
from diamant.broker.groups.decisions.subscriptions import refresh_metadata, update_subscription, updated
from diamant.broker.groups.decisions.targets import reconcile
from diamant.broker.groups.decisions.topic_patterns import check_pattern
from diamant.broker.groups.membership.consumer_runner import ConsumerGroupRunner
from diamant.broker.groups.store.group import Group
from diamant.protocol.errors import ErrorCode, KafkaError, ProtocolError
from diamant.protocol.internal_topics.consumer_protocol import PROTOCOL_TYPE, parse_subscription, protocol_version
from diamant.storage.uuid_text import random_id, uuid_to_text

if TYPE_CHECKING:
    from diamant.broker.node.node import Node


class ClassicMembers:
    """All classic members of consumer groups. Belongs to the loop thread."""

    def __init__(self, node: Node, runner: ConsumerGroupRunner) -> None:
        self._node = node
        self._runner = runner

    def join(self, group: Group, request: events.JoinRequest) -> events.JoinAnswer:
        """Handle JoinGroup of a classic member in a non-empty consumer group.

        KafkaError: INCONSISTENT_GROUP_PROTOCOL, GROUP_MAX_SIZE_REACHED, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID.
        Source: GroupMetadataManager.classicGroupJoinToConsumerGroup.
        """
        consumer = _consumer_of(group)
        config = self._node.config
        if config.group_consumer_migration_policy == conversion.DISABLED:
            raise KafkaError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"Cannot join the consumer group {group.group_id} with the classic protocol because the group migration is "
                "disabled.",
            )
        is_unknown = request.member_id == events.UNKNOWN_MEMBER_ID
        member_id = uuid_to_text(random_id()) if is_unknown else request.member_id
        change = self._runner.change(consumer)
        check_room(change, member_id)
        names = [protocol.name for protocol in request.protocols]
        if not consumer.supports_classic_protocols(request.protocol_type, names):
            raise KafkaError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"Member {member_id}'s protocols are not supported."
            )
        is_dynamic = request.group_instance_id is None
        if is_unknown and is_dynamic and request.version >= FIRST_WITH_MEMBER_ID_REQUIRED:
            return events.JoinAnswer(ErrorCode.MEMBER_ID_REQUIRED, member_id)
        replaced = consumer.static_member(request.group_instance_id)
        member_request = self._classic_request(member_id, request)
        # A dynamic member may rejoin with the id that it was assigned, which the group does not know yet.
        before = find_member(change, member_request, is_joining=is_dynamic or is_unknown)
        after = updated(before, member_request).changed(subscribed_topic_regex="")
        bumps, has_changed = update_subscription(change, before, after, check_pattern)
        bumps = bumps or has_changed
        is_downgrade = (
            replaced is not None
            and not replaced.uses_classic_protocol
            and conversion.may_downgrade(
                consumer, [replaced], config.group_consumer_migration_policy, config.group_max_size, joining=1
            )
        )
        if is_downgrade:
            after = self._join_and_downgrade(change, before, after, bumps, member_request)
        else:
            after = settle(change, before, after, bumps, bumps, member_request.owned)
            self._runner.commit(change)
            self._runner.timers.cancel((group.group_id, MemberTimer.JOIN, member_id))
            self._runner.set_timer(
                group.group_id, StartTimer(MemberTimer.SESSION, member_id, request.session_timeout_ms)
            )
            self._runner.set_timer(
                group.group_id, StartTimer(MemberTimer.SYNC, member_id, request.rebalance_timeout_ms)
            )
        return events.JoinAnswer(
            ErrorCode.NONE,
            after.member_id,
            after.member_epoch,
            PROTOCOL_TYPE,
            request.protocols[0].name,
        )

    def _classic_request(self, member_id: str, request: events.JoinRequest) -> MemberRequest:
        try:
            subscription = parse_subscription(request.protocols[0].metadata)
        except ProtocolError as error:
            # as in Kafka, because no other code fits
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"Malformed embedded consumer protocol: {error}") from None
        topics = self._runner.image.topics
        return MemberRequest(
            member_id=member_id,
            member_epoch=-1,
            instance_id=request.group_instance_id,
            rack_id=subscription.rack_id or None,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            subscribed_topic_names=subscription.topics,
            subscribed_topic_regex="",
            server_assignor=None,
            owned={
                topics[topic].topic_id: partitions
                for topic, partitions in subscription.owned_partitions.items()
                if topic in topics
            },
            client_id=request.client_id,
            client_host=request.client_host,
            classic=conversion.classic_metadata(request.session_timeout_ms, request.protocols),
        )

    def _join_and_downgrade(
        self,
        change: GroupChange,
        before: ConsumerGroupMember,
        after: ConsumerGroupMember,
        bumps: bool,
        request: MemberRequest,
    ) -> ConsumerGroupMember:
        """Replace the last member that uses the consumer protocol with a classic member, and downgrade the group."""
        group = change.group
        refresh_metadata(change, before, after, bumps)
        is_rebalance_due = group.assignment_epoch < change.group_epoch
        if not is_rebalance_due:
            after = reconcile(change, after, group.assignment_epoch, group.target_of(after), bumps, request.owned)
        self._runner.downgrade(group, (), after, must_rebalance=is_rebalance_due)
        return after

    def sync(self, group: Group, request: events.SyncRequest) -> events.SyncAnswer:
        """Handle SyncGroup; return the answer with the member's assignment.

        KafkaError: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, INCONSISTENT_GROUP_PROTOCOL, REBALANCE_IN_PROGRESS.
        """
        consumer = _consumer_of(group)
        member = self._member(consumer, request.member_id, request.group_instance_id)
        classic = member.classic
        assert classic is not None
        _check_generation(member, request.generation_id)
        protocol = classic.supported_protocols[0]
        if request.protocol_type not in (None, PROTOCOL_TYPE) or request.protocol_name not in (None, protocol.name):
            raise KafkaError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"member {member.member_id} joined with {PROTOCOL_TYPE}/{protocol.name}, not "
                f"{request.protocol_type}/{request.protocol_name}",
            )
        is_behind = consumer.assignment_epoch > member.member_epoch
        if is_behind and member.state is not MemberState.UNREVOKED_PARTITIONS:
            self._expect_join(group.group_id, member)
            raise KafkaError(
                ErrorCode.REBALANCE_IN_PROGRESS,
                f"A new rebalance is triggered in group {group.group_id} and member {member.member_id} should rejoin to "
                "catch up.",
            )
        self._runner.timers.cancel((group.group_id, MemberTimer.SYNC, member.member_id))
        self._runner.start_session(group.group_id, member)
        assigned = {topic_id: tuple(sorted(epochs)) for topic_id, epochs in member.assigned.items()}
        version = protocol_version(protocol.metadata)
        data = conversion.encoded_assignment(assigned, self._runner.image, version)
        return events.SyncAnswer(ErrorCode.NONE, request.protocol_type, request.protocol_name, data)

    def heartbeat(self, group: Group, member_id: str, instance_id: str | None, generation_id: int) -> ErrorCode:
        """Handle Heartbeat; return NONE, or REBALANCE_IN_PROGRESS if the member has to rejoin.

        KafkaError: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION.
        """
        consumer = _consumer_of(group)
        member = self._member(consumer, member_id, instance_id)
        _check_generation(member, generation_id)
        self._runner.start_session(group.group_id, member)
        if (
            member.member_epoch < consumer.assignment_epoch
            or member.state is MemberState.UNREVOKED_PARTITIONS
            or (member.state is MemberState.UNRELEASED_PARTITIONS and not consumer.is_waiting_for_partitions(member))
        ):
            self._expect_join(group.group_id, member)
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def leave(self, group: Group, leavers: Sequence[events.Leaver]) -> list[events.LeaveResult]:
        """Handle LeaveGroup, from a member or an administrator: remove members of either protocol. Return a result for each."""
        consumer = _consumer_of(group)
        results: list[events.LeaveResult] = []
        gone: dict[str, ConsumerGroupMember] = {}
        for leaver in leavers:
            error = ErrorCode.NONE
            try:
                if leaver.group_instance_id is None:
                    member = consumer.member(leaver.member_id)
                else:
                    known = consumer.static_member(leaver.group_instance_id)
                    named = (
                        known.member_id if known and leaver.member_id == events.UNKNOWN_MEMBER_ID else leaver.member_id
                    )
                    member = known_static_member(consumer, leaver.group_instance_id, named)
                gone[member.member_id] = member
            except KafkaError as refused:
                error = refused.code
            results.append(events.LeaveResult(leaver.member_id, leaver.group_instance_id, error))
        if gone:
            self._runner.fence(consumer, list(gone.values()))
        return results

    @staticmethod
    def _member(group: ConsumerGroup, member_id: str, instance_id: str | None) -> ConsumerGroupMember:
        if instance_id is None:
            member = group.member(member_id)
        else:
            member = known_static_member(group, instance_id, member_id)
        if not member.uses_classic_protocol:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} does not use the classic protocol.")
        return member

    def _expect_join(self, group_id: str, member: ConsumerGroupMember) -> None:
        """Start a member's rebalance timeout when it is first told to rejoin."""
        if (group_id, MemberTimer.JOIN, member.member_id) not in self._runner.timers:
            self._runner.set_timer(
                group_id, StartTimer(MemberTimer.JOIN, member.member_id, member.rebalance_timeout_ms)
            )


def _consumer_of(group: Group) -> ConsumerGroup:
    if group.consumer is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Group {group.group_id} is not a consumer group.")
    return group.consumer


def _check_generation(member: ConsumerGroupMember, generation_id: int) -> None:
    if generation_id != member.member_epoch:
        raise KafkaError(
            ErrorCode.ILLEGAL_GENERATION,
            f"The request generation id {generation_id} is not equal to the member epoch {member.member_epoch} of member "
            f"{member.member_id}.",
        )
