"""The rights that an erasure needs: with exactly these it works, without any one of them nothing is changed."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from diamant.broker.acl import Operation, ResourceType
from diamant.broker.cli import main
from diamant.broker.client.kafka_client import KafkaClient, KafkaRefusal
from diamant.broker.client.login import Login
from diamant.broker.clusters.operations import erase, restore
from diamant.broker.clusters.register import STATE_VARIABLE, Register
from diamant.broker.operation_errors import NotAllowed
from tests.broker.clusters.any_cluster import OLD_MS, PASSWORD, AnyCluster
from tests.broker.clusters.open_transaction import OpenTransaction
from tests.broker.clusters.test_erasing_oddities import at_stage, lowered
from tests.broker.request_fields import acl, acl_filter
from tests.waiting import PATIENCE_S

CREATE_ACLS, DELETE_ACLS = 30, 31
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


@pytest.mark.parametrize("rest", [set(), {Operation.DESCRIBE_CONFIGS}], ids=["none", "may describe"])
def test_a_topic_that_cannot_be_put_back_stops_no_other(
    cluster: AnyCluster, register: Register, tmp_path: Path, rest: set[Operation]
) -> None:
    """The other topics are as before. The error names the one with the reason, and its saved values stay for another attempt."""
    names = [cluster.create(f"back-{len(rest)}-{letter}", segment_ms="77000") for letter in "abc"]
    before = [cluster.configs(name) for name in names]
    work = lowered(cluster, register, *names)
    for name, rights in zip(names, (NEEDED, rest, NEEDED), strict=True):
        allow(cluster, "may-all", name, rights)
    config = tmp_path / "client.properties"
    config.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config="
        f'org.apache.kafka.common.security.plain.PlainLoginModule required username="may-all" password="{PASSWORD}";\n'
    )
    words = ["restore", work.id, "-b", cluster.addresses["SASL_PLAINTEXT"], "--command-config", str(config)]
    done = CliRunner().invoke(main, words, env={STATE_VARIABLE: str(register.directory)})
    assert done.exit_code == 1, done.output
    assert f"{names[1]}: configurations are still lowered: " in done.output
    assert "TOPIC_AUTHORIZATION_FAILED" in done.output
    assert f"diamant restore {work.id}" in done.output
    assert [cluster.configs(name) == own for name, own in zip(names, before, strict=True)] == [True, False, True]
    assert [*register.get(work.id).changes] == [names[1]]
    found = restore(cluster.client, work.id, register=register)
    assert (found["topics"], found["not_put_back"]) == ([names[1]], {})
    assert [cluster.configs(name) for name in names] == before
    assert register.all() == []


def test_a_right_that_is_taken_away_meanwhile_costs_no_certificate(cluster: AnyCluster, register: Register) -> None:
    """The erasure is certified, and the topic that is still lowered is named and stays in the register."""
    name = filled(cluster, "taken-away")
    before = cluster.configs(name)
    allow(cluster, "may-all", name, NEEDED)

    def take_away() -> None:
        with AnyCluster(cluster.bootstrap) as other:
            wanted = acl_filter(
                ResourceType.TOPIC, name, pattern=3, operation=Operation.ALTER_CONFIGS, permission_type=3
            )
            answer = other.client.controller().ask(DELETE_ACLS, {"filters": [wanted]})
            assert len(answer["filter_results"][0]["matching_acls"]) == 1, answer

    with logged_in(cluster, "may-all") as client:
        found = erase(
            client, b"k", [name], reason="asked", timeout_s=120.0, register=register,
            on_progress=at_stage("waiting for the cleaner of each replica", take_away),
        )  # fmt: skip
    assert (found["state"], found["missing"], [*found["not_put_back"]]) == ("unreadable", {}, [name])
    assert cluster.configs(name) != before
    (work,) = register.all()
    assert work.is_open
    restore(cluster.client, work.id, register=register)
    assert cluster.configs(name) == before
