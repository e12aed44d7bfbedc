"""Client configurations of a secured broker: each library connects with its own, and unauthorized clients are refused."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable

import pytest

from diamant.broker.broker import BlockingBroker
from diamant.broker.client.client_config import ClientConfig, ClientRefused
from diamant.pytest_plugin import diamant_secure_broker
from diamant.storage.properties import parse_properties
from tests.broker.security.tls.certificates import authority, of_client
from tests.broker.security.writing import LIBRARIES, Write, by_confluent_kafka

__all__ = ["diamant_secure_broker"]

MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_user_is_let_in_and_others_are_not(diamant_secure_broker: BlockingBroker, mechanism: str) -> None:
    """Each configuration takes one line."""
    broker = diamant_secure_broker
    broker.client_config("alice", mechanism=mechanism).check()
    with pytest.raises(ClientRefused, match="Authentication failed"):
        broker.client_config("alice", password="wrong", mechanism=mechanism).check()
    with pytest.raises(ClientRefused, match="Authentication failed"):
        broker.client_config("mallory", password="x", mechanism=mechanism).check()
    with pytest.raises(ClientRefused, match="it may require a login"):
        ClientConfig(broker.bootstrap_servers).check()


def test_the_strongest_mechanism_is_the_default(diamant_secure_broker: BlockingBroker) -> None:
    """ValueError for a user whose password the broker does not know."""
    config = diamant_secure_broker.client_config("bob")
    assert (config.mechanism, config.security_protocol, config.password) == (
        "SCRAM-SHA-512",
        "SASL_PLAINTEXT",
        "bob-secret",
    )
    with pytest.raises(ValueError, match="'mallory' is not among the broker's users"):
        diamant_secure_broker.client_config("mallory")


def test_a_password_is_not_shown() -> None:
    """Reports of failed tests show values."""
    assert "hush" not in repr(ClientConfig("h:1", user="al", password="hush"))


def test_the_words_of_each_library() -> None:
    """Quotes and characters that need escaping in a properties file are escaped."""
    ca, own = authority().certificate, of_client()
    config = ClientConfig("h:1", "SASL_SSL", "PLAIN", "al", 'a"\\Ж', ca, own.certificate, own.key)
    assert config.confluent() == {
        "bootstrap.servers": "h:1",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "al",
        "sasl.password": 'a"\\Ж',
        "ssl.ca.pem": ca,
        "ssl.certificate.pem": own.certificate,
        "ssl.key.pem": own.key,
    }
    keywords = config.kafka_python()
    assert isinstance(keywords.pop("ssl_context"), ssl.SSLContext)
    assert keywords == {
        "bootstrap_servers": "h:1",
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "al",
        "sasl_plain_password": 'a"\\Ж',
    }
    assert config.java().isascii()
    assert parse_properties(config.java()) == {
        "bootstrap.servers": "h:1",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": (
            'org.apache.kafka.common.security.plain.PlainLoginModule required username="al" password="a\\"\\\\Ж";'
        ),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": ca,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": own.certificate,
        "ssl.keystore.key": own.key,
    }
    assert ClientConfig("h:1").aiokafka() == {"bootstrap_servers": "h:1", "security_protocol": "PLAINTEXT"}


async def consumed_by_confluent_kafka(config: ClientConfig, topic: str) -> bytes:
    """Return the first value of a topic, read by librdkafka as a member of a group."""
    from confluent_kafka import Consumer

    consumer = Consumer({**config.confluent(), "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    (message,) = await asyncio.to_thread(consumer.consume, 1, 60)
    await asyncio.to_thread(consumer.close)
    assert message.error() is None
    return message.value() or b""


async def consumed_by_aiokafka(config: ClientConfig, topic: str) -> bytes:
    """Return the first value of a topic, read by aiokafka as a member of a group."""
    import aiokafka

    consumer = aiokafka.AIOKafkaConsumer(topic, group_id=topic, auto_offset_reset="earliest", **config.aiokafka())
    async with consumer, asyncio.timeout(60):
        value: bytes = (await consumer.getone()).value
        return value


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("write", LIBRARIES)
async def test_each_library_comes_in(
    diamant_secure_broker: BlockingBroker, diamant_topic: str, mechanism: str, write: Write
) -> None:
    """Each library authenticates and writes."""
    await write(diamant_secure_broker.client_config("alice", mechanism=mechanism), diamant_topic)


@pytest.mark.slow
@pytest.mark.parametrize("consume", [consumed_by_confluent_kafka, consumed_by_aiokafka])
async def test_members_of_groups_come_in(
    diamant_secure_broker: BlockingBroker, diamant_topic: str, consume: Callable[[ClientConfig, str], Awaitable[bytes]]
) -> None:
    """Members of groups authenticate also at the coordinator, and read."""
    config = diamant_secure_broker.client_config("bob")
    await by_confluent_kafka(config, diamant_topic)
    assert await consume(config, diamant_topic) == b"value"


@pytest.mark.slow
def test_confluent_kafka_is_told_why_it_is_refused(diamant_secure_broker: BlockingBroker) -> None:
    """With a wrong password, confluent-kafka gets the broker's error text."""
    from confluent_kafka import KafkaError, Producer

    errors: list[KafkaError] = []
    wrong = diamant_secure_broker.client_config("alice", password="wrong").confluent()
    refused = Producer({**wrong, "error_cb": errors.append, "log_level": 0})
    while not errors:
        refused.poll(0.1)
    assert errors[0].code() == KafkaError._AUTHENTICATION
    assert "Authentication failed" in errors[0].str()
