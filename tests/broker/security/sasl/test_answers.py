"""Sequences of requests at a SASL listener, answered as Apache Kafka 4.3.1 answers them.

What is expected was asked of a Kafka with the same users and mechanisms; where we differ, the test says so.
"""

from __future__ import annotations

import struct
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.protocol.wire.schemas import encode_request_fields
from tests.broker.security.sasl.sasl_wire import (
    ALICE,
    PROPERTIES,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    SaslClient,
    bearer,
    scram_final,
    unsigned_token,
)
from tests.broker.wire import (
    FETCH,
    FIND_COORDINATOR,
    LIST_OFFSETS,
    METADATA,
    PRODUCE,
    WireClient,
    batch_of,
    fetch_fields,
    produce_fields,
)

ALL = ["OAUTHBEARER", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
ILLEGAL_SASL_STATE, UNSUPPORTED_SASL_MECHANISM, SASL_AUTHENTICATION_FAILED = 34, 33, 58
ALREADY = "SaslAuthenticate request received after successful authentication"
WRONG = "Authentication failed: Invalid username or password"


@pytest.fixture(scope="module")
def addresses() -> Iterator[list[str]]:
    """The addresses of a broker's listeners, with SASL and without. It has users for PLAIN, and others for SCRAM."""
    listen = PROPERTIES["listeners"].split(",")
    with Broker(listen=listen, properties=PROPERTIES, users={"carol": "pw", "o,x=": "pw"}) as running:
        yield running.bootstrap_servers.split(",")


@pytest.fixture
async def client(addresses: list[str]) -> AsyncIterator[SaslClient]:
    """A connection to the SASL listener."""
    async with WireClient(addresses[0]) as wire:
        yield SaslClient(wire)


async def test_after_the_handshake_and_the_token_everything_is_served(client: SaslClient) -> None:
    """The handshake lists the mechanisms, and the response to a valid PLAIN token is empty."""
    assert await client.api_versions(3) == 0
    assert await client.handshake() == (0, ALL)
    assert await client.authenticate(ALICE) == (0, "", b"", 0)
    assert await client.is_served()
    assert await client.api_versions() == 0


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_a_bad_plain_token_is_reported_in_kafka_s_words(client: SaslClient, version: int) -> None:
    """The connection is closed."""
    await client.handshake()
    assert await client.authenticate(b"\0alice\0x", version) == (SASL_AUTHENTICATION_FAILED, WRONG, b"", 0)
    assert await client.wire.is_closed()


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("mechanism", ["NOPE", "plain", "GSSAPI", "", "P" * 3000])
async def test_an_unknown_mechanism_is_answered_with_the_known_ones(
    client: SaslClient, version: int, mechanism: str
) -> None:
    """Names are case-sensitive."""
    assert await client.handshake(mechanism, version) == (UNSUPPORTED_SASL_MECHANISM, ALL)
    assert await client.wire.is_closed()


@pytest.mark.parametrize(
    ("api_key", "version", "body"),
    [
        (METADATA, 1, b"\0\0\0\0"),
        (SASL_AUTHENTICATE, 1, struct.pack(">i", len(ALICE)) + ALICE),
        (SASL_HANDSHAKE, 2, b"\0\5PLAIN"),
        (999, 0, b""),
        (0, 9, b"\xff" * 100),
    ],
)
@pytest.mark.parametrize("is_asked_first", [False, True])
async def test_nothing_else_is_served_before_the_handshake(
    client: SaslClient, api_key: int, version: int, body: bytes, is_asked_first: bool
) -> None:
    """The connection is closed without a response, even after ApiVersions."""
    if is_asked_first:
        assert await client.api_versions() == 0
    client.wire.writer.write(client.wire.frame(api_key, version, body))
    assert await client.wire.is_closed()


async def test_a_second_handshake_in_place_of_a_token_is_an_illegal_state(client: SaslClient) -> None:
    """The response has no mechanisms."""
    await client.handshake()
    assert await client.handshake() == (ILLEGAL_SASL_STATE, [])
    assert await client.wire.is_closed()


async def test_api_versions_in_place_of_a_token_is_an_illegal_state(client: SaslClient) -> None:
    """Before the handshake it is served: once by Kafka, any number of times here."""
    assert [await client.api_versions(), await client.api_versions(3)] == [0, 0]
    await client.handshake()
    assert await client.api_versions() == ILLEGAL_SASL_STATE
    assert await client.wire.is_closed()


NO_OFFSETS = "ffffffffffffffff" * 3
UNEXPECTED = b"Unexpected Kafka request of type PRODUCE during SASL authentication.".hex()
NOT_VALID = b"Request is not valid given the current SASL state.".hex()
HEARTBEAT, LIST_GROUPS = 12, 16


@pytest.mark.parametrize(
    ("key", "version", "fields", "answer"),
    [
        (METADATA, 0, {"topics": [{"name": "t"}]}, "0000000000000001002200017400000000"),
        (METADATA, 9, {"topics": [{"name": "t"}]}, "00000000000100ffffffff0200220274000180000000008000000000"),
        (
            METADATA,
            12,
            {"topics": [{"name": "t"}]},
            "00000000000100ffffffff0200220274000000000000000000000000000000000001800000000000",
        ),
        (
            PRODUCE,
            9,
            produce_fields("t", 0, batch_of([b"x"])),
            f"0002027402000000000022{NO_OFFSETS}0145{UNEXPECTED}00000000000000",
        ),
        (
            FETCH,
            11,
            fetch_fields("t", 0),
            f"000000000022000000000000000100017400000001000000000022{NO_OFFSETS}00000000ffffffff00000000",
        ),
        (FIND_COORDINATOR, 3, {"key": "g", "key_type": 0}, f"0000000000002233{NOT_VALID}ffffffff01ffffffff00"),
        (LIST_OFFSETS, 7, {"replica_id": -1, "isolation_level": 0, "topics": []}, "00000000000100"),
        (LIST_GROUPS, 4, {"states_filter": []}, "000000000000220100"),
        (
            HEARTBEAT,
            4,
            {"group_id": "g", "generation_id": 1, "member_id": "m", "group_instance_id": None},
            "0000000000002200",
        ),
    ],
)
async def test_another_request_in_place_of_a_token_is_an_illegal_state(
    client: SaslClient, key: int, version: int, fields: dict[str, Any], answer: str
) -> None:
    """Such a request is answered in its own format, byte for byte as by Kafka 4.3.1, and the connection is closed."""
    await client.handshake()
    client.wire.send(key, version, fields)
    _, body = await client.wire.receive_frame()
    assert body.hex() == answer
    assert await client.wire.is_closed()


@pytest.mark.parametrize(
    ("key", "version", "body"),
    [
        (PRODUCE, 9, encode_request_fields(PRODUCE, 9, produce_fields("t", 0, batch_of([b"x"]), acks=0))),
        (METADATA, 99, b""),
        (METADATA, 9, b"\xff\xff\xff"),
        (999, 0, b""),
    ],
    ids=["acks=0", "unknown version", "broken", "unknown API"],
)
async def test_a_request_without_an_answer_in_place_of_a_token_closes_the_connection(
    client: SaslClient, key: int, version: int, body: bytes
) -> None:
    """Produce with acks=0, unknown versions and APIs, and bytes that are no request."""
    await client.handshake()
    client.wire.writer.write(client.wire.frame(key, version, body))
    assert await client.wire.is_closed()


async def test_tokens_without_a_header_follow_handshake_0(client: SaslClient) -> None:
    """Old clients send tokens so (KIP-43). Later requests have headers again."""
    assert await client.handshake(version=0) == (0, ALL)
    assert await client.bare(ALICE) == b""
    assert await client.is_served()


async def test_a_bad_token_without_a_header_closes_the_connection(client: SaslClient) -> None:
    """The format has no field for an error."""
    await client.handshake(version=0)
    client.wire.writer.write(struct.pack(">i", 8) + b"\0alice\0x")
    assert await client.wire.is_closed()


async def test_bytes_right_behind_the_old_handshake_close_the_connection(client: SaslClient) -> None:
    """The client could not know how the broker would read them."""
    wire = client.wire
    wire.writer.write(wire.frame(SASL_HANDSHAKE, 0, b"\0\5PLAIN") + b"\0\0")
    assert await wire.is_closed()


@pytest.mark.parametrize("size", [8193, -1, 0, 1 << 30])
async def test_frames_are_small_before_authentication(client: SaslClient, size: int) -> None:
    """More than `sasl.server.max.receive.size`, or none at all, ends the connection."""
    client.wire.writer.write(struct.pack(">i", size))
    assert await client.wire.is_closed()


async def test_frames_may_be_large_after_authentication(client: SaslClient) -> None:
    """After authentication, frames are limited by `socket.request.max.bytes`."""
    await client.handshake()
    await client.authenticate(ALICE)
    answer = await client.wire.call(METADATA, 1, {"topics": [{"name": "t" * 249}] * 100})
    assert len(answer.topics) >= 1


async def test_the_two_are_refused_once_the_client_is_known(client: SaslClient) -> None:
    """The connection stays open."""
    await client.handshake()
    await client.authenticate(ALICE)
    assert await client.handshake() == (ILLEGAL_SASL_STATE, [])
    assert await client.authenticate(ALICE) == (ILLEGAL_SASL_STATE, ALREADY, b"", 0)
    assert await client.is_served()


async def test_the_two_are_refused_on_a_listener_without_sasl(addresses: list[str]) -> None:
    """The error text is that for authenticated clients, as in Kafka."""
    async with WireClient(addresses[1]) as wire:
        client = SaslClient(wire)
        assert await client.handshake("NOPE", 0) == (ILLEGAL_SASL_STATE, [])
        assert await client.authenticate(ALICE) == (ILLEGAL_SASL_STATE, ALREADY, b"", 0)
        assert await client.is_served()


@pytest.mark.parametrize(
    ("mechanism", "hash_name", "name", "header"),
    [("SCRAM-SHA-256", "sha256", "carol", "n,a=carol,"), ("SCRAM-SHA-512", "sha512", "o=2Cx=3D", "n,,")],
)
async def test_scram_proves_both_sides(
    client: SaslClient, mechanism: str, hash_name: str, name: str, header: str
) -> None:
    """Commas and equal signs in names are escaped."""
    await client.handshake(mechanism)
    first = f"n={name},r=abc"
    code, _, answer, _ = await client.authenticate((header + first).encode())
    assert code == 0
    final = scram_final(first, answer.decode(), "pw", hash_name, header)
    code, message, token, _ = await client.authenticate(final)
    assert (code, message, token[:2]) == (0, "", b"v=")
    assert await client.is_served()


async def test_an_unsigned_token_lets_in_where_that_is_configured(client: SaslClient) -> None:
    """The session lasts as long as the token."""
    await client.handshake("OAUTHBEARER")
    now_s = int(time.time())
    code, message, token, lifetime_ms = await client.authenticate(bearer(unsigned_token(sub="alice", exp=now_s + 100)))
    assert (code, message, token) == (0, "", b"")
    assert 90_000 < lifetime_ms <= 100_000
    assert await client.is_served()


async def test_a_token_that_is_refused_is_answered_without_an_error_first(client: SaslClient) -> None:
    """As in RFC 7628, the client learns the reason, sends ^A, and fails with the same text."""
    await client.handshake("OAUTHBEARER")
    refusal = '{"status":"invalid_token"}'
    assert await client.authenticate(bearer(unsigned_token(sub="alice", exp=1))) == (0, "", refusal.encode(), 0)
    assert await client.authenticate(b"\x01") == (SASL_AUTHENTICATION_FAILED, refusal, b"", 0)
    assert await client.wire.is_closed()
