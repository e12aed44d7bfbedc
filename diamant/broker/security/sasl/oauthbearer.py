"""OAUTHBEARER: the client presents a token signed by an issuer.

    client: n,[a=AUTHZID],^Aauth=Bearer TOKEN^A[NAME=VALUE^A]...^A

Behaviour: the response to a refused token is `{"status":"invalid_token"}` without an error code; then the client sends ^A, and
the exchange fails.
Deviation from Kafka: a client cannot try another token after a refusal. In Kafka it can try any number of tokens.

Source: RFC 7628; OAuthBearerSaslServer, OAuthBearerClientInitialResponse.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Protocol

from diamant.broker.security.sasl.mechanism import AuthenticationFailed, Identity

_INITIAL = re.compile(
    rb"n,(?:a=(?P<authzid>(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+))?,\x01(?P<pairs>(?:[A-Za-z]+=[\x20-\x7e\t\r\n]+\x01)*)\x01"
)
_AUTH = re.compile(rb"(?P<scheme>\w+) +(?P<token>[-_.a-zA-Z0-9]+)")


class TokenRefused(Exception):
    """Raised if a token is refused. `str()` is logged; `status` and `scope` are sent to the client."""

    def __init__(self, reason: str, status: str = "invalid_token", scope: str | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.scope = scope


class AcceptedToken(NamedTuple):
    """The user and the expiry time of a valid token."""

    principal_name: str
    expires_ms: int


class TokenValidator(Protocol):
    """A validator of tokens."""

    def validate(self, token: str) -> AcceptedToken:
        """Validate a token; raises TokenRefused."""
        ...


class OAuthBearerExchange:
    """One attempt to authenticate."""

    def __init__(self, validator: TokenValidator) -> None:
        self.identity: Identity | None = None
        self._validator = validator
        self._refusal: tuple[str, str] | None = None  # for the log, for the client

    def respond(self, token: bytes) -> bytes:
        """Check the token, or take the client's acknowledgement of a refusal."""
        if self._refusal is not None:
            reason, told = self._refusal
            raise AuthenticationFailed(reason, told if token == b"\x01" else None)
        authzid, jwt = _parse(token)
        try:
            accepted = self._validator.validate(jwt)
        except TokenRefused as refused:
            scope = "" if refused.scope is None else f', "scope":"{refused.scope}"'
            told = f'{{"status":"{refused.status}"{scope}}}'
            self._refusal = f"OAUTHBEARER: {refused}", told
            return told.encode()
        if authzid not in ("", accepted.principal_name):
            text = (
                f"Authentication failed: Client requested an authorization id ({authzid}) that is different from the token's "
                f"principal name ({accepted.principal_name})"
            )
            raise AuthenticationFailed(text, text)
        self.identity = Identity(accepted.principal_name, accepted.expires_ms)
        return b""


def _parse(message: bytes) -> tuple[str, str]:
    """Return the authorization id and the token in the client's first message."""
    match = _INITIAL.fullmatch(message)
    if match is None:
        raise AuthenticationFailed("OAUTHBEARER: the first message is malformed")
    pairs = dict(pair.split(b"=", 1) for pair in match["pairs"].split(b"\x01") if pair)
    auth = _AUTH.fullmatch(pairs.get(b"auth", b""))
    if auth is None or auth["scheme"].lower() != b"bearer":
        raise AuthenticationFailed("OAUTHBEARER: the first message has no auth=Bearer with a token")
    authzid = (match["authzid"] or b"").replace(b"=2C", b",").replace(b"=3D", b"=")
    return authzid.decode(), auth["token"].decode()
