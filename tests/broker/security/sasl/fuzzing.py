"""Frames of clients that have not authenticated, made at random: millions of them, in process.

Strategy: connections of up to `MAX_FRAMES` frames, seven in ten with a handshake first; then noise, a header with noise, or a
request of SASL with a token that is good but for some bytes, or good but for its order. Invariants: only ApiVersions,
SaslHandshake and SaslAuthenticate are ever decoded; nothing but a ProtocolError or a CloseConnection comes out; a client is let
in only by the password, and not before; memory stays as it was.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import struct
import tempfile
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jwt
from cryptography.hazmat.primitives.asymmetric import ed25519

from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.dispatch.api_table import TABLE, functions
from diamant.broker.dispatch.dispatcher import Dispatcher, Handler
from diamant.broker.network.api import CloseConnection, ConnectionInfo, Decode
from diamant.broker.network.request_memory import RequestQueue
from diamant.broker.network.sasl_gate import SaslGate
from diamant.broker.node.flusher import Flusher
from diamant.broker.security.sasl.sasl_listeners import SaslListeners
from diamant.broker.security.sasl.scram_keys import SCRAM_MECHANISMS, make_credential
from diamant.protocol.errors import ProtocolError
from diamant.protocol.wire.server_connection import ServerConnection
from diamant.protocol.wire.token_frames import TokenFrames
from tests.broker.security.sasl.sasl_wire import ALICE, PROPERTIES, bearer, unsigned_token

API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE = 18, 17, 36
ALLOWED = {API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE}
MAX_FRAMES = 12
MAX_NOISE = 300
NOW_S = 1_700_000_000
MECHANISMS = [b"PLAIN", b"SCRAM-SHA-256", b"SCRAM-SHA-512", b"OAUTHBEARER", b"GSSAPI", b"", b"\xff" * 9]


class Figures(NamedTuple):
    """The account of a run."""

    connections: int
    authenticated: int
    decoded: Counter[int]
    resident_bytes: list[int]
    """At the start of each tenth, and at the end."""


class Connected:
    """A connection, as far as a gate needs one."""

    def __init__(self, scratch: bytearray) -> None:
        self.info = ConnectionInfo("SASL_PLAINTEXT", "127.0.0.1:1", "127.0.0.1", "127.0.0.1", 1, "SASL_PLAINTEXT")
        self.frames: ServerConnection | TokenFrames = ServerConnection(max_frame_bytes=1 << 20, scratch=scratch)
        self.queue = RequestQueue(None, lambda: None)

    def send(self, data: bytes) -> None:
        """Bare answers go nowhere."""


class Server:
    """The dispatcher's place."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.dispatch = dispatcher


async def fuzz(frames: int, seed: int) -> Figures:
    """Send `frames` frames; AssertionError if an invariant is broken."""
    generator = random.Random(seed)
    decoded: Counter[int] = Counter()
    with tempfile.TemporaryDirectory() as directory:
        listeners, tokens = _listeners(Path(directory))
        server = Server(Dispatcher(Flusher(asyncio.get_running_loop()), TABLE.keys(), partial(_load, decoded)))
        scratch, resident, sent, connections, authenticated = bytearray(65536), [], 0, 0, 0
        while sent < frames:
            if sent >= len(resident) * frames // 10:
                resident.append(_resident_bytes())
            connection = Connected(scratch)
            gate = SaslGate(connection, server, listeners)
            sent += _talk(generator, connection, gate, tokens)
            connections += 1
            authenticated += gate.session.principal is not None
            if connections % 64 == 0:
                await asyncio.sleep(0)
    resident.append(_resident_bytes())
    return Figures(connections, authenticated, decoded, resident)


def _listeners(directory: Path) -> tuple[SaslListeners, list[bytes]]:
    """Listeners with all mechanisms, and tokens that their clients might send."""
    key = ed25519.Ed25519PrivateKey.generate()
    keys = directory / "jwks.json"
    keys.write_text(json.dumps({"keys": [json.loads(jwt.get_algorithm_by_name("EdDSA").to_jwk(key.public_key()))]}))
    properties = {name: value for name, value in PROPERTIES.items() if "handler.class" not in name}
    properties |= {
        "sasl.oauthbearer.jwks.endpoint.url": f"file://{keys}",
        "connection.failed.authentication.delay.ms": "0",
    }
    listeners = SaslListeners(BrokerConfig(properties=properties))
    credentials = {(one.number, "carol"): make_credential(one, "carol", "pw") for one in SCRAM_MECHANISMS.values()}
    listeners.find = lambda mechanism, user: credentials.get((mechanism, user))
    listeners.now_ms = lambda: NOW_S * 1000
    claims = {"sub": "alice", "iat": NOW_S, "exp": NOW_S + 60}
    signed = jwt.encode({**claims, "exp": NOW_S - 60}, key, algorithm="EdDSA").encode()
    tokens = [
        ALICE,
        b"\0alice\0wrong",
        b"n,,n=carol,r=abcdef",
        b"n,,n=zoe,r=abcdef",
        b"c=biws,r=abcdef,p=" + b"A" * 44,
        bearer(unsigned_token(**claims)),
        bearer(signed),
        bearer(jwt.encode(claims, "x" * 64, algorithm="HS512").encode()),
        b"\x01",
        b"",
        b"n,," * 2000,
    ]
    return listeners, tokens


