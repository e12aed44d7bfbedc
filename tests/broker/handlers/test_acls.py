"""CreateAcls, DescribeAcls and DeleteAcls with an authorizer; changes apply at once, and after a restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from diamant.broker.broker import BlockingBroker, Broker
from diamant.broker.cannot_start import CannotStart
from diamant.broker.config.broker_config import BrokerConfig
from diamant.protocol.errors import ErrorCode
from tests.broker.request_fields import acl, acl_filter
from tests.broker.wire import WireClient

DESCRIBE_ACLS, CREATE_ACLS, DELETE_ACLS = 29, 30, 31
ANY_FILTER = acl_filter()
READ_USERS = acl(2, "users", "User:alice", 3)
DENY_ALL = acl(4, "kafka-cluster", "User:*", 8, permission_type=2)


def config(data_dir: Path, **settings: Any) -> BrokerConfig:
    """Return a broker with an authorizer, whose unauthenticated clients may do everything unless `settings` differ."""
    settings = {"super_users": "User:ANONYMOUS"} | settings
    return BrokerConfig(listen="127.0.0.1:0", data_dir=data_dir, authorizer_class_name="StandardAuthorizer", **settings)


@pytest.fixture
async def wire(tmp_path: Path) -> AsyncIterator[WireClient]:
    """A connection to a broker with an authorizer."""
    async with Broker(config(tmp_path)) as broker, WireClient(broker.bootstrap_servers) as client:
        yield client


async def create(wire: WireClient, *creations: dict[str, Any], version: int = 3) -> list[ErrorCode]:
    """Return the error codes of creating ACLs."""
    response = await wire.call(CREATE_ACLS, version, {"creations": list(creations)})
    return [ErrorCode(result.error_code) for result in response.results]


async def described(wire: WireClient, **fields: Any) -> set[tuple[Any, ...]]:
    """Return the ACLs that match a filter."""
    response = await wire.call(DESCRIBE_ACLS, 3, ANY_FILTER | fields)
    assert response.error_code == 0
    return {
        (
            int(resource.resource_type),
            resource.resource_name,
            int(resource.pattern_type),
            acl.principal,
            acl.host,
            int(acl.operation),
            int(acl.permission_type),
        )
        for resource in response.resources
        for acl in resource.acls
    }


async def test_acls_are_made_found_and_removed(wire: WireClient) -> None:
    """A repeated ACL counts once; one removal may be in the results of two filters."""
    group = READ_USERS | {"resource_type": 3, "resource_name": "g", "resource_pattern_type": 4}
    assert await create(wire, READ_USERS, READ_USERS, group) == [ErrorCode.NONE] * 3
    assert await described(wire) == {tuple(READ_USERS.values()), tuple(group.values())}
    assert await described(wire, resource_type_filter=2) == {tuple(READ_USERS.values())}
    assert await described(wire, resource_type_filter=3, resource_name_filter="gg", pattern_type_filter=2) == {
        tuple(group.values())
    }
    response = await wire.call(DELETE_ACLS, 3, {"filters": [ANY_FILTER, ANY_FILTER | {"resource_type_filter": 2}]})
    assert [len(result.matching_acls) for result in response.filter_results] == [2, 1]
    assert await described(wire) == set()


async def test_success_has_an_empty_message_but_where_acls_are_removed(wire: WireClient) -> None:
    """Messages of successes are empty, as in Kafka, and null in DeleteAcls only; clients may show the text."""
    created = await wire.call(CREATE_ACLS, 3, {"creations": [READ_USERS]})
    found = await wire.call(DESCRIBE_ACLS, 3, ANY_FILTER)
    removed = await wire.call(DELETE_ACLS, 3, {"filters": [ANY_FILTER]})
    [result] = removed.filter_results
    assert (created.results[0].error_message, found.error_message) == ("", "")
    assert (result.error_message, result.matching_acls[0].error_message) == (None, None)


@pytest.mark.parametrize(
    "wrong",
    [
        {"resource_type": 1},
        {"resource_name": ""},
        {"resource_type": 4},
        {"resource_pattern_type": 1},
        {"resource_pattern_type": 2},
        {"operation": 1},
        {"permission_type": 1},
        {"principal": "alice"},
    ],
)
async def test_an_acl_that_cannot_be_is_an_invalid_request(wire: WireClient, wrong: dict[str, Any]) -> None:
    """The other ACLs of its request are created."""
    assert await create(wire, READ_USERS | wrong, READ_USERS) == [ErrorCode.INVALID_REQUEST, ErrorCode.NONE]
    assert await described(wire) == {tuple(READ_USERS.values())}


async def test_numbers_that_no_kafka_knows_close_the_connection(wire: WireClient) -> None:
    """A request with a number that Kafka does not know closes the connection, as it cannot be read."""
    wire.send(CREATE_ACLS, 3, {"creations": [READ_USERS | {"operation": 99}]})
    assert await wire.is_closed()


async def test_acls_survive_a_restart_and_decide(tmp_path: Path) -> None:
    """ACLs survive a restart; without a super user, those in the directory alone decide."""
    async with Broker(config(tmp_path)) as broker, WireClient(broker.bootstrap_servers) as wire:
        allow = DENY_ALL | {"permission_type": 3}
        assert await create(wire, READ_USERS, allow) == [ErrorCode.NONE] * 2
    settings = config(tmp_path, super_users="")
    async with Broker(settings) as broker, WireClient(broker.bootstrap_servers) as wire:
        assert await described(wire) == {tuple(READ_USERS.values()), tuple(allow.values())}
        assert await create(wire, DENY_ALL) == [ErrorCode.CLUSTER_AUTHORIZATION_FAILED]


async def test_a_denial_is_in_force_with_the_answer_that_made_it(wire: WireClient, tmp_path: Path) -> None:
    """The next request of a previously allowed client is denied."""
    settings = config(tmp_path / "other", super_users="", allow_everyone_if_no_acl_found=True)
    async with Broker(settings) as broker, WireClient(broker.bootstrap_servers) as client:
        assert await described(client) == set()
        assert await create(client, DENY_ALL) == [ErrorCode.NONE]
        response = await client.call(DESCRIBE_ACLS, 3, ANY_FILTER)
        assert response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


async def test_a_broker_that_denies_everything_says_how_to_get_in(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without ACLs and super users, the log names the setting."""
    async with Broker(config(tmp_path, super_users="")):
        pass
    assert any("super.users=User:NAME" in record.getMessage() for record in caplog.records)


