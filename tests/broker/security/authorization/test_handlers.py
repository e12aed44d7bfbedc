"""Access across several requests: sessions, caches, groups, automatic topic creation, and Diamant's own commands."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from diamant.broker.acl import CLUSTER_NAME, Acl, Operation, ResourceType
from diamant.broker.broker import Broker
from diamant.protocol.errors import ErrorCode
from tests.broker.groups.offsets.offset_requests import find_coordinator
from tests.broker.request_fields import SET, alteration
from tests.broker.security.authorization.asking import ADMIN, Asker
from tests.broker.security.authorization.handed import HandedPrincipals
from tests.broker.security.authorization.questions import ALICE, BOB, Client, allow
from tests.broker.wire import FETCH, METADATA, WireClient, fetch_fields

GROUP, CLUSTER = ResourceType.GROUP, ResourceType.CLUSTER
READ, DESCRIBE, ALTER = Operation.READ, Operation.DESCRIBE, Operation.ALTER
HEARTBEAT, GROUP_DESCRIBE, INCREMENTAL_ALTER_CONFIGS = 68, 69, 44


class Clients:
    """A broker with an authorizer, and connections of its users."""

    def __init__(self, broker: Broker) -> None:
        self._handed = HandedPrincipals(broker)
        self._asker = Asker(self._handed.connect)
        self._open: list[WireClient] = []

    async def connect(self, user: str) -> WireClient:
        """Return a new connection of a user."""
        wire = await self._handed.connect(Client(user))
        self._open.append(wire)
        return wire

    async def set_acls(self, *acls: Acl) -> None:
        """Replace all ACLs."""
        await self._asker.set_acls(acls)

    async def close(self) -> None:
        """Close all connections."""
        await self._asker.close()
        for wire in self._open:
            wire.writer.close()
            await wire.writer.wait_closed()


@pytest.fixture
async def clients(tmp_path: Path) -> AsyncIterator[Clients]:
    """A broker for one test, with a record in each of the topics `users` and `orders`."""
    async with Broker(
        data_dir=tmp_path,
        authorizer_class_name="StandardAuthorizer",
        super_users=f"User:{ADMIN}",
        diamant_clock="manual",
    ) as broker:
        clients = Clients(broker)
        admin = await clients.connect(ADMIN)
        for name in ("users", "orders"):
            await admin.create(name)
            await admin.produce(name, [b"value"])
        await admin.create("compacted", cleanup_policy="compact")
        yield clients
        await clients.close()


def session(topics: Sequence[str], session_id: int, epoch: int, offset: int = 0) -> dict[str, Any]:
    """Return a fetch in a session that names these topics."""
    fields = fetch_fields("", offset)
    partitions = fields["topics"][0]["partitions"]
    named = [{"topic": topic, "partitions": partitions} for topic in topics]
    return fields | {"session_id": session_id, "session_epoch": epoch, "topics": named}


async def test_a_fetch_session_follows_the_acls(clients: Clients) -> None:
    """A change of ACLs applies to the next fetch of the session, in both directions."""
    alice = await clients.connect(ALICE)
    await clients.set_acls(allow(READ, name="users"))
    opened = await alice.call(FETCH, 12, session(["users", "orders"], 0, 0))
    codes = {topic.topic: topic.partitions[0].error_code for topic in opened.responses}
    assert codes == {"users": 0, "orders": ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    await clients.set_acls(allow(READ, name="orders"))
    again = await alice.call(FETCH, 12, session([], opened.session_id, 1))
    found = {topic.topic: topic.partitions[0] for topic in again.responses}
    assert found["users"].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert not found["users"].records
    assert found["orders"].records


async def test_permissions_change_for_partitions_without_news_in_a_fetch_session(clients: Clients) -> None:
    """A client that has read everything is told, too, that it may no longer read."""
    alice = await clients.connect(ALICE)
    await clients.set_acls(allow(READ, name="users"))
    opened = await alice.call(FETCH, 12, session(["users"], 0, 0, offset=1))
    assert [topic.partitions[0].error_code for topic in opened.responses] == [ErrorCode.NONE]
    assert (await alice.call(FETCH, 12, session([], opened.session_id, 1))).responses == ()
    await clients.set_acls(allow(READ, name="orders"))
    answer = await alice.call(FETCH, 12, session([], opened.session_id, 2))
    assert [topic.partitions[0].error_code for topic in answer.responses] == [ErrorCode.TOPIC_AUTHORIZATION_FAILED]


async def test_cached_metadata_is_of_those_who_may_see_the_same(clients: Clients) -> None:
    """Identical requests of clients with different rights get different responses."""
    await clients.set_acls(allow(DESCRIBE, name="users"), allow(DESCRIBE, name="orders", user=BOB))
    alice, bob = await clients.connect(ALICE), await clients.connect(BOB)
    for _ in range(2):
        seen = [
            [topic.name for topic in (await one.call(METADATA, 12, {"topics": None})).topics] for one in (alice, bob)
        ]
        assert seen == [["users"], ["orders"]]
    await clients.set_acls(allow(DESCRIBE, name="orders"))
    assert [topic.name for topic in (await alice.call(METADATA, 12, {"topics": None})).topics] == ["orders"]


async def test_a_topic_is_made_by_asking_only_with_the_right_to(clients: Clients) -> None:
    """Creation takes CREATE on the topic or on the cluster, in addition to DESCRIBE."""
    await clients.set_acls(
        allow(DESCRIBE, name="new", is_prefix=True), allow(Operation.CREATE, name="new2"), allow(DESCRIBE, user=BOB)
    )
    alice = await clients.connect(ALICE)
    fields = {"topics": [{"name": name} for name in ("new1", "new2", "other")], "allow_auto_topic_creation": True}
    for code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NONE):
        answer = await alice.call(METADATA, 9, fields)
        assert {topic.name: ErrorCode(topic.error_code) for topic in answer.topics} == {
            "new1": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            "new2": code,
            "other": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        }


async def heartbeat(wire: WireClient, epoch: int, regex: str | None) -> Any:
    """Return a heartbeat of the only member of group `g`."""
    return await wire.call(
        HEARTBEAT,
        1,
        {
            "group_id": "g",
            "member_id": "m",
            "member_epoch": epoch,
            "instance_id": None,
            "rack_id": None,
            "rebalance_timeout_ms": 60_000 if epoch == 0 else -1,
            "subscribed_topic_names": None,
            "subscribed_topic_regex": regex,
            "server_assignor": None,
            "topic_partitions": [] if epoch == 0 else None,
        },
    )


async def wait_for_assignment(wire: WireClient) -> None:
    """Join with a regular expression, and send heartbeats until there is an assignment."""
    answer = await heartbeat(wire, 0, ".*")
    async with asyncio.timeout(30):
        while answer.assignment is None or not answer.assignment.topic_partitions:
            await asyncio.sleep(0.05)
            answer = await heartbeat(wire, answer.member_epoch, None if answer.member_epoch else ".*")
            assert answer.error_code == 0, answer


async def test_a_regular_expression_finds_topics_that_may_be_described(clients: Clients) -> None:
    """A client that may not describe the members' topics does not see the group."""
    await clients.set_acls(allow(READ, GROUP, "g"), allow(READ, name="users"), allow(DESCRIBE, GROUP, "g", user=BOB))
    alice, bob = await clients.connect(ALICE), await clients.connect(BOB)
    await find_coordinator(alice)
    await wait_for_assignment(alice)
    fields = {"group_ids": ["g"], "include_authorized_operations": False}
    (group,) = (await alice.call(GROUP_DESCRIBE, 1, fields)).groups
    names = {part.topic_name for member in group.members for part in member.assignment.topic_partitions}
    assert names == {"users"}
    (hidden,) = (await bob.call(GROUP_DESCRIBE, 1, fields)).groups
    assert (hidden.error_code, hidden.members) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ())


@pytest.mark.parametrize(
    ("resource_type", "resource_name", "config", "value"),
    [(2, "compacted", "diamant.compact", "now"), (4, "1", "diamant.clock.advance.ms", "1")],
)
async def test_commands_by_configuration_need_alter_on_the_cluster(
    clients: Clients, resource_type: int, resource_name: str, config: str, value: str
) -> None:
    """Such commands also need the right to change the resource's configurations."""
    change_configs = (
        allow(Operation.ALTER_CONFIGS, name="compacted"),
        allow(Operation.ALTER_CONFIGS, CLUSTER, CLUSTER_NAME),
    )
    alice = await clients.connect(ALICE)
    fields = alteration(resource_type, resource_name, (config, SET, value))
    found = []
    for acls in (change_configs, (*change_configs, allow(ALTER, CLUSTER, CLUSTER_NAME))):
        await clients.set_acls(*acls)
        (response,) = (await alice.call(INCREMENTAL_ALTER_CONFIGS, 1, fields)).responses
        found.append(ErrorCode(response.error_code))
    assert found == [ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.NONE]
