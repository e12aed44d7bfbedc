"""The rights that an erasure needs: with exactly these it works, without any one of them nothing is changed."""

from __future__ import annotations

import pytest

from diamant.broker.acl import Operation, ResourceType
from diamant.broker.client.kafka_client import KafkaClient, KafkaRefusal
from diamant.broker.client.login import Login
from diamant.broker.clusters.operations import erase
from diamant.broker.clusters.register import Register
from diamant.broker.errors import NotAllowed
from tests.broker.clusters.any_cluster import OLD_MS, PASSWORD, AnyCluster
from tests.broker.clusters.open_transaction import OpenTransaction
from tests.broker.request_fields import acl
from tests.waiting import PATIENCE_S

CREATE_ACLS = 30
NEEDED = {Operation.READ, Operation.WRITE, Operation.ALTER_CONFIGS}
WITHOUT = {"reads": Operation.READ, "writes": Operation.WRITE, "alters": Operation.ALTER_CONFIGS}
"""By user, the right that it lacks."""


def allow(cluster: AnyCluster, user: str, topic: str, operations: set[Operation]) -> None:
    """Allow a user these operations on a topic."""
    creations = [acl(ResourceType.TOPIC, topic, f"User:{user}", operation) for operation in sorted(operations)]
    create(cluster, creations)


def create(cluster: AnyCluster, creations: list[dict[str, object]]) -> None:
    """Create ACLs."""
    answer = cluster.client.controller().ask(CREATE_ACLS, {"creations": creations})
    assert not any(one["error_code"] for one in answer["results"]), answer


def logged_in(cluster: AnyCluster, user: str) -> KafkaClient:
    """Return a client of one of the users."""
    return KafkaClient(cluster.addresses["SASL_PLAINTEXT"], timeout_s=PATIENCE_S, login=Login(user, PASSWORD, "PLAIN"))


def filled(cluster: AnyCluster, name: str) -> str:
    """Return a topic with two values of the key."""
    cluster.create(name)
    cluster.produce(name, [(b"k", b"1"), (b"k", b"2"), (b"other", b"3")], timestamp_ms=OLD_MS)
    return name


def test_read_write_and_alter_configs_suffice(cluster: AnyCluster, register: Register) -> None:
    """No right on the cluster, on a group or on a transactional id is needed."""
    name = filled(cluster, "rights")
    before = cluster.configs(name)
    allow(cluster, "may-all", name, NEEDED)
    with logged_in(cluster, "may-all") as client:
        found = erase(client, b"k", [name], reason="asked", timeout_s=120.0, register=register)
    assert (found["missing"], cluster.configs(name)) == ({}, before)
    assert [record.value for record in cluster.held(name) if record.value] == [b"3"]


@pytest.mark.parametrize("user", WITHOUT)
def test_without_any_one_right_nothing_is_changed(cluster: AnyCluster, register: Register, user: str) -> None:
    """The missing right is named, together with the topic."""
    name = filled(cluster, f"without-{user}")
    before, records = cluster.configs(name), cluster.held(name)
    allow(cluster, user, name, NEEDED - {WITHOUT[user]})
    with logged_in(cluster, user) as client, pytest.raises(NotAllowed) as error:
        erase(client, b"k", [name], reason="asked", timeout_s=120.0, register=register)
    assert str(error.value) == f"nothing was changed: this user lacks {WITHOUT[user].name} on topic {name}"
    assert (cluster.configs(name), cluster.held(name), register.all()) == (before, records, [])


def test_a_topic_that_a_user_may_not_see_is_refused(cluster: AnyCluster, register: Register) -> None:
    """A topic that the user may not see is refused, as by Kafka's own tools."""
    name = filled(cluster, "unseen")
    with logged_in(cluster, "may-nothing") as client, pytest.raises(KafkaRefusal, match="TOPIC_AUTHORIZATION_FAILED"):
        erase(client, b"k", [name], reason="asked", timeout_s=120.0, register=register)


def test_a_transactional_id_spares_the_second_tombstone(cluster: AnyCluster, register: Register) -> None:
    """With WRITE on it, and DESCRIBE on a `__transaction_state` that exists, segments are closed without a further record."""
    name = filled(cluster, "rolls")
    with OpenTransaction(cluster.client, cluster.create("makes-the-transaction-topic")):
        pass
    allow(cluster, "may-roll", name, NEEDED)
    allow(cluster, "may-roll", "__transaction_state", {Operation.DESCRIBE})
    create(cluster, [acl(ResourceType.TRANSACTIONAL_ID, "diamant-roll", "User:may-roll", Operation.WRITE)])
    with logged_in(cluster, "may-roll") as client:
        found = erase(client, b"k", [name], reason="asked", timeout_s=120.0, register=register)
    assert found["missing"] == {}
    assert [(record.key, record.value) for record in cluster.held(name)] == [(b"other", b"3"), (b"k", None)]