TIMEOUT_S = 30


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BlockingBroker]:
    """A broker with an authorizer, whose unauthenticated clients may do everything."""
    with Broker(config(tmp_path_factory.mktemp("data"))) as running:
        yield running


def test_confluent_kafka_manages_acls(broker: BlockingBroker) -> None:
    """The client manages ACLs, with filters that match any value."""
    from confluent_kafka.admin import (  # type: ignore[attr-defined]
        AclBinding,
        AclBindingFilter,
        AclOperation,
        AclPermissionType,
        AdminClient,
        ResourcePatternType,
        ResourceType,
    )

    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    made = AclBinding(
        ResourceType.TOPIC, "c", ResourcePatternType.PREFIXED, "User:c", "*", AclOperation.READ, AclPermissionType.ALLOW
    )
    wanted = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, "User:c", None, AclOperation.ANY, AclPermissionType.ANY
    )
    admin.create_acls([made])[made].result(TIMEOUT_S)
    assert admin.describe_acls(wanted).result(TIMEOUT_S) == [made]
    assert admin.delete_acls([wanted])[wanted].result(TIMEOUT_S) == [made]
    assert admin.describe_acls(wanted).result(TIMEOUT_S) == []


@pytest.mark.slow
def test_kafka_python_manages_acls(broker: BlockingBroker) -> None:
    """The client manages ACLs, with its own names."""
    from kafka.admin import (
        ACL,
        ACLFilter,
        ACLOperation,
        ACLPermissionType,
        ACLResourcePatternType,
        KafkaAdminClient,
        ResourcePattern,
        ResourcePatternFilter,
        ResourceType,
    )

    pattern = ResourcePattern(ResourceType.GROUP, "k", ACLResourcePatternType.LITERAL)
    made = ACL("User:k", "*", ACLOperation.READ, ACLPermissionType.DENY, pattern)
    wanted = ACLFilter(
        "User:k",
        None,
        ACLOperation.ANY,
        ACLPermissionType.ANY,
        ResourcePatternFilter(ResourceType.ANY, None, ACLResourcePatternType.ANY),
    )
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    try:
        admin.create_acls([made])
        assert made.principal in str(admin.describe_acls(wanted))
        admin.delete_acls([wanted])
        assert made.principal not in str(admin.describe_acls(wanted))
    finally:
        admin.close()


