"""The broker's side of a SASL exchange: takes the client's tokens and returns its own.

Source: javax.security.sasl.SaslServer as Kafka's SaslServerAuthenticator uses it.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

PLAIN = "PLAIN"
SCRAM_SHA_256 = "SCRAM-SHA-256"
SCRAM_SHA_512 = "SCRAM-SHA-512"
OAUTHBEARER = "OAUTHBEARER"
GSSAPI = "GSSAPI"

MECHANISMS = (PLAIN, SCRAM_SHA_256, SCRAM_SHA_512, OAUTHBEARER)
"""The supported mechanisms, by the names that clients request."""


class Identity(NamedTuple):
    """The user that an exchange has authenticated."""

    user: str
    expires_ms: int | None = None
    """When the authentication expires, on the broker's clock; None if it does not expire."""


class AuthenticationFailed(Exception):
    """Raised if an exchange fails.

    `told` is sent to the client and must not reveal which users exist; if None, Kafka's generic text is sent. `str()` is logged.
    """

    def __init__(self, reason: str, told: str | None = None) -> None:
        super().__init__(reason)
        self.told = told


class Exchange(Protocol):
    """One attempt to authenticate; not reusable."""

    identity: Identity | None
    """None until the client is authenticated."""

    def respond(self, token: bytes) -> bytes:
        """Process the client's next token; return the response, perhaps empty. AuthenticationFailed ends the exchange."""
        ...
