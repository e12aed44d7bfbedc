"""Sessions at a running broker: expiry by its clock, tokens of real clients, and users that are added and removed."""

from __future__ import annotations

import json
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from diamant.broker.broker import BlockingBroker, Broker
from diamant.broker.security.sasl.scram_keys import SCRAM_MECHANISMS, make_credential
from diamant.protocol.kraft.records import RemoveUserScramCredentialRecord
from tests.broker.security.sasl.sasl_wire import ALICE, SaslClient, scram_final
from tests.broker.wire import METADATA, WireClient

LISTEN = "SASL_PLAINTEXT://127.0.0.1:0"


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    """A broker with one user."""
    async with Broker(listen=LISTEN, data_dir=tmp_path, users={"alice": "secret"}) as running:
        yield running


async def test_a_session_ends_by_the_broker_s_clock(tmp_path: Path) -> None:
    """A client that re-authenticates in time stays connected. Otherwise its next request closes the connection."""
    settings = {"connections_max_reauth_ms": 60_000, "diamant_clock": "manual"}
    async with Broker(listen=LISTEN, data_dir=tmp_path, users={"alice": "secret"}, **settings) as broker:
        await broker.clock.freeze()
        async with WireClient(broker.bootstrap_servers) as first, WireClient(broker.bootstrap_servers) as second:
            late, in_time = SaslClient(first), SaslClient(second)
            for client in (late, in_time):
                await client.handshake()
                assert await client.authenticate(ALICE) == (0, "", b"", 60_000)
            await broker.clock.advance("50s")
            assert (await in_time.handshake())[0] == 0
            assert await in_time.authenticate(ALICE) == (0, "", b"", 60_000)
            await broker.clock.advance("50s")
            assert await in_time.is_served()
            first.send(METADATA, 1, {"topics": []})
            assert await first.is_closed()


async def test_a_user_that_is_removed_keeps_a_session_and_gets_no_other(broker: Broker) -> None:
    """As in Kafka, credentials are looked up only when a client authenticates."""
    async with WireClient(broker.bootstrap_servers) as wire, WireClient(broker.bootstrap_servers) as other:
        client = SaslClient(wire)
        assert await log_in_by_scram(client) == 0
        broker.node.metadata.append([RemoveUserScramCredentialRecord(name="alice", mechanism=1)])
        assert await client.is_served()
        assert await log_in_by_scram(SaslClient(other)) == 58


async def test_iterations_do_not_tell_who_is_a_user(broker: Broker) -> None:
    """From the next login on, unknown users get the most common iterations of existing users."""

    async def told(user: str) -> bytes:
        async with WireClient(broker.bootstrap_servers) as wire:
            client = SaslClient(wire)
            await client.handshake("SCRAM-SHA-256")
            await client.authenticate(f"n,,n={user},r=abc".encode())
            return client.token.rpartition(b",i=")[2]

    assert [await told("alice"), await told("zoe")] == [b"4096", b"4096"]
    mechanism = SCRAM_MECHANISMS["SCRAM-SHA-256"]
    broker.node.metadata.append([make_credential(mechanism, user, "secret", 8192) for user in ("alice", "bob")])
    assert [await told("alice"), await told("zoe")] == [b"8192", b"8192"]


