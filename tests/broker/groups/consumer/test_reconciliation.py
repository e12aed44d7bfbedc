"""Steps of one member, and which assignor its group takes: what real Kafka does where it can be told apart by little."""

from __future__ import annotations

from uuid import UUID

import pytest

from diamant.broker.coordinators.java_order import copied_map_capacity, strings_in_timeline_order
from diamant.broker.groups.consumer.group import ConsumerGroup
from diamant.broker.groups.consumer.member import ConsumerGroupMember, MemberState
from diamant.broker.groups.consumer.partition_holders import NOT_ASSIGNED
from diamant.broker.groups.decisions.reconciliation import Owned, next_step

TOPIC = UUID(int=1)


def step(member: ConsumerGroupMember, *, subscribed: set[UUID], owned: Owned | None = None) -> ConsumerGroupMember:
    """The step of a member whose subscription has just become `subscribed`, with a target of its own epoch."""
    return next_step(
        member,
        member.member_epoch,
        {},
        subscribed_topic_ids=subscribed,
        has_subscription_changed=True,
        owned=owned,
        current_epoch_of=lambda topic_id, partition: NOT_ASSIGNED,
    )


def test_subscribing_to_nothing_is_a_step() -> None:
    """The epoch before is none that the member may still come with; with another subscription it is."""
    member = ConsumerGroupMember(member_id="m", member_epoch=2, previous_member_epoch=1)
    assert step(member, subscribed={TOPIC}) == member
    after = step(member, subscribed=set())
    assert after == member.changed(previous_member_epoch=2)
    assert step(after, subscribed=set()) == after


def test_what_is_subscribed_no_more_is_given_up() -> None:
    """At once if the member says that it does not own it, otherwise when it says so."""
    member = ConsumerGroupMember(member_id="m", member_epoch=2, previous_member_epoch=1, assigned={TOPIC: {0: 2}})
    waiting = step(member, subscribed=set())
    assert (waiting.state, waiting.assigned, waiting.pending_revocation) == (
        MemberState.UNREVOKED_PARTITIONS,
        {},
        {TOPIC: {0: 2}},
    )
    done = step(member, subscribed=set(), owned={})
    assert (done.state, done.assigned, done.pending_revocation) == (MemberState.STABLE, {}, {})


def group_of(*assignors: str | None) -> tuple[ConsumerGroup, list[ConsumerGroupMember]]:
    group = ConsumerGroup("g")
    members = [
        ConsumerGroupMember(member_id=f"m{number}", server_assignor=name) for number, name in enumerate(assignors)
    ]
    group.members.update({member.member_id: member for member in members})
    return group, members


@pytest.mark.parametrize(("first", "second"), [("uniform", "range"), ("range", "uniform")])
def test_as_many_members_for_each_assignor(first: str, second: str) -> None:
    """The assignor of whoever sends the heartbeat, when it is the only one who asks for it; to others it is uniform."""
    group, (one,) = group_of(first)
    newcomer = ConsumerGroupMember(member_id="new", server_assignor=second)
    assert group.preferred_assignor(newcomer, newcomer) == second
    group, (one, two, three) = group_of(first, second, None)
    assert group.preferred_assignor(one, one) == first
    assert group.preferred_assignor(two, two) == second
    assert group.preferred_assignor(three, three) == "uniform"
    assert group.preferred_assignor(None, None) == "uniform"


def test_most_members_win() -> None:
    """Whoever asks; nobody's wish is None."""
    group, (one, _, three) = group_of("range", "range", "uniform")
    assert group.preferred_assignor(three, three) == "range"
    assert group.preferred_assignor(one, one.changed(server_assignor="uniform")) == "uniform"
    group, (one,) = group_of("range")
    assert group.preferred_assignor(one, one.changed(server_assignor=None)) is None


def test_order_of_kafkas_own_maps() -> None:
    """Slots by the highest bits of a multiplied hash code; copies of hash maps are as small as they can be."""
    assert strings_in_timeline_order(["range", "uniform"]) == ["uniform", "range"]
    assert [copied_map_capacity(count) for count in (0, 1, 2, 3, 6)] == [16, 2, 4, 8, 16]