def _load(decoded: Counter[int], key: int) -> tuple[Decode, Handler]:
    """Return the decoder of an API, which counts, and its handler."""
    assert key in ALLOWED, f"API {key} is looked up before authentication"
    decode, own = functions(key)

    def counting(version: int, body: memoryview) -> object:
        decoded[key] += 1
        return decode(version, body)

    handle: Callable[..., object] = (lambda context, request: b"\0\0") if key == API_VERSIONS else own
    return counting, handle  # type: ignore[return-value]


def _talk(generator: random.Random, connection: Connected, gate: SaslGate, tokens: list[bytes]) -> int:
    """Send the frames of one connection; how many there were."""
    knows_password = False
    for number in range(1, generator.randint(1, MAX_FRAMES) + 1):
        if number == 1 and generator.random() < 0.7:
            frame, is_password = _handshake(generator.choice(MECHANISMS[:4]), generator.choice([0, 1, 1])), False
        else:
            frame, is_password = frame_of(generator, isinstance(connection.frames, TokenFrames), tokens)
        knows_password = knows_password or is_password
        if gate.session.principal is not None:
            return number
        try:
            for request in _received(connection, frame):
                answer = gate(connection.info, request)
                if isinstance(answer, asyncio.Future):  # it would end the connection, after the delay
                    answer.cancel()
                    return number
        except (ProtocolError, CloseConnection):
            return number
        assert gate.session.principal is None or knows_password
    return number


def _received(connection: Connected, frame: bytes) -> list:
    requests = []
    while frame:
        buffer = connection.frames.get_buffer()
        count = min(len(buffer), len(frame))
        buffer[:count] = frame[:count]
        requests += connection.frames.received(count)
        frame = frame[count:]
    return requests


def frame_of(generator: random.Random, is_bare: bool, tokens: list[bytes]) -> tuple[bytes, bool]:
    """Return a frame, and whether it may hold the password."""
    kind = generator.random()
    if kind < 0.05:
        return generator.randbytes(generator.randint(1, MAX_NOISE)), False
    token = generator.choice(tokens)
    is_changed = generator.random() < 0.5
    if is_changed:
        token = _changed(generator, token)
    holds_password = token == ALICE
    if is_bare and kind < 0.9:
        return struct.pack(">i", len(token)) + token, holds_password
    if kind < 0.15:
        key, version, body = (
            generator.randrange(-2, 100),
            generator.randrange(-1, 20),
            generator.randbytes(generator.randint(0, 99)),
        )
    elif kind < 0.5:
        mechanism = generator.choice(MECHANISMS)
        key, version, body = (
            SASL_HANDSHAKE,
            generator.choice([0, 1, 1, 1]),
            struct.pack(">h", len(mechanism)) + mechanism,
        )
    elif kind < 0.6:
        key, version, body = API_VERSIONS, generator.randrange(6), generator.randbytes(generator.randint(0, 20))
    else:
        key, version, body = SASL_AUTHENTICATE, generator.choice([0, 1]), struct.pack(">i", len(token)) + token
    header = struct.pack(">hhih", key, version, generator.randrange(1 << 31), 1) + b"c"
    if generator.random() < 0.1:
        body = _changed(generator, body)
        holds_password = holds_password or ALICE in body
    return struct.pack(">i", len(header) + len(body)) + header + body, holds_password


def _handshake(mechanism: bytes, version: int) -> bytes:
    """Return a frame that begins in order."""
    request = struct.pack(">hhihh", SASL_HANDSHAKE, version, 1, -1, len(mechanism)) + mechanism
    return struct.pack(">i", len(request)) + request


def _changed(generator: random.Random, data: bytes) -> bytes:
    """Some bytes of it replaced, left out or repeated."""
    changed = bytearray(data)
    for _ in range(generator.randint(1, 3)):
        at = generator.randint(0, len(changed))
        changed[at : at + generator.randint(0, 4)] = generator.randbytes(generator.randint(0, 4))
    return bytes(changed)


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
