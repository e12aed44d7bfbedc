"""Consumer groups under any sequence of events: no partition is shared, epochs only grow, all members converge."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from diamant.broker.groups.consumer.consumer_group import ConsumerGroupState
from diamant.broker.groups.decisions import target_assignment
from diamant.broker.groups.decisions.leaving import leave_for_a_while
from diamant.protocol.errors import ErrorCode, KafkaError
from tests.broker.groups.consumer.consumer_cases import MemoryGroup, Topics, replayed, request, state_of
from tests.effort import examples

NAMES = ["a", "b", "c", "missing"]
REJOIN = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNRELEASED_INSTANCE_ID)
Place = tuple[UUID, int]


class Client:
    """A member as a client implements it: it uses its partitions until it has revoked them, and then reports that."""

    def __init__(self, member_id: str, names: list[str], instance_id: str | None) -> None:
        self.member_id = member_id
        self.names = names
        self.instance_id = instance_id
        self.epoch = 0
        self.owned: set[Place] = set()
        self.told: set[Place] = set()
        self.has_news = True

    def owned_by_topic(self) -> dict[UUID, list[int]]:
        owned: dict[UUID, list[int]] = {}
        for topic_id, partition in sorted(self.owned):
            owned.setdefault(topic_id, []).append(partition)
        return owned

    def abandon(self) -> None:
        self.epoch = 0
        self.owned, self.told = set(), set()


class ConsumerGroupMachine(RuleBasedStateMachine):
    """Clients join, continue, lose answers, leave, fall silent, resubscribe; topics are created, grown and deleted."""

    clients: Bundle[Client] = Bundle("clients")

    def __init__(self) -> None:
        super().__init__()
        self.topics = Topics(a=4, b=3)
        self.memory = MemoryGroup(self.topics)
        self.alive: list[Client] = []
        self.last_group_epoch = 0
        self.next_id = 0
        self.assigned: dict[str, set[Place]] = {}

    @rule(target=clients, names=st.lists(st.sampled_from(NAMES), unique=True), is_static=st.booleans())
    def join(self, names: list[str], is_static: bool) -> Client:
        self.next_id += 1
        client = Client(f"member-{self.next_id}", names, f"instance-{self.next_id}" if is_static else None)
        self.alive.append(client)
        self._heartbeat(client)
        return client

    @rule(client=clients, is_answer_lost=st.booleans(), may_assign=st.booleans())
    def heartbeat(self, client: Client, is_answer_lost: bool, may_assign: bool) -> None:
        self._heartbeat(client, is_answer_lost=is_answer_lost, may_assign=may_assign)

    @rule(client=clients)
    def revoke(self, client: Client) -> None:
        """The application releases the revoked partitions."""
        client.owned &= client.told

    @rule(client=clients, names=st.lists(st.sampled_from(NAMES), unique=True))
    def subscribe(self, client: Client, names: list[str]) -> None:
        client.names, client.has_news = names, True

    @rule(client=consumes(clients))
    def leave(self, client: Client) -> None:
        if client in self.alive:
            self.alive.remove(client)
            if client.member_id in self.memory.group.members:
                self.memory.fence(client.member_id)

    @rule(client=clients)
    def expire(self, client: Client) -> None:
        """The client's session expires; the client has noticed and uses nothing any more."""
        if client.member_id in self.memory.group.members:
            self.memory.fence(client.member_id)
        client.owned = set()

    @rule(target=clients, client=consumes(clients))
    def restart_static(self, client: Client) -> Client:
        """Return a static member leaves temporarily and rejoins under another id."""
        if client.instance_id is None or client.member_id not in self.memory.group.members:
            return client
        change = self.memory.change()
        leave_for_a_while(change, self.memory.group.members[client.member_id])
        self.memory.commit(change)
        self.next_id += 1
        client.abandon()
        client.member_id = f"member-{self.next_id}"
        client.has_news = True
        self._heartbeat(client)
        return client

    @rule(name=st.sampled_from(["b", "c"]), count=st.integers(1, 6))
    def create_or_grow(self, name: str, count: int) -> None:
        if name in self.topics.image.topics:
            self.topics.grow(name, count)
        else:
            self.topics.create(name, count)

    @rule(name=st.sampled_from(["b", "c"]))
    def delete_topic(self, name: str) -> None:
        if name in self.topics.image.topics:
            self.topics.delete(name)

    def _heartbeat(self, client: Client, *, is_answer_lost: bool = False, may_assign: bool = True) -> None:
        if client not in self.alive:
            return
        sent = request(
            client.member_id,
            client.epoch,
            names=client.names if client.has_news or client.epoch == 0 else None,
            owned=client.owned_by_topic(),
            instance_id=client.instance_id,
        )
        try:
            member = self.memory.heartbeat(sent, may_assign=may_assign)
        except KafkaError as error:
            if error.code not in REJOIN:
                raise
            client.abandon()
            if error.code is ErrorCode.UNRELEASED_INSTANCE_ID:
                # The answer to its join was lost: it has to wait until the session that it does not know of is over.
                self.memory.fence(client.member_id)
            return
        if is_answer_lost:
            return
        client.has_news = False
        client.epoch = member.member_epoch
        client.told = {(topic_id, partition) for topic_id, some in member.assigned.items() for partition in some}
        # What is new is used at once; what is gone is used until `revoke`.
        client.owned |= client.told

    @invariant()
    def nobody_shares_a_partition(self) -> None:
        """Neither in the group's state nor among the clients."""
        for holders in (
            [
                [
                    (topic_id, partition)
                    for owned in (member.assigned, member.pending_revocation)
                    for topic_id, some in owned.items()
                    for partition in some
                ]
                for member in self.memory.group.members.values()
            ],
            [client.owned for client in self.alive],
        ):
            places = [place for some in holders for place in some]
            assert len(places) == len(set(places))

    @invariant()
    def epochs_only_grow(self) -> None:
        """The group epoch grows; assignment and member epochs never exceed it."""
        group = self.memory.group
        assert group.group_epoch >= self.last_group_epoch
        self.last_group_epoch = group.group_epoch
        assert group.assignment_epoch <= group.group_epoch
        assert all(member.member_epoch <= group.assignment_epoch for member in group.members.values())

    def teardown(self) -> None:
        """Without further events all converge: each partition of a read topic is with one subscriber."""
        for _ in range(6):
            for client in self.alive:
                self._heartbeat(client)
                client.owned &= client.told
        group, topics = self.memory.group, self.topics.image.topics
        assert group.state in (ConsumerGroupState.STABLE, ConsumerGroupState.EMPTY)
        read = {name for client in self.alive for name in client.names if name in topics}
        everything = {(topics[name].topic_id, partition) for name in read for partition in topics[name].partitions}
        assert {place for client in self.alive for place in client.owned} == everything
        for client in self.alive:
            assert {topic_id for topic_id, _ in client.owned} <= {
                topics[name].topic_id for name in client.names if name in topics
            }
            target = group.target.get(client.member_id, {})
            assert client.owned == {(topic_id, number) for topic_id, some in target.items() for number in some}
        for is_compacted in (False, True):
            assert state_of(replayed(self.memory.records, is_compacted=is_compacted)) == state_of(group)


class LargeGroupMachine(ConsumerGroupMachine):
    """The same, with target assignments computed in a thread and applied one member at a time, between other events."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(target_assignment, "LIGHT_WEIGHT", -1)
        self.patch.setattr(target_assignment, "PARTITIONS_PER_PART", 1)

    @rule()
    def assign_some(self) -> None:
        self.memory.assign_some()

    @rule()
    def assign_all(self) -> None:
        while self.memory.task is not None:
            self.memory.assign_some()

    def teardown(self) -> None:
        """With inline computation all converge."""
        self.assign_all()
        self.patch.undo()
        super().teardown()


TestConsumerGroup = ConsumerGroupMachine.TestCase
TestLargeConsumerGroup = LargeGroupMachine.TestCase
TestLargeConsumerGroup.settings = settings(max_examples=examples(40), stateful_step_count=30, deadline=None)
TestConsumerGroup.settings = settings(max_examples=examples(40), stateful_step_count=30, deadline=None)
