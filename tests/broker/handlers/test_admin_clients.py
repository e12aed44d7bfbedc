"""The administrative clients of confluent-kafka and kafka-python with a running broker: most of their calls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from diamant.broker.broker import BlockingBroker, Broker
from diamant.broker.config.broker_config import BrokerConfig

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:importlib.resources")  # of kafka-python's import

TIMEOUT_S = 60


@pytest.fixture(scope="module")
def admin_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BlockingBroker]:
    """A broker whose configuration these tests may change."""
    with Broker(BrokerConfig(listen="127.0.0.1:0", data_dir=tmp_path_factory.mktemp("data"))) as running:
        yield running


@pytest.fixture
def librdkafka(admin_broker: BlockingBroker) -> Any:
    """The admin client of confluent-kafka."""
    from confluent_kafka.admin import AdminClient

    return AdminClient({"bootstrap.servers": admin_broker.bootstrap_servers})


@pytest.fixture
def kafka_python(admin_broker: BlockingBroker) -> Iterator[Any]:
    """The admin client of kafka-python."""
    from kafka.admin import KafkaAdminClient

    client = KafkaAdminClient(bootstrap_servers=admin_broker.bootstrap_servers)
    yield client
    client.close()


def done(futures: dict[Any, Any]) -> list[Any]:
    """Return the results of one call's futures, in order."""
    return [future.result(TIMEOUT_S) for future in futures.values()]


def code_of(future: Any) -> Any:
    """Return the error code of a failed call of confluent-kafka."""
    from confluent_kafka import KafkaException

    with pytest.raises(KafkaException) as caught:
        future.result(TIMEOUT_S)
    return caught.value.args[0].code()


def test_confluent_broker_and_group_configs(librdkafka: Any) -> None:
    """Dynamic broker configurations are set, read-only ones are refused; advertised.listeners is listed."""
    from confluent_kafka import KafkaError
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

    def change(resource_type: Any, name: str, key: str, value: str) -> Any:
        resource = ConfigResource(resource_type, name)
        resource.incremental_configs = [ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)]
        return librdkafka.incremental_alter_configs([resource])[resource]

    broker = ConfigResource.Type.BROKER
    change(broker, "1", "log.cleaner.threads", "2").result(TIMEOUT_S)
    assert code_of(change(broker, "1", "num.partitions", "2")) == KafkaError.INVALID_REQUEST
    (configs,) = done(librdkafka.describe_configs([ConfigResource(broker, "1")]))
    assert configs["log.cleaner.threads"].value == "2"
    assert "advertised.listeners" in configs
    group = ConfigResource.Type.GROUP
    change(group, "g", "consumer.session.timeout.ms", "50000").result(TIMEOUT_S)
    assert code_of(change(group, "g", "consumer.session.timeout.ms", "1")) == KafkaError.INVALID_CONFIG
    (configs,) = done(librdkafka.describe_configs([ConfigResource(group, "g")]))
    assert configs["consumer.session.timeout.ms"].value == "50000"


def test_confluent_elections_and_records(librdkafka: Any) -> None:
    """No election is needed; records are deleted up to the end."""
    from confluent_kafka import ElectionType, KafkaError, TopicPartition
    from confluent_kafka.admin import NewTopic

    done(librdkafka.create_topics([NewTopic("ce", 1, 1)]))
    elected = librdkafka.elect_leaders(ElectionType.PREFERRED, [TopicPartition("ce", 0)]).result(TIMEOUT_S)
    assert [error.code() for error in elected.values()] == [KafkaError.ELECTION_NOT_NEEDED]
    (deleted,) = done(librdkafka.delete_records([TopicPartition("ce", 0, 0)]))
    assert deleted.low_watermark == 0


