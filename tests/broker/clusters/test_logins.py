"""Erasures by users who log in as a properties file of Kafka's own tools says: a token over TLS, and a certificate."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from diamant.broker.broker import Broker
from diamant.broker.client.client_properties import configured
from diamant.broker.client.kafka_client import KafkaClient
from diamant.broker.client.kafka_connection import ConnectionFailed
from diamant.broker.clusters.operations import erase
from diamant.broker.clusters.register import Register
from diamant.broker.config.broker_config import BrokerConfig
from tests.broker.clusters.any_cluster import OLD_MS, AnyCluster
from tests.broker.security.sasl.sasl_wire import unsigned_token
from tests.broker.security.tls.certificates import authority, broker_properties, of_client, written
from tests.waiting import PATIENCE_S

KEY = b"customer-42"
LISTENERS = ["PLAINTEXT://127.0.0.1:0", "SASL_SSL://127.0.0.1:0", "SSL://127.0.0.1:0"]
UNSECURED = (
    "org.apache.kafka.common.security.oauthbearer.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"
)
SETTINGS = {
    **broker_properties(),
    "listener.name.ssl.ssl.client.auth": "required",
    "sasl.enabled.mechanisms": "OAUTHBEARER",
    "listener.name.sasl_ssl.oauthbearer.sasl.server.callback.handler.class": UNSECURED,
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS;User:alice;User:CN=alice",
}


def properties_of(directory: Path, how: str) -> list[str]:
    """The lines of the properties file; its other files are in `directory`."""
    (directory / "ca.pem").write_text(authority().certificate)
    trust = ["ssl.truststore.type=PEM", f"ssl.truststore.location={directory}/ca.pem"]
    if how == "certificate":
        own = written(directory, of_client())
        return ["security.protocol=SSL", *trust, "ssl.keystore.type=PEM", f"ssl.keystore.location={own}"]
    (directory / "token").write_bytes(unsigned_token(sub="alice", exp=time.time() + 3600))
    url = f"sasl.oauthbearer.token.endpoint.url=file://{directory}/token"
    return ["security.protocol=SASL_SSL", *trust, "sasl.mechanism=OAUTHBEARER", url]


@pytest.mark.parametrize("how", ["token", "certificate"])
def test_a_properties_file_is_enough(tmp_path: Path, register: Register, how: str) -> None:
    """The user's own name counts for the rights; without TLS no connection comes about."""
    config = BrokerConfig(
        listen=LISTENERS, data_dir=tmp_path / "data", properties=SETTINGS, log_cleaner_backoff_ms=20, node_id=1
    )
    file = tmp_path / "client.properties"
    with Broker(config) as broker:
        plain, token, certificate = broker.bootstrap_servers.split(",")
        address = (token if how == "token" else certificate).replace("127.0.0.1", "localhost")
        with AnyCluster(plain) as cluster:
            cluster.create("secured")
            cluster.produce("secured", [(KEY, b"old"), (b"other", b"1")], timestamp_ms=OLD_MS)
            file.write_text("\n".join(properties_of(tmp_path, how)))
            _, login, tls = configured(str(file), address)
            with KafkaClient(address, timeout_s=PATIENCE_S, login=login, tls=tls) as client:
                found = erase(client, KEY, ["secured"], reason="asked", timeout_s=120.0, register=register)
            assert (found["missing"], found["state"]) == ({}, "unreadable")
            assert not [one for one in cluster.held("secured") if one.key == KEY and one.value]
        with KafkaClient(address, timeout_s=PATIENCE_S) as client, pytest.raises(ConnectionFailed):
            client.topics()
