"""docker/secure.properties: a broker that starts with it lets in who has the password, over TLS, and no one else."""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from diamant import Broker
from diamant.broker.config.broker_config import BrokerConfig, read_properties
from tests.broker.security.tls.certificates import authority, of_broker
from tests.documentation.docker_image import ROOT

PASSWORD, TOKEN = "correct-horse-battery", "t" * 40


def settings(directory: Path) -> dict[str, str]:
    """Return the file's settings, with its places in a directory of the test's and free ports on loopback."""
    for name in ("secrets", "keys"):
        (directory / name).mkdir()
    (directory / "secrets" / "broker.pem").write_text(of_broker().certificate + of_broker().key)
    (directory / "secrets" / "tokens").write_text(f"admin:{TOKEN}\n")
    found = read_properties(str(ROOT / "docker" / "secure.properties"))
    for name, value in found.items():
        for place in ("/secrets/", "/keys/"):
            value = value.replace(place, f"{directory}{place}") if value.startswith(place) else value
        found[name] = value.replace("0.0.0.0", "127.0.0.1").replace(":9092", ":0").replace(":9644", ":0")
    return found


def can_log_in(address: str, password: str) -> bool:
    """Log in as admin with librdkafka."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    config = {
        "bootstrap.servers": address.replace("127.0.0.1", "localhost"),
        "security.protocol": "SASL_SSL",
        "ssl.ca.pem": authority().certificate,
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "admin",
        "sasl.password": password,
        "log_level": 0,
    }
    try:
        return bool(AdminClient(config).list_topics(timeout=20 if password == PASSWORD else 1).brokers)
    except KafkaException:
        return False


@pytest.mark.slow
def test_the_secure_container_keeps_strangers_out(tmp_path: Path) -> None:
    """By Kafka's protocol a password is needed, over HTTP a token; both have the certificate of the file."""
    properties = settings(tmp_path)
    config = BrokerConfig(data_dir=tmp_path / "data", properties=properties, users={"admin": PASSWORD})
    with Broker(config) as broker:
        assert [listener.security_protocol for listener in broker.config.listeners] == ["SASL_SSL"]
        context = ssl.create_default_context(cadata=authority().certificate)

        def status(headers: dict[str, str]) -> int:
            url = f"{broker.http_url}/v1/status".replace("127.0.0.1", "localhost")
            request = urllib.request.Request(url, headers=headers)
            try:
                with urllib.request.urlopen(request, context=context, timeout=30) as answer:
                    return int(answer.status)
            except urllib.error.HTTPError as error:
                error.close()
                return error.code

        assert status({}) == 401
        assert status({"Authorization": f"Bearer {TOKEN}"}) == 200
        assert can_log_in(broker.bootstrap_servers, PASSWORD)
        assert not can_log_in(broker.bootstrap_servers, "wrong")


def test_the_documents_name_what_it_needs() -> None:
    """Each file that it reads is made by a line of docker/README.md."""
    text = (ROOT / "docker" / "README.md").read_text()
    for name in ("broker.pem", "tokens", "admin.password", "secure.properties"):
        assert name in text