def test_confluent_scram(librdkafka: Any) -> None:
    """Credentials are set, described and removed."""
    from confluent_kafka import KafkaError
    from confluent_kafka.admin import (
        ScramCredentialInfo,
        ScramMechanism,
        UserScramCredentialDeletion,
        UserScramCredentialUpsertion,
    )

    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 10_000)
    done(librdkafka.alter_user_scram_credentials([UserScramCredentialUpsertion("carla", info, b"secret", b"salt")]))
    described = librdkafka.describe_user_scram_credentials(["carla"])["carla"].result(TIMEOUT_S)
    assert [(found.mechanism, found.iterations) for found in described.scram_credential_infos] == [
        (ScramMechanism.SCRAM_SHA_512, 10_000)
    ]
    deletion = UserScramCredentialDeletion("carla", ScramMechanism.SCRAM_SHA_512)
    done(librdkafka.alter_user_scram_credentials([deletion]))
    gone = librdkafka.describe_user_scram_credentials(["carla"])["carla"]
    assert code_of(gone) == KafkaError.RESOURCE_NOT_FOUND


def test_confluent_cluster_and_acls(admin_broker: BlockingBroker, librdkafka: Any) -> None:
    """One node that is the controller; without an authorizer ACLs are disabled."""
    from confluent_kafka import KafkaError
    from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, ResourcePatternType, ResourceType

    cluster = librdkafka.describe_cluster(include_authorized_operations=True).result(TIMEOUT_S)
    assert cluster.cluster_id == admin_broker.cluster_id
    assert [node.id for node in cluster.nodes] == [cluster.controller.id] == [1]
    binding = AclBinding(
        ResourceType.TOPIC, "t", ResourcePatternType.LITERAL, "User:a", "*", AclOperation.READ, AclPermissionType.ALLOW
    )
    # To describe them is answered with the same error, which this client does not show.
    assert code_of(librdkafka.create_acls([binding])[binding]) == KafkaError.SECURITY_DISABLED


@pytest.mark.slow
def test_kafka_python_topics(kafka_python: Any) -> None:
    """Create, grow, describe by pages, reassign, delete."""
    from kafka.admin import NewPartitions, NewTopic

    kafka_python.create_topics([NewTopic("kt", 2, 1)])
    kafka_python.create_partitions({"kt": NewPartitions(3)})
    described = kafka_python.describe_topics(["kt"])
    assert len(described[0]["partitions"]) == 3
    pages = kafka_python.describe_topic_partitions(["kt"])
    assert "kt" in str(pages)
    assert kafka_python.list_partition_reassignments() in ({}, [])
    assert "kt" in str(kafka_python.describe_log_dirs())
    kafka_python.delete_topics(["kt"])
    assert "kt" not in kafka_python.list_topics()


def test_kafka_python_cluster(admin_broker: BlockingBroker, kafka_python: Any) -> None:
    """Cluster, quorum and features are described, and what has configurations is listed."""
    assert kafka_python.describe_cluster()["cluster_id"] == admin_broker.cluster_id
    quorum = kafka_python.describe_metadata_quorum()
    assert "__cluster_metadata" in str(quorum)
    assert "metadata.version" in str(kafka_python.describe_features())
    assert "'1'" in str(kafka_python.list_config_resources())


@pytest.mark.slow
def test_kafka_python_consumes_in_a_session(admin_broker: BlockingBroker) -> None:
    """The consumer requests a fetch session, gets one, and reads everything through it."""
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition

    producer = KafkaProducer(bootstrap_servers=admin_broker.bootstrap_servers)
    for number in range(50):
        producer.send("in.session", str(number).encode()).get(TIMEOUT_S)
    producer.close()
    consumer = KafkaConsumer(
        bootstrap_servers=admin_broker.bootstrap_servers, auto_offset_reset="earliest", consumer_timeout_ms=20_000
    )
    consumer.assign([TopicPartition("in.session", 0)])
    found = [int(message.value) for _, message in zip(range(50), consumer, strict=False)]
    assert len(admin_broker.node.fetch_sessions()) > 0
    consumer.close()
    assert found == list(range(50))
