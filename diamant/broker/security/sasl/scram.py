"""SCRAM: client and broker prove to each other that they know a password, without sending it.

    client: n,[a=AUTHZID],n=USER,r=NONCE                       server: r=NONCE+MORE,s=SALT,i=ITERATIONS
    client: c=HEADER,r=NONCE+MORE,p=PROOF                      server: v=SIGNATURE

Commas in names are =2C, equal signs =3D. Salt, header, proof and signature are base64.

Behaviour: no channel binding, header `n`. Mandatory extensions (`m=`) are refused, others ignored.
Deviations from Kafka: an unknown user gets a salt and iterations like any other and fails only at the proof, while Kafka fails at
the first message and so reveals which users exist. Names may contain non-ASCII letters, as the RFC allows. Delegation tokens
(`tokenauth=true`) are not supported.

Source: RFC 5802; ScramSaslServer, ScramMessages.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable
from typing import NamedTuple

from diamant.broker.security.sasl.mechanism import AuthenticationFailed, Identity
from diamant.broker.security.sasl.scram_keys import (
    FindCredential,
    FindIterations,
    ScramMechanism,
    invented_credential,
    new_nonce,
)
from diamant.protocol.kraft.records import UserScramCredentialRecord

_NAME = r"(?:[^\x00,=]|=2C|=3D)+"
_EXTENSIONS = r"(?P<extensions>(?:,[A-Za-z]+=[^\x00,]+)*)"
_BASE64 = r"[A-Za-z0-9/+]*={0,2}"
_FIRST = re.compile(
    rf"(?P<header>n,(?:a=(?P<authzid>{_NAME}))?,)(?P<bare>n=(?P<name>{_NAME}),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+){_EXTENSIONS})"
)
_FINAL = re.compile(
    rf"(?P<signed>c=(?P<header>{_BASE64}),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+){_EXTENSIONS}),p=(?P<proof>{_BASE64})"
)
_TOKEN_AUTH = re.compile(r",tokenauth=true(?:,|$)", re.IGNORECASE)


class _Begun(NamedTuple):
    """The state between the first and the second message."""

    user: str
    credential: UserScramCredentialRecord
    is_known: bool
    header: str
    nonce: str
    messages: str
    """The client's first message without its header, and the broker's response, joined by a comma."""


class ScramExchange:
    """One attempt to authenticate. `secret`: the broker's secret, from which the salts of unknown users are derived."""

    def __init__(
        self,
        mechanism: ScramMechanism,
        find: FindCredential,
        usual_iterations: FindIterations,
        secret: bytes,
        make_nonce: Callable[[], str] = new_nonce,
    ) -> None:
        self.identity: Identity | None = None
        self._mechanism = mechanism
        self._find = find
        self._usual_iterations = usual_iterations
        self._secret = secret
        self._make_nonce = make_nonce
        self._begun: _Begun | None = None

    def respond(self, token: bytes) -> bytes:
        """Respond to the first or the second message."""
        try:
            message = token.decode()
        except UnicodeDecodeError:
            raise AuthenticationFailed(f"{self._mechanism.name}: the message is not UTF-8") from None
        return self._first(message) if self._begun is None else self._final(self._begun, message)

    def _first(self, message: str) -> bytes:
        match = _FIRST.fullmatch(message)
        if match is None:
            raise AuthenticationFailed(f"{self._mechanism.name}: the first message is malformed")
        if _TOKEN_AUTH.search(match["extensions"]):
            raise AuthenticationFailed(f"{self._mechanism.name}: delegation tokens are not supported")
        user = _unescaped(match["name"])
        iterations = self._usual_iterations(self._mechanism.number)
        invented = invented_credential(
            self._secret, self._mechanism, user, iterations
        )  # for known users too, so that timing reveals nothing
        credential = self._find(self._mechanism.number, user)
        if match["authzid"] is not None and _unescaped(match["authzid"]) != user:
            text = "Authentication failed: Client requested an authorization id that is different from username"
            raise AuthenticationFailed(text, text)
        is_known = credential is not None
        credential = invented if credential is None else credential
        nonce = match["nonce"] + self._make_nonce()
        salt = base64.b64encode(credential.salt).decode()
        answer = f"r={nonce},s={salt},i={credential.iterations}"
        self._begun = _Begun(user, credential, is_known, match["header"], nonce, f"{match['bare']},{answer}")
        return answer.encode()

    def _final(self, begun: _Begun, message: str) -> bytes:
        match = _FINAL.fullmatch(message)
        if match is None:
            raise AuthenticationFailed(f"{self._mechanism.name}: the final message is malformed")
        if match["nonce"] != begun.nonce:
            raise AuthenticationFailed(f"{self._mechanism.name}: the nonce is not that of this exchange")
        if match["header"] != base64.b64encode(begun.header.encode()).decode():
            raise AuthenticationFailed(f"{self._mechanism.name}: the header differs from that of the first message")
        hash_name, credential = self._mechanism.hash_name, begun.credential
        signed = f"{begun.messages},{match['signed']}".encode()
        signature = hmac.digest(credential.stored_key, signed, hash_name)
        proof = _decoded(match["proof"], len(signature))
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        is_proved = hmac.compare_digest(hashlib.new(hash_name, client_key).digest(), credential.stored_key)
        if not (is_proved and begun.is_known):
            raise AuthenticationFailed(f"{self._mechanism.name}: wrong user or password, user {begun.user!r:.80}")
        self.identity = Identity(begun.user)
        return b"v=" + base64.b64encode(hmac.digest(credential.server_key, signed, hash_name))


def _unescaped(name: str) -> str:
    return name.replace("=2C", ",").replace("=3D", "=")


def _decoded(text: str, size: int) -> bytes:
    """Decode a proof of `size` bytes. If it is malformed or has another size, return zeros, which are never valid."""
    try:
        proof = base64.b64decode(text, validate=True)
    except binascii.Error:
        proof = b""
    return proof if len(proof) == size else bytes(size)
