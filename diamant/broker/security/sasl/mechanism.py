"""One exchange of a SASL mechanism, as the broker sees it: tokens of the client in, tokens for the client out.

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
"""Those that there are, by the names that clients ask for."""


class Identity(NamedTuple):
    """The user that an exchange has proved."""

    user: str
    expires_ms: int | None = None
    """Time, on the broker's clock, up to which the proof holds; None for ever."""


class AuthenticationFailed(Exception):
    """An exchange that is over without a proof.

    `told` is for the client and must say nothing about users; None stands for Kafka's general text. `str()` is for the log.
    """

    def __init__(self, reason: str, told: str | None = None) -> None:
        super().__init__(reason)
        self.told = told


class Exchange(Protocol):
    """One attempt to authenticate, to be used once."""

    identity: Identity | None
    """None until the proof is complete."""

    def respond(self, token: bytes) -> bytes:
        """Take the client's next token, return the answer, perhaps an empty one. AuthenticationFailed ends the exchange."""
        ...