async def log_in_by_scram(client: SaslClient) -> int:
    """Return the error code of a login as alice."""
    await client.handshake("SCRAM-SHA-256")
    first = "n=alice,r=abc"
    await client.authenticate(f"n,,{first}".encode())
    return (await client.authenticate(scram_final(first, client.token.decode(), "secret")))[0]


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A key, and the file with its public half."""
    key = ec.generate_private_key(ec.SECP256R1())
    path = tmp_path_factory.mktemp("issuer") / "jwks.json"
    public = json.loads(jwt.get_algorithm_by_name("ES256").to_jwk(key.public_key()))
    path.write_text(json.dumps({"keys": [{**public, "kid": "k"}]}))
    return key, path


def token_of(key: Any, user: str, **claims: Any) -> str:
    """Return a token for Kafka, valid for five minutes."""
    now_s = int(time.time())
    return jwt.encode(
        {"sub": user, "aud": "kafka", "iat": now_s, "exp": now_s + 300, **claims},
        key,
        algorithm="ES256",
        headers={"kid": "k"},
    )


@pytest.fixture
def with_tokens(tmp_path: Path, issuer: Any) -> Any:
    """A broker that accepts tokens of the issuer."""
    properties = {
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": f"file://{issuer[1]}",
        "sasl.oauthbearer.expected.audience": "kafka",
    }
    with Broker(listen=LISTEN, data_dir=tmp_path, properties=properties) as running:
        yield running


@pytest.mark.slow
def test_confluent_kafka_comes_in_with_a_token(with_tokens: BlockingBroker, issuer: Any) -> None:
    """A token for another audience is refused."""
    from confluent_kafka import KafkaError, Producer

    def config(**claims: Any) -> dict[str, Any]:
        return {
            "bootstrap.servers": with_tokens.bootstrap_servers,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "oauth_cb": lambda _: (token_of(issuer[0], "alice", **claims), time.time() + 300),
            "log_level": 0,
        }

    producer = Producer(config())
    producer.produce("t", b"value")
    assert producer.flush(60) == 0
    errors: list[KafkaError] = []
    refused = Producer({**config(aud="other"), "error_cb": errors.append})
    while not errors:
        refused.poll(0.1)
    assert errors[0].code() == KafkaError._AUTHENTICATION
    assert "invalid_token" in errors[0].str()


@contextmanager
def token_server(issue: Callable[[str], str]) -> Iterator[str]:
    """The URL of a server that returns the token `issue(path)` to the client id `alice` with the secret `secret`."""

    class Tokens(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = self.rfile.read(int(self.headers["Content-Length"]))
            is_known = self.headers["Authorization"] == f"Basic {b64encode(b'alice:secret').decode()}"
            is_right = is_known and b"grant_type=client_credentials" in asked
            answer = {"access_token": issue(self.path), "token_type": "bearer", "expires_in": 300}
            self.send_response(200 if is_right else 401)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(answer if is_right else {"error": "invalid_client"}).encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Tokens) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.slow
def test_librdkafka_fetches_its_token_by_oidc(with_tokens: BlockingBroker, issuer: Any) -> None:
    """The client uses the client credentials of a token server. A token for another audience is refused."""
    from confluent_kafka import KafkaError, Producer

    def config(url: str) -> dict[str, Any]:
        return {
            "bootstrap.servers": with_tokens.bootstrap_servers,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": "alice",
            "sasl.oauthbearer.client.secret": "secret",
            "sasl.oauthbearer.token.endpoint.url": url,
            "log_level": 0,
        }

    def error_of(refused: dict[str, Any]) -> KafkaError:
        errors: list[KafkaError] = []
        producer = Producer({**refused, "error_cb": errors.append})
        while not errors:
            producer.poll(0.1)
        return errors[0]

    with token_server(lambda path: token_of(issuer[0], "alice", aud=path[1:])) as url:
        producer = Producer(config(f"{url}/kafka"))
        producer.produce("by-oidc", b"value")
        assert producer.flush(60) == 0
        assert error_of(config(f"{url}/other")).code() == KafkaError._AUTHENTICATION


@pytest.mark.slow
async def test_aiokafka_comes_in_with_a_token(with_tokens: BlockingBroker, issuer: Any) -> None:
    """The client aiokafka authenticates with a token and writes."""
    import aiokafka
    from aiokafka.abc import AbstractTokenProvider

    class Tokens(AbstractTokenProvider):
        async def token(self) -> str:
            return token_of(issuer[0], "bob")

    async with aiokafka.AIOKafkaProducer(
        bootstrap_servers=with_tokens.bootstrap_servers,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="OAUTHBEARER",
        sasl_oauth_token_provider=Tokens(),
    ) as producer:
        assert (await producer.send_and_wait("t", b"value")).offset == 0
