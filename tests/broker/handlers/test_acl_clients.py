"""Clients' own functions for ACLs: what each makes it finds, and removes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from diamant.broker.broker import BlockingBroker, Broker
from diamant.broker.config.broker_config import BrokerConfig

TIMEOUT_S = 30


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BlockingBroker]:
    """A broker with an authorizer, whose unauthenticated clients may do everything."""
    config = BrokerConfig(
        listen="127.0.0.1:0",
        data_dir=tmp_path_factory.mktemp("data"),
        authorizer_class_name="StandardAuthorizer",
        super_users="User:ANONYMOUS",
    )
    with Broker(config) as running:
        yield running


def test_confluent(broker: BlockingBroker) -> None:
    """With filters that mean any."""
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
def test_kafka_python(broker: BlockingBroker) -> None:
    """By names of its own."""
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
