"""SASL configurations that cannot be served: the broker gives the reason and does not start."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from confluent_kafka import KafkaException

from diamant.broker.broker import Broker
from diamant.broker.cannot_start import CannotStart
from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.security.sasl.mechanism import AuthenticationFailed
from diamant.broker.security.sasl.sasl_listeners import SaslListeners
from diamant.broker.security.sasl.session import SaslState
from diamant.protocol.errors import ErrorCode
from diamant.storage.config_key import ConfigError
from tests.broker.security.altering import APPEND, SET, alter
from tests.broker.security.sasl.sasl_wire import HANDLER, NAME, PLAIN_MODULE, UNSECURED

OTHER_JAVA = "com.example.Handler"


def listeners_of(properties: dict[str, str], users: dict[str, str] | None = None) -> SaslListeners:
    """Return the SASL listeners of one SASL_PLAINTEXT listener."""
    return SaslListeners(BrokerConfig(properties={"listeners": "SASL_PLAINTEXT://:0", **properties}, users=users))


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        (
            {},
            "sasl.enabled.mechanisms is not set. Kafka's default is GSSAPI (Kerberos), which Diamant does not support",
        ),
        ({"sasl.enabled.mechanisms": "GSSAPI"}, "does not support GSSAPI (Kerberos), only PLAIN, SCRAM-SHA-256,"),
        (
            {
                "sasl.enabled.mechanisms": "PLAIN,GSSAPI",
                f"{NAME}.plain.sasl.jaas.config": f'{PLAIN_MODULE} user_a="b";',
            },
            "GSSAPI",
        ),
        ({"sasl.enabled.mechanisms": "DIGEST-MD5"}, "does not support DIGEST-MD5"),
        (
            {f"{NAME}.sasl.enabled.mechanisms": "plain"},
            f"{NAME}.sasl.enabled.mechanisms: Diamant does not support plain",
        ),
        ({"sasl.enabled.mechanisms": ""}, "needs one of PLAIN"),
        (
            {"sasl.enabled.mechanisms": "PLAIN"},
            "offers PLAIN, and no users are set. Set listener.name.sasl_plaintext.plain",
        ),
        (
            {"sasl.enabled.mechanisms": "PLAIN", "sasl.jaas.config": f'{PLAIN_MODULE} user_a="hush";'},
            f"sasl.jaas.config is for clients. A broker sets it for each listener and mechanism, as in Kafka: {NAME}.plain.sasl",
        ),
        (
            {"sasl.enabled.mechanisms": "PLAIN", f"{NAME}.plain.sasl.jaas.config": 'a.B required user_a="hush";'},
            "the login module of PLAIN is org.apache.kafka.common.security.plain.PlainLoginModule, not a.B",
        ),
        (
            {"sasl.enabled.mechanisms": "PLAIN", f"{NAME}.plain.sasl.jaas.config": f'{PLAIN_MODULE} user_a="hush'},
            '(line 1, column 73): the quote " is not closed',
        ),
        (
            {
                "sasl.enabled.mechanisms": "SCRAM-SHA-256",
                f"{NAME}.scram-sha-256.sasl.server.callback.handler.class": OTHER_JAVA,
            },
            "Diamant runs no Java",
        ),
        ({"sasl.enabled.mechanisms": "OAUTHBEARER"}, "set sasl.oauthbearer.jwks.endpoint.url to the file"),
        ({"sasl.enabled.mechanisms": "OAUTHBEARER", HANDLER: OTHER_JAVA}, f"{HANDLER}: Diamant runs no Java"),
        (
            {"sasl.enabled.mechanisms": "OAUTHBEARER", f"{NAME}.sasl.oauthbearer.jwks.endpoint.url": "file:///no/keys"},
            f"{NAME}.sasl.oauthbearer.jwks.endpoint.url: /no/keys: No such file",
        ),
    ],
)
def test_a_configuration_that_cannot_be_is_reported(properties: dict[str, str], reason: str) -> None:
    """The error has the names of settings, and no passwords."""
    with pytest.raises(ConfigError) as caught:
        listeners_of(properties)
    assert reason in str(caught.value)
    assert "hush" not in str(caught.value)


async def test_the_broker_does_not_start_then(tmp_path: Path) -> None:
    """The broker does not start, and its directory is not created."""
    config = BrokerConfig(listen="SASL_PLAINTEXT://127.0.0.1:0", data_dir=tmp_path / "data")
    with pytest.raises(CannotStart, match="mechanisms is not set"):
        async with Broker(config):
            pass
    assert not (tmp_path / "data").exists()


def test_users_are_those_of_the_login_module_and_of_the_configuration() -> None:
    """For a user in both, the listener's login module wins. Without configured mechanisms, the password mechanisms are on."""
    listeners = listeners_of(
        {f"{NAME}.plain.sasl.jaas.config": f'{PLAIN_MODULE} username="u" password="p" user_alice="1" user_="2";'},
        users={"alice": "3", "bob": "4"},
    )
    for token, is_right in [
        (b"\0alice\x001", True),
        (b"\0alice\x003", False),
        (b"\0bob\x004", True),
        (b"\0u\0p", False),
    ]:
        session = listeners.session("SASL_PLAINTEXT")
        assert session.handshake(1, "PLAIN") == (ErrorCode.NONE, ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
        session.authenticate(token)
        assert (session.state is SaslState.COMPLETE) == is_right


def test_kafka_s_names_of_classes_are_taken(tmp_path: Path) -> None:
    """Kafka's own handlers are accepted by name, and login modules of mechanisms that need none here."""
    security = "org.apache.kafka.common.security"
    listeners = listeners_of(
        {
            "sasl.enabled.mechanisms": "SCRAM-SHA-512,OAUTHBEARER",
            f"{NAME}.scram-sha-512.sasl.jaas.config": f'{security}.scram.ScramLoginModule required username="u" password="p";',
            f"{NAME}.scram-sha-512.sasl.server.callback.handler.class": f"{security}.scram.internals.ScramServerCallbackHandler",
            f"{NAME}.oauthbearer.sasl.jaas.config": (
                f'{security}.oauthbearer.OAuthBearerLoginModule required unsecuredValidatorPrincipalClaimName="name";'
            ),
            HANDLER: UNSECURED,
        }
    )
    assert listeners.session("SASL_PLAINTEXT").handshake(1, "X")[1] == ["SCRAM-SHA-512", "OAUTHBEARER"]


def test_the_time_of_a_session_may_differ_by_mechanism() -> None:
    """`listener.name.NAME.MECHANISM.connections.max.reauth.ms` wins, then the listener's, then the broker's."""
    listeners = listeners_of(
        {"connections.max.reauth.ms": "1000", f"{NAME}.plain.connections.max.reauth.ms": "2000"}, users={"a": "b"}
    )
    session = listeners.session("SASL_PLAINTEXT")
    session.handshake(1, "PLAIN")
    assert session.authenticate(b"\0a\0b").session_lifetime_ms == 2000
    exchange = listeners._mechanisms["SASL_PLAINTEXT"]["SCRAM-SHA-256"]
    assert exchange.max_reauth_ms == 1000
    with pytest.raises(AuthenticationFailed):
        exchange.begin().respond(b"nonsense")


async def test_a_change_that_would_prevent_the_next_start_is_refused() -> None:
    """Kafka accepts it and does not start again. A valid value is stored and takes effect at the next start."""
    name = "sasl.enabled.mechanisms"
    async with Broker(users={"alice": "secret"}) as broker:
        config = broker.client_config("alice")
        client = {key.replace(".", "_"): value for key, value in config.confluent().items()}
        address = client.pop("bootstrap_servers")
        for operation, value in ((SET, "GSSAPI,PLAIN"), (APPEND, "DIGEST-MD5")):
            with pytest.raises(KafkaException, match="does not support GSSAPI"):
                await alter(address, name, value, operation, **client)
        await alter(address, name, "SCRAM-SHA-256", **client)
        await asyncio.to_thread(config.check)