RANGES = [
    ("10.0.0.0/8", ErrorCode.NONE),
    ("10.9.8.7/8", ErrorCode.NONE),
    ("0.0.0.0/0", ErrorCode.NONE),
    ("::/0", ErrorCode.NONE),
    ("2001:db8::/32", ErrorCode.NONE),
    ("10.0.0.0/33", ErrorCode.INVALID_REQUEST),
    ("::ffff:10.0.0.0/104", ErrorCode.INVALID_REQUEST),
    ("", ErrorCode.INVALID_REQUEST),
]


async def test_the_host_of_an_acl_can_be_a_range_of_addresses(tmp_path: Path) -> None:
    """Ranges are accepted from metadata.version 32 on, as in Kafka; a stored one keeps the version from being lowered."""
    update = {"feature": "metadata.version", "max_version_level": 33, "upgrade_type": 1}
    requested = [acl(2, "users", "User:alice", 3) | {"host": host} for host, _ in RANGES]
    refused = [ErrorCode.UNSUPPORTED_VERSION if host else ErrorCode.INVALID_REQUEST for host, _ in RANGES]
    async with Broker(config(tmp_path)) as broker, WireClient(broker.bootstrap_servers) as wire:
        assert await create(wire, *requested) == refused
        assert await described(wire) == set()
        upgrade = {"feature_updates": [update], "validate_only": False}
        assert (await wire.call(57, 2, upgrade)).error_code == ErrorCode.NONE
        assert await create(wire, *requested) == [code for _, code in RANGES]
    async with Broker(config(tmp_path)) as broker, WireClient(broker.bootstrap_servers) as wire:
        assert {one[4] for one in await described(wire)} == {host for host, code in RANGES if code == ErrorCode.NONE}
        down = {"feature_updates": [update | {"max_version_level": 31, "upgrade_type": 2}], "validate_only": False}
        answer = await wire.call(57, 2, down)
        assert (answer.error_code, "might delete metadata" in answer.error_message) == (95, True)


@pytest.mark.parametrize(
    ("release", "host", "error"),
    [
        ("4.4", "127.0.0.0/8", None),
        ("4.4", "127.0.0.0/64", "Invalid CIDR notation"),
        ("4.3", "127.0.0.0/8", "4.4-IV1 or higher.* --release-version 4.4"),
    ],
)
async def test_configured_acls_can_name_ranges(tmp_path: Path, release: str, host: str, error: str | None) -> None:
    """`diamant.acls` is checked as requests are; the start fails with the reason, and formats nothing for the wrong release."""
    deny = f"User:ANONYMOUS DENY ALL topic users from {host}"
    allow = "User:ANONYMOUS ALL topic *"
    broker = Broker(config(tmp_path, acls=[allow, deny], super_users="", diamant_release_version=release))
    if error is not None:
        with pytest.raises(CannotStart, match=error):
            await broker.start()
        assert not await asyncio.to_thread((tmp_path / "meta.properties").exists)
        return
    async with broker, WireClient(broker.bootstrap_servers) as wire:
        assert len(broker.node.acls or ()) == 2
        topics = [{"name": name} for name in ("users", "orders")]
        answer = await wire.call(3, 9, {"topics": topics, "allow_auto_topic_creation": False})
        assert {topic.name: topic.error_code for topic in answer.topics} == {
            "users": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            "orders": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
