"""A byte-level SASL client, well-behaved or not, and the brokers for it."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import struct
from typing import Any

from tests.broker.wire import WireClient

SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36
NAME = "listener.name.sasl_plaintext"
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required"
UNSECURED = (
    "org.apache.kafka.common.security.oauthbearer.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"
)
HANDLER = f"{NAME}.oauthbearer.sasl.server.callback.handler.class"
PROPERTIES = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
    f"{NAME}.plain.sasl.jaas.config": f'{PLAIN_MODULE} user_alice="secret" user_bob="b,o=b";',
    HANDLER: UNSECURED,
    "connection.failed.authentication.delay.ms": "1",
}
"""A broker with all mechanisms and, for tests that look on, a listener without."""

ALICE = b"\0alice\0secret"


class SaslClient:
    """A `WireClient` at a SASL listener. Responses are tuples that can be compared with Kafka's."""

    def __init__(self, wire: WireClient) -> None:
        self.wire = wire
        self.token = b""

    async def handshake(self, mechanism: str = "PLAIN", version: int = 1) -> tuple[int, list[str]]:
        """Return the error code and the mechanisms."""
        answer = await self.wire.call(SASL_HANDSHAKE, version, {"mechanism": mechanism})
        return int(answer.error_code), sorted(answer.mechanisms)

    async def authenticate(self, token: bytes, version: int = 2) -> tuple[int, str, bytes, int]:
        """Return the error code, message, token and session lifetime."""
        answer = await self.wire.call(SASL_AUTHENTICATE, version, {"auth_bytes": token})
        self.token = bytes(answer.auth_bytes)
        lifetime = getattr(answer, "session_lifetime", None)
        lifetime_ms = 0 if lifetime is None else round(lifetime.total_seconds() * 1000)
        return int(answer.error_code), answer.error_message, self.token, lifetime_ms

    async def bare(self, token: bytes) -> bytes:
        """Return the response to a token without a header."""
        self.wire.writer.write(struct.pack(">i", len(token)) + token)
        (size,) = struct.unpack(">i", await self.wire.reader.readexactly(4))
        return await self.wire.reader.readexactly(size)

    async def api_versions(self, version: int = 0) -> int:
        """Return the error code of ApiVersions."""
        fields = {"client_software_name": "wire", "client_software_version": "1"} if version >= 3 else {}
        return int((await self.wire.call(18, version, fields)).error_code)

    async def is_served(self) -> bool:
        """True if the broker answers Metadata."""
        return bool((await self.wire.call(3, 1, {"topics": []})).brokers)


def scram_final(first: str, server_first: str, password: str, hash_name: str = "sha256", header: str = "n,,") -> bytes:
    """Return the client's final message, from `first` (without its header) and the broker's response."""
    found = dict(part.split("=", 1) for part in server_first.split(","))
    salted = hashlib.pbkdf2_hmac(hash_name, password.encode(), base64.b64decode(found["s"]), int(found["i"]))
    client_key = hmac.digest(salted, b"Client Key", hash_name)
    without_proof = f"c={base64.b64encode(header.encode()).decode()},r={found['r']}"
    signed = ",".join([first, server_first, without_proof]).encode()
    signature = hmac.digest(hashlib.new(hash_name, client_key).digest(), signed, hash_name)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()


def unsigned_token(**claims: Any) -> bytes:
    """Return a token without a signature."""
    parts = (base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in ({"alg": "none"}, claims))
    return b".".join(parts) + b"."


def bearer(token: bytes, header: bytes = b"n,,") -> bytes:
    """Return the first message of OAUTHBEARER."""
    return header + b"\x01auth=Bearer " + token + b"\x01\x01"
